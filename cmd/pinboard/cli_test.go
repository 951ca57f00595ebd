package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const operatorToken = "planted-token-of-an-operator"

// asked runs the binary with arguments against a server.
func asked(t *testing.T, base string, args ...string) (status int, out, errs string) {
	t.Helper()
	cmd := command(t, "PINBOARD_URL="+base, "PINBOARD_TOKEN="+operatorToken)
	cmd.Args = append(cmd.Args, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), o.String(), e.String()
	}
	require.NoError(t, err)
	return 0, o.String(), e.String()
}

// One binary is the server and asks it.
func TestTheBinaryAsksTheServerThatItIs(t *testing.T) {
	t.Parallel()
	const passports = `{"providers":[{"type":"staticToken","id":"p","keys":[{"name":"k","token":"` + operatorToken +
		`","scopes":["pinboard:operator","pinboard:worker"],"claims":{"pinboard":{"namespaces":["*"],"allowedBackendHosts":["*"]}}}]}]}`
	server := command(t, "PINBOARD_PASSPORT="+passports, "REDIS_URL=memory:", "PORT=0")
	server.Args = append(server.Args, "serve")
	log, err := server.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	base, _ := listening(t, log)
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"value":"v"}`)) }))
	defer worker.Close()
	conn := dialFrom(t, "127.0.0.1", strings.TrimPrefix(base, "http://"))
	session := post(t, conn, operatorToken, "/registry/register", map[string]any{
		"clientId": "one", "secret": "s", "namespaces": []string{"/a"}, "advertiseUrl": worker.URL, "headroom": 1, "draining": false,
		"challenge": "c", "challengeValue": "v", "instances": map[string][]string{"/a": {"x"}},
	})["sessionId"]
	// It is ready once it has beaten, and only soon after its registration's answer.
	post(t, conn, operatorToken, "/registry/heartbeat", map[string]any{
		"sessionId": session, "headroom": 1, "draining": false, "challenge": "c", "challengeValue": "v",
	})
	require.NoError(t, conn.Close())

	for line, want := range map[string]struct {
		status int
		says   string
	}{
		"workers":             {0, "one     ready"},
		"where /a x":          {0, "listed by the worker"},
		"placements -o json":  {0, `"id":"x"`},
		"health -o json":      {0, `"quarantineMs":`},
		"overview":            {0, "/a         1"},
		"help":                {0, "wind-down NAMESPACE ID"},
		"drain nobody":        {3, "unknown clientId"},
		"no-such-command":     {2, "unknown command"},
		"serve with-argument": {2, "serve takes no arguments"},
	} {
		status, out, errs := asked(t, base, strings.Fields(line)...)
		require.Equal(t, want.status, status, "%s: %s%s", line, out, errs)
		require.Contains(t, out+errs, want.says, line)
		require.NotContains(t, out+errs, operatorToken)
	}

	// Told to stop, it stops following, which is no failure.
	follow := command(t, "PINBOARD_URL="+base, "PINBOARD_TOKEN="+operatorToken)
	follow.Args = append(follow.Args, "events", "-f")
	out, err := follow.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, follow.Start())
	first := make([]byte, 1)
	_, err = out.Read(first) // the registration, which is told by now or comes
	require.NoError(t, err)
	require.NoError(t, follow.Process.Signal(syscall.SIGTERM))
	require.NoError(t, follow.Wait(), "exit status 0")
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait())
}
