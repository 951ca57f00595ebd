package pinboard

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// polled is a direction whose polls are functions.
type polled struct {
	polls []func(again bool) bool
	n     int
	ended chan struct{}
}

func (*polled) await() {}

func (s *polled) poll(again bool) bool {
	s.n++
	return s.polls[s.n-1](again)
}
func (*polled) round() bool { return true }
func (s *polled) over()     { close(s.ended) }
func (*polled) broken(any)  {}

// What comes after a look and before the sleep is looked at, and the end of it is what
// the second look is for.
func TestNothingIsMissedByADirectionThatFallsAsleep(t *testing.T) {
	t.Parallel()
	var z dozer
	s := &polled{ended: make(chan struct{})}
	s.polls = []func(bool) bool{
		func(again bool) bool {
			require.True(t, again)
			z.Told(false)
			return false
		},
		func(again bool) bool { require.True(t, again); return false },
		func(again bool) bool { return true },
	}
	z.turns = s
	z.run()
	require.Equal(t, 2, s.n)
	require.Equal(t, asleep, z.state.Load())
	z.Told(true)
	<-s.ended
	z.Told(false) // of what is over; it would be one poll too many
	z.Told(false)
	require.Equal(t, 3, s.n)
}

// The last words come together with the end, which is told of once.
func TestAStreamThatSleepsWakesForLastWordsAndTheEnd(t *testing.T) {
	t.Parallel()
	for range 20 { // they mostly come as one
		f := newFront(t, detaching)
		step := make(chan struct{})
		f.register(newFake(t, func(h *hit) {
			if h.header.Get("Upgrade") != "" {
				h.accept()
				h.send("first")
			} else {
				h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nfirst")
			}
			<-step
			h.send("last")
			h.last = true
		}), "a")
		sse, ws := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"), f.ask(upgradeRequest("/counters/alice"))
		resp := sse.answer("GET")
		ws.answer("GET")
		ws.expect("first")
		close(step)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "firstlast", string(body))
		rest, err := ws.rest()
		require.NoError(t, err)
		require.Equal(t, "last", rest)
		require.NoError(t, ws.Close())
		f.quiet()
	}
}

// Where nothing comes any more, something else has to wake what sleeps.
func TestAStreamThatSleepsIsCutForItsSilence(t *testing.T) {
	t.Parallel()
	f := newFront(t, detaching, func(s *setup) { s.opts.Limits.Silence = 100 * time.Millisecond })
	f.register(newFake(t, func(h *hit) {
		if h.header.Get("Upgrade") != "" {
			h.accept()
			h.gone()
			return
		}
		h.send(eventsHead + "8\r\ndata: x\n\r\n")
		h.gone()
	}), "a")
	sse, ws := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"), f.ask(upgradeRequest("/counters/alice"))
	resp := sse.answer("GET")
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "data: x\n", string(body))
	ws.answer("GET")
	ws.expect("\x88\x02\x03\xf4") // close, 1012
	require.NoError(t, ws.Close())
	f.quiet()
}

// Two streams whose clients read nothing, while their workers say all that they can, are
// waited for by nobody.
func TestASlowReaderHoldsUpNoOtherStream(t *testing.T) {
	t.Parallel()
	f := newFront(t, detaching)
	full := make(chan struct{}, 2)
	f.register(newFake(t, func(h *hit) {
		if h.header.Get("Upgrade") != "" {
			h.accept()
		} else {
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		}
		if !strings.HasSuffix(h.target, "slow") {
			_, _ = io.Copy(h.conn, h.r)
			h.last = true
			return
		}
		for much := strings.Repeat("x", 64<<10); ; {
			_ = h.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			if _, err := io.WriteString(h.conn, much); err != nil {
				full <- struct{}{}
				break
			}
		}
		h.gone()
	}), "a")
	f.ask("GET /counters/slow HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET")
	f.ask(upgradeRequest("/counters/slow")).answer("GET")
	<-full
	<-full
	ws := f.ask(upgradeRequest("/counters/quick"))
	ws.answer("GET")
	for range 10 {
		ws.send("word")
		ws.expect("word")
	}
	require.NoError(t, ws.Conn.(*net.TCPConn).CloseWrite())
	rest, err := ws.rest()
	require.NoError(t, err)
	require.Empty(t, rest)
}

// A host may close what its listener has accepted, to have a user leave.
func TestAStreamThatSleepsEndsWhenTheHostClosesItsConnection(t *testing.T) {
	t.Parallel()
	accepted := make(chan net.Conn, 2)
	f := newFront(t, detaching, func(s *setup) {
		s.server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
			accepted <- conn
			return ctx
		}
	})
	f.register(newFake(t, func(h *hit) {
		if h.header.Get("Upgrade") != "" {
			h.accept()
		} else {
			h.send(eventsHead)
		}
		h.gone()
	}), "a")
	f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET")
	f.ask(upgradeRequest("/counters/alice")).answer("GET")
	for range 2 {
		require.NoError(t, (<-accepted).Close())
	}
	f.quiet()
}
