package pinboard

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bareWorker answers on connections that cost little here: with an event, or a
// message that it sends back, and then with silence.
func bareWorker(t *testing.T) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { answerBarely(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	return &fake{t: t, addr: listener.Addr().String()}
}

func answerBarely(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	answerOne(conn)
	var one [1]byte
	for {
		if _, err := conn.Read(one[:]); err != nil {
			return
		}
	}
}

// answerOne is apart, for what it needs is free when it has returned.
func answerOne(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 1<<10)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	if r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(conn, eventsHead+"8\r\ndata: x\n\r\n")
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.CopyN(conn, in, 3)
}

// Not parallel: it counts goroutines and measures memory, its own client's and
// worker's included, which have a connection each and one goroutine: 5 KB of it. With
// two goroutines of the node's own streams take 11 to 15 KB here, and with their requests more
// than 40 KB.
func TestAnIdleStreamTakesLittle(t *testing.T) {
	const (
		count = 500
		most  = 28 << 10 // bytes; 11 to 15 KB are usual, and up to 22 KB under the race detector
	)
	for name, request := range map[string]string{
		"events": "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n", "socket": upgradeRequest("/counters/alice"),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, detaching)
			f.register(bareWorker(t), "a")
			open := func() net.Conn {
				c := f.ask(request)
				resp := c.answer("GET")
				if name == "socket" {
					c.send("\x81\x01x")
					c.expect("\x81\x01x")
					return c.Conn
				}
				_, err := io.ReadFull(resp.Body, make([]byte, 8))
				require.NoError(t, err)
				return c.Conn
			}
			require.NoError(t, open().Close())
			f.quiet()
			before, goroutines := heap(), runtime.NumGoroutine()
			each := 1
			if name == "socket" {
				each = 2
			}
			conns := make([]net.Conn, count)
			for i := range conns {
				conns[i] = open()
			}
			require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+each*count+10 }, patience, time.Millisecond,
				"the worker's, one of the node's for a socket, and one for all")
			size := (heap() - before) / count
			t.Log("bytes for each stream, peers included:", size)
			require.Less(t, size, int64(most))
			for _, conn := range conns {
				require.NoError(t, conn.Close())
			}
			f.quiet()
		})
	}
}
