package pinboard

import (
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// deadlined notes the write deadlines of a socket that is the server's.
type deadlined struct {
	*net.TCPConn
	mu sync.Mutex
	by time.Time
}

func (d *deadlined) Socket() *net.TCPConn { return d.TCPConn }

func (d *deadlined) SetDeadline(t time.Time) error {
	d.note(t)
	return d.TCPConn.SetDeadline(t)
}

func (d *deadlined) SetWriteDeadline(t time.Time) error {
	d.note(t)
	return d.TCPConn.SetWriteDeadline(t)
}

func (d *deadlined) note(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by = t
}

func (d *deadlined) writesBy() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.by
}

type deadlinedListener struct {
	net.Listener
	conns chan *deadlined
}

func (l deadlinedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d := &deadlined{TCPConn: conn.(*net.TCPConn)}
	l.conns <- d
	return d, nil
}

// Once its handler has returned, nothing but the stream itself bounds how long its
// writes may take: the bound for the end of plain answers would be one for its age.
func TestADetachedStreamMayGetOlderThanAWriteMayTake(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"events", "socket"} {
		var h returned
		f := newFront(t, detaching, h.around)
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listener := deadlinedListener{inner, make(chan *deadlined, 1)}
		server := &http.Server{Handler: f.server.Handler}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		f.addr = inner.Addr().String()
		step := make(chan struct{})
		end := sync.OnceFunc(func() { close(step) })
		defer end()
		f.register(newFake(t, func(h *hit) {
			if kind == "events" {
				ticking(step)(h)
				return
			}
			h.accept()
			<-step
			h.last = true
		}), "a")
		request := "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"
		if kind == "socket" {
			request = upgradeRequest("/counters/alice")
		}
		c := f.ask(request)
		c.answer("GET")
		require.Eventually(t, func() bool { return h.n.Load() == 1 }, patience, time.Millisecond)
		conn := <-listener.conns
		require.Zero(t, conn.writesBy(), kind)
		end()
		require.NoError(t, c.Close())
		f.quiet()
	}
}
