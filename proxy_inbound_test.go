//go:build unix

package pinboard

import (
	"context"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/inbound"
)

// inboundListener accepts connections as those of the standalone server.
type inboundListener struct {
	net.Listener
	leaves inbound.Leaves
	conns  chan *net.TCPConn // the first ones, below
}

func (l *inboundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp := conn.(*net.TCPConn)
	select {
	case l.conns <- tcp:
	default:
	}
	return inbound.New(tcp, &l.leaves, func() {})
}

// inwards has a front's clients have such connections.
func (l *inboundListener) inwards(s *setup) {
	l.conns = make(chan *net.TCPConn, 1)
	s.listen = func(below net.Listener, server *http.Server) net.Listener {
		l.Listener = below
		server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			if c, ok := conn.(*inbound.Conn); ok {
				ctx = c.Context(ctx)
			}
			return ctx
		}
		server.ConnState = func(conn net.Conn, state http.ConnState) {
			if c, ok := conn.(*inbound.Conn); ok && state == http.StateHijacked {
				c.HandedOver()
			}
		}
		return l
	}
}

// left waits until only so many bytes of what has come are still in the socket.
func left(t *testing.T, conn *net.TCPConn, want int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var room [64]byte
		n := -1
		err := raw.Control(func(fd uintptr) {
			n, _, _ = syscall.Recvfrom(int(fd), room[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		})
		return err == nil && n == want
	}, patience, time.Millisecond)
}

// The server's end of the connection has read the first byte by then, to find out
// whether the client leaves.
func TestWhatAClientSendsBeforeItsTunnelIsThereReachesTheWorkerOnce(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way func(*setup)) {
		var l inboundListener
		f := newFront(t, way, l.inwards)
		come, answer := make(chan struct{}), make(chan struct{})
		got := make(chan string, 1)
		f.register(newFake(t, func(h *hit) {
			come <- struct{}{}
			<-answer
			h.accept()
			p := make([]byte, 9)
			n, _ := h.r.Read(p)
			for n < len(p) {
				more, err := h.r.Read(p[n:])
				if n += more; err != nil {
					break
				}
			}
			got <- string(p[:n])
			h.send("\x81\x01x")
			h.gone()
		}), "a")
		c := f.ask(upgradeRequest("/counters/alice"))
		<-come
		c.send("early")
		left(t, <-l.conns, 4)
		answer <- struct{}{}
		require.Equal(t, http.StatusSwitchingProtocols, c.answer("GET").StatusCode)
		c.send("late")
		require.Equal(t, "earlylate", <-got)
		c.expect("\x81\x01x")
		require.NoError(t, c.Close())
		f.quiet()
	})
}

// The same for events, whose client is not expected to say anything.
func TestAClientThatSendsTooEarlyGetsItsEventsAndMayLeave(t *testing.T) {
	t.Parallel()
	var l inboundListener
	f := newFront(t, detaching, l.inwards)
	come, answer := make(chan struct{}), make(chan struct{})
	f.register(newFake(t, func(h *hit) {
		come <- struct{}{}
		<-answer
		h.send(eventsHead + "8\r\ndata: x\n\r\n")
		h.gone()
	}), "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	<-come
	c.send("early")
	left(t, <-l.conns, 4)
	answer <- struct{}{}
	resp := c.answer("GET")
	p := make([]byte, 8)
	n, err := resp.Body.Read(p)
	require.NoError(t, err)
	require.Equal(t, "data: x\n", string(p[:n]))
	require.NoError(t, c.Close())
	f.quiet()
}
