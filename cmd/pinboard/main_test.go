package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const document = `{"providers":[{"type":"staticToken","id":"p","keys":[{"name":"k","token":"planted-token-of-an-operator","scopes":["pinboard:operator"],` +
	`"claims":{"pinboard":{"namespaces":["*"]}}}]}]}`

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pinboard")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "pinboard")
	if out, err := exec.CommandContext(context.Background(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		panic(string(out))
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func command(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, binary)
	// For package leak, in builds where it does something.
	cmd.Env = append([]string{"LEAKCHECK_DIR=" + os.Getenv("LEAKCHECK_DIR")}, env...)
	return cmd
}

func TestAWrongVariableExitsWithStatus2AndNamesIt(t *testing.T) {
	t.Parallel()
	out, err := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=x").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode())
	require.Equal(t, "pinboard: PORT: is \"x\", must be a number from 0 to 65535\n", string(out))
}

// Most often it is another server's.
func TestAPortThatIsTakenIsOneLineThatNamesTheVariable(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	for name, env := range map[string][]string{
		"PORT": {"PORT=" + port}, "PINBOARD_METRICS_ADDR": {"PORT=0", "PINBOARD_METRICS_ADDR=:" + port},
	} {
		out, err := command(t, append(env, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:")...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 2, exit.ExitCode())
		require.Equal(t, "pinboard: "+name+": listen tcp :"+port+": bind: address already in use\n", string(out))
	}
}

func TestWithoutVariablesEveryRequiredOneIsNamed(t *testing.T) {
	t.Parallel()
	out, err := command(t).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode())
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, 2)
	require.Contains(t, lines[0], "pinboard: PINBOARD_PASSPORT: ")
	require.Contains(t, lines[1], "pinboard: REDIS_URL: ")
}

// listening reads the server's log until it says where it listens.
func listening(t *testing.T, log io.Reader) (base string, rest *bufio.Reader) {
	t.Helper()
	rest = bufio.NewReader(log)
	for {
		line, err := rest.ReadBytes('\n')
		require.NoError(t, err, "the server ended before it listened")
		var entry struct{ Msg, Addr string }
		require.NoError(t, json.Unmarshal(line, &entry))
		if entry.Msg == "listening" {
			_, port, ok := strings.Cut(entry.Addr, "]:")
			require.True(t, ok)
			return "http://127.0.0.1:" + port, rest
		}
	}
}

func TestSIGTERMEndsWithStatus0(t *testing.T) {
	t.Parallel()
	cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	base, rest := listening(t, log)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/healthz", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	tail, err := io.ReadAll(rest)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), "exit status 0")
	require.NotContains(t, string(tail), "planted-token-of-an-operator")
}

// That the keys are not to be had is the one thing that operators must learn of
// an identity server.
func TestKeysThatAreNotToBeHadAreLogged(t *testing.T) {
	t.Parallel()
	const users = `{"providers":[{"type":"jwt","id":"users","issuer":"i","audience":"a","algorithms":["ES256"],"jwksUrl":"http://127.0.0.1:1/"}]}`
	cmd := command(t, "PINBOARD_PASSPORT="+users, "REDIS_URL=memory:", "PORT=0")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	base, rest := listening(t, log)
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	token := part(`{"alg":"ES256"}`) + "." + part(`{"iss":"i","aud":"a","sub":"s","exp":4102444800}`) + "." + part("planted")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/counters/alice", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	tail, err := io.ReadAll(rest)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.Contains(t, string(tail), `"msg":"keys not fetched","provider":"users"`)
	require.NotContains(t, string(tail), token)
}

func TestAServerBeforeItsRedisWaitsAndStillStopsOnSIGTERM(t *testing.T) {
	t.Parallel()
	// A port that nothing listens on: reserved by no one, refused at once.
	cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=redis://:planted-token-of-an-operator@127.0.0.1:1", "PORT=0")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	rest := bufio.NewReader(log)
	line, err := rest.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "waiting for Redis")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	tail, err := io.ReadAll(rest)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
	require.NotContains(t, line+string(tail), "planted-token-of-an-operator")
}

// A server that is no Redis may answer with what it was sent.
func TestAPasswordThatIsSentBackIsNotLogged(t *testing.T) {
	t.Parallel()
	for refusal, shown := range map[string]string{"ERR not now: %s": "[secret]", "ERR unknown command, with args beginning with: %s": "with args not shown"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				buf := make([]byte, 4096)
				n, _ := conn.Read(buf)
				said := strings.ReplaceAll(string(buf[:n]), "\r\n", " ")
				// To each of the four commands that are sent at once.
				_, _ = io.WriteString(conn, strings.Repeat("-"+fmt.Sprintf(refusal, said)+"\r\n", 4))
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=redis://planted-user:planted-password-of-redis@"+listener.Addr().String(), "PORT=0")
		log, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(log).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "waiting for Redis")
		require.Contains(t, line, shown)
		require.NotContains(t, line, "planted-password-of-redis")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
}
