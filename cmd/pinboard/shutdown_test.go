package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// process is a server that is told to stop.
type process struct {
	cmd  *exec.Cmd
	addr string
	log  *bufio.Reader
}

func startProcess(t *testing.T, env ...string) *process {
	t.Helper()
	cmd := command(t, append([]string{"PINBOARD_PASSPORT=" + document, "REDIS_URL=memory:", "PORT=0"}, env...)...)
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	base, rest := listening(t, log)
	return &process{cmd, strings.TrimPrefix(base, "http://"), rest}
}

// stop sends a signal and waits until the server says that it shuts down.
func (p *process) stop(t *testing.T, with syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(with))
	for {
		line, err := p.log.ReadBytes('\n')
		require.NoError(t, err, "the server ended at once")
		var entry struct{ Msg string }
		require.NoError(t, json.Unmarshal(line, &entry))
		if entry.Msg == "shutting down" {
			return
		}
	}
}

// A second signal is of somebody who does not want to wait.
func TestASecondSignalCutsWhatIsLeft(t *testing.T) {
	t.Parallel()
	for first, second := range map[syscall.Signal]syscall.Signal{
		syscall.SIGTERM: syscall.SIGINT, syscall.SIGINT: syscall.SIGTERM, syscall.SIGHUP: syscall.SIGTERM,
	} {
		t.Run(first.String(), func(t *testing.T) {
			t.Parallel()
			if signal.Ignored(first) {
				t.Skip("the server would inherit that")
			}
			p := startProcess(t, "PINBOARD_SHUTDOWN_DELAY_MS=15000")
			open := dialTo(t, p.addr)
			_, err := io.WriteString(open, "POST /registry/drain HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer "+operatorToken+
				"\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
			require.NoError(t, err)
			_, err = io.ReadFull(open, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n")))
			require.NoError(t, err)
			p.stop(t, first)
			require.NoError(t, p.cmd.Process.Signal(second))
			tail, err := io.ReadAll(p.log)
			require.NoError(t, err)
			require.NoError(t, p.cmd.Wait(), "exit status 0")
			require.Equal(t, 1, strings.Count(string(tail), "\n"), "%s", tail)
			require.Contains(t, string(tail), `"msg":"requests are cut","why":"told to stop a second time","connections":1`)
		})
	}
}

// A terminal that goes sends it, and so does the shell in it.
func TestHangingUpTwiceIsTellingOnce(t *testing.T) {
	t.Parallel()
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("the server would inherit that")
	}
	p := startProcess(t, "PINBOARD_SHUTDOWN_DELAY_MS=15000")
	idle := dialTo(t, p.addr)
	require.False(t, healthy(t, idle).Close)
	p.stop(t, syscall.SIGHUP)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.True(t, healthy(t, idle).Close)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, p.cmd.Wait(), "exit status 0")
}

// whole asks for the server's health, and tells if the connection ends with the answer.
func whole(conn net.Conn, from *bufio.Reader) (last bool, err error) {
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: p\r\n\r\n"); err != nil {
		return false, err
	}
	res, err := http.ReadResponse(from, nil)
	if err != nil {
		return false, err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return false, err
	}
	if res.StatusCode != http.StatusOK {
		return false, errors.New(res.Status)
	}
	return res.Close, nil
}

// A server that shuts down would take a connection for idle, and close it, while the
// next request is on its way.
func TestARequestOnAKeptConnectionIsAnsweredWhileTheServerStops(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "PINBOARD_SHUTDOWN_DELAY_MS=15000")
	idle := dialTo(t, p.addr)
	require.False(t, healthy(t, idle).Close)
	var busy sync.WaitGroup
	begun := make(chan error, 8)
	ends := make(chan error, cap(begun))
	for range cap(begun) {
		conn := dialTo(t, p.addr)
		busy.Go(func() {
			from := bufio.NewReader(conn)
			last, err := whole(conn, from)
			begun <- err
			for err == nil && !last {
				last, err = whole(conn, from)
			}
			ends <- err
		})
	}
	for range cap(begun) {
		require.NoError(t, <-begun)
	}
	p.stop(t, syscall.SIGTERM)
	busy.Wait()
	for range cap(ends) {
		require.NoError(t, <-ends, "a request was not answered")
	}
	require.True(t, healthy(t, idle).Close, "the next request would be lost")
	_, err := idle.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", p.addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "another node is to be found")
}
