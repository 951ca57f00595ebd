package pinboard

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// pulling counts what the kernel is asked to pass on to the client.
type pulling struct {
	*net.TCPConn
	calls, bytes *atomic.Int64
}

func (p pulling) ReadFrom(r io.Reader) (int64, error) {
	n, err := p.TCPConn.ReadFrom(r)
	p.calls.Add(1)
	p.bytes.Add(n)
	return n, err
}

type pullingListener struct {
	net.Listener
	calls, bytes atomic.Int64
}

func (l *pullingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return pulling{conn.(*net.TCPConn), &l.calls, &l.bytes}, nil
}

// long returns bytes that are each where they belong, or not.
func long(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(strconv.Itoa(n)))).Read(b)
	return b
}

// sends answers with a body of the length that the id says.
func sends(h *hit) {
	h.body()
	n, _ := strconv.Atoi(strings.TrimPrefix(h.target, "/counters/"))
	h.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: " + strconv.Itoa(n) + "\r\n\r\n")
	_, _ = h.conn.Write(long(n))
}

func TestALongAnswerIsWholeHoweverItIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(http.ResponseWriter) http.ResponseWriter{
		"the server's own writer": nil,
		"one that wraps it":       func(w http.ResponseWriter) http.ResponseWriter { return unwrapping{w} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := returned{wrap: wrap}
			f := newFront(t, h.around)
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			listener := &pullingListener{Listener: inner}
			server := &http.Server{Handler: f.server.Handler}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
			f.addr = inner.Addr().String()
			w := newFake(t, sends)
			f.register(w, "a")
			c := f.ask("")
			total := 0
			for _, n := range []int{0, 1, 100, 5_000, 40_000, 300_000, 4 << 20, 70_001, 8 << 20} {
				c.send("GET /counters/" + strconv.Itoa(n) + " HTTP/1.1\r\nHost: p\r\n\r\n")
				resp := c.answer("GET")
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.True(t, bytes.Equal(long(n), body), n)
				require.EqualValues(t, n, resp.ContentLength)
				total += n
			}
			c.send("HEAD /counters/300000 HTTP/1.1\r\nHost: p\r\n\r\n")
			require.EqualValues(t, 300_000, c.answer("HEAD").ContentLength)
			if runtime.GOOS != "linux" || wrap != nil {
				require.Zero(t, listener.calls.Load())
				return
			}
			require.Greater(t, listener.bytes.Load(), int64(total/2), "most of it came without a copy")
			require.Less(t, listener.calls.Load(), int64(total/(16<<10)), "and in large pieces")
		})
	}
}

func TestAClientThatStopsReadingALongAnswerIsCutAndCounted(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) { s.opts.Limits.WritePause = 100 * time.Millisecond })
	f.register(newFake(t, func(h *hit) {
		if h.target == "/counters/bob" {
			h.ok("")
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
		for piece := long(1 << 20); ; {
			if _, err := h.conn.Write(piece); err != nil {
				h.last = true
				return
			}
		}
	}), "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	c.answer("GET")
	f.quiet()
	require.EqualValues(t, 1, f.pb.counters.limits.get(limitWritePause))
	_, err := io.Copy(io.Discard, c.r)
	require.NoError(t, err, "the connection has ended")
	resp, _ := f.get("/counters/bob")
	require.Equal(t, 200, resp.StatusCode)
}

func TestALongAnswerThatTheWorkerBreaksOffIsToldOfAsThat(t *testing.T) {
	t.Parallel()
	for range 10 { // it is found out at one place or another
		core, logs := observer.New(zap.InfoLevel)
		f := newFront(t, func(s *setup) { s.opts.Logger = zap.New(core) })
		f.register(newFake(t, func(h *hit) {
			h.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
			_, _ = h.conn.Write(long(3 << 20))
			_ = h.conn.(*net.TCPConn).SetLinger(0)
			h.last = true
		}), "a")
		c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		_, err := io.ReadAll(c.answer("GET").Body)
		require.Error(t, err)
		f.quiet()
		require.Equal(t, 1, logs.FilterMessage("the worker broke its answer off").Len())
	}
}
