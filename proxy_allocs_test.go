//go:build !race && !leakcheck

package pinboard

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
)

// Not parallel: it counts what the whole process allocates. Client and worker
// allocate nothing, net/http's server and the store what they will.
func TestAPlainRequestAllocatesLittle(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\nbody")
	go func() {
		buf := make([]byte, 64<<10)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for n := 0; err == nil; {
				var more int
				more, err = conn.Read(buf[n:])
				if n += more; buf[0] == 'P' && !bytes.HasSuffix(buf[:n], []byte("body")) {
					continue // it comes in two pieces
				}
				n = 0
				if err == nil {
					_, err = conn.Write(answer)
				}
			}
			_ = conn.Close()
		}
	}()
	for _, changes := range [][]func(*setup){nil, {metered(prometheus.NewPedanticRegistry())}} {
		f := newFront(t, changes...)
		f.register(&fake{addr: listener.Addr().String()}, "a")
		f.allocatesLittle()
	}
}

func (f *front) allocatesLittle() {
	t := f.t
	for name, c := range map[string]struct {
		request string
		usual   float64
	}{
		http.MethodGet:  {"GET /counters/alice/json HTTP/1.1\r\nHost: p\r\n\r\n", 26},
		http.MethodPost: {"POST /counters/alice/json HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody", 37},
	} {
		client := f.dial()
		head := client.ask(t, c.request)
		request := []byte(c.request)
		buf := make([]byte, head)
		var err error
		n := allocs.PerCall(t, func() {
			_, _ = client.Write(request)
			_, err = io.ReadFull(client.Conn, buf)
		})
		require.NoError(t, err, name)
		require.LessOrEqual(t, n, c.usual+allocs.Margin, name)
		require.NoError(t, client.Close())
	}
}

// ask sends a request and returns how long its answer is, which is the same
// every time.
func (c *client) ask(t *testing.T, request string) int {
	t.Helper()
	c.send(request)
	buf := make([]byte, 4096)
	n, err := c.Conn.Read(buf)
	require.NoError(t, err)
	require.Contains(t, string(buf[:n]), "200 OK")
	return n
}
