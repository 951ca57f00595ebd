package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// start runs the server and returns its address.
func start(t *testing.T, env ...string) (addr string) {
	t.Helper()
	return startAs(t, []string{binary}, env...)
}

func startAs(t *testing.T, args []string, env ...string) (addr string) {
	t.Helper()
	cmd := command(t, append([]string{"PINBOARD_PASSPORT=" + document, "REDIS_URL=memory:", "PORT=0"}, env...)...)
	path, err := exec.LookPath(args[0])
	require.NoError(t, err)
	cmd.Path, cmd.Args = path, args
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	base, rest := listening(t, log)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, rest)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return strings.TrimPrefix(base, "http://")
}

func dialTo(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// healthy asks for the server's health on a connection that it keeps.
func healthy(t *testing.T, conn net.Conn) *http.Response {
	t.Helper()
	_, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: p\r\n\r\n")
	require.NoError(t, err)
	return answer(t, conn)
}

func answer(t *testing.T, conn net.Conn) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	return res
}

func TestAConnectionTooManyIsAnsweredAndClosed(t *testing.T) {
	t.Parallel()
	for _, limits := range [][]string{
		{"PINBOARD_MAX_CONNECTIONS=3", "PINBOARD_MAX_CONNECTIONS_PER_ADDRESS=9"},
		{"PINBOARD_MAX_CONNECTIONS=9", "PINBOARD_MAX_CONNECTIONS_PER_ADDRESS=3"},
		{"PINBOARD_MAX_CONNECTIONS=3", "PINBOARD_TRUSTED_PROXIES=127.0.0.1"},
	} {
		addr := start(t, limits...)
		var kept []net.Conn
		for range 3 {
			conn := dialTo(t, addr)
			require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
			kept = append(kept, conn)
		}
		res := answer(t, dialTo(t, addr)) // without having asked for anything
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, limits)
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		require.True(t, res.Close)
		require.Equal(t, http.StatusOK, healthy(t, kept[1]).StatusCode, "the others go on")
		require.NoError(t, kept[0].Close())
		require.Eventually(t, func() bool {
			conn := dialTo(t, addr)
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: p\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			return err == nil && res.StatusCode == http.StatusOK
		}, patience, 10*time.Millisecond, "there is room again")
	}
}

// What a few clients take leaves room for a worker's next heartbeat.
func TestAFewAddressesLeaveConnectionsForWorkers(t *testing.T) {
	t.Parallel()
	const most = 32
	addr := start(t, "PINBOARD_MAX_CONNECTIONS="+strconv.Itoa(most))
	from := func(address string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		return conn
	}
	for _, greedy := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		for n := range most {
			conn := from(greedy)
			if n < most/shares {
				require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
				continue
			}
			require.Equal(t, http.StatusServiceUnavailable, answer(t, conn).StatusCode)
		}
	}
	worker := from("127.0.0.6")
	_, err := io.WriteString(worker, "POST /registry/heartbeat HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\n{}")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, answer(t, worker).StatusCode, "it is heard")
}

// Each connection may need another one to a worker.
func TestWithoutAVariableHalfTheFilesAreForConnections(t *testing.T) {
	t.Parallel()
	addr := startAs(t, []string{"sh", "-c", "ulimit -n 276 && exec " + binary}, "PINBOARD_TRUSTED_PROXIES=127.0.0.1")
	for range (276 - otherFiles) / 2 {
		require.Equal(t, http.StatusOK, healthy(t, dialTo(t, addr)).StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, answer(t, dialTo(t, addr)).StatusCode)
}

// What follows from the limit of open files is else nowhere to be seen.
func TestTheLogSaysHowManyConnectionsThereMayBe(t *testing.T) {
	t.Parallel()
	cmd := command(t, "PINBOARD_PASSPORT="+document, "REDIS_URL=memory:", "PORT=0")
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	cmd.Path, cmd.Args = shell, []string{"sh", "-c", "ulimit -n 656 && exec " + binary}
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(log).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Contains(t, line, `"maxConnections":200,"maxConnectionsPerAddress":25`)
}

func TestALargeHeaderIsRefusedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	addr := start(t, "PINBOARD_MAX_HEADER_BYTES=1000", "PINBOARD_MAX_URL_BYTES=1000", "PINBOARD_MAX_HEADER_LINES=10")
	for length, status := range map[int]int{900: 200, 1100: 200, 8000: http.StatusRequestHeaderFieldsTooLarge} {
		conn := dialTo(t, addr)
		_, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: p\r\nX: "+strings.Repeat("x", length)+"\r\n\r\n")
		require.NoError(t, err)
		require.Equal(t, status, answer(t, conn).StatusCode, length)
	}
	conn := dialTo(t, addr)
	require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
	_, err := io.WriteString(conn, "GET /"+strings.Repeat("x", 1100)+" HTTP/1.1\r\nHost: p\r\n\r\n")
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestURITooLong, answer(t, conn).StatusCode)
}
