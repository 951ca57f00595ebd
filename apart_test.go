package pinboard

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func detaching(s *setup) { s.opts.DetachStreams = true }

// returned counts the handlers that have returned, and wraps their writers.
type returned struct {
	n    atomic.Int32
	wrap func(http.ResponseWriter) http.ResponseWriter
}

func (h *returned) around(s *setup) {
	s.handler = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer h.n.Add(1)
			if h.wrap != nil {
				w = h.wrap(w)
			}
			next.ServeHTTP(w, r)
		})
	}
}

const eventsHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// ticking sends an event, and the end when the step comes.
func ticking(step chan struct{}) func(h *hit) {
	return func(h *hit) {
		h.body()
		h.send(eventsHead + "8\r\ndata: x\n\r\n")
		<-step
		h.send("0\r\n\r\n")
	}
}

func (f *front) quiet() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		requests, _ := f.pb.limiter.requests.Use()
		ids, _ := f.pb.limiter.ids.Use()
		return f.pb.counters.proxying.Load() == 0 && requests == 0 && ids == 0
	}, patience, time.Millisecond)
}

func TestADetachedStreamCountsUntilItEndsAndShutdownWaitsForIt(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"events", "socket"} {
		var h returned
		step := make(chan struct{})
		f := newFront(t, detaching, h.around)
		f.register(newFake(t, func(h *hit) {
			if h.header.Get("Upgrade") == "" {
				ticking(step)(h)
				return
			}
			h.accept()
			h.send("\x81\x01x")
			<-step
			h.last = true
		}), "a")
		request := "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"
		if kind == "socket" {
			request = upgradeRequest("/counters/alice")
		}
		c := f.ask(request)
		resp := c.answer("GET")
		require.Eventually(t, func() bool { return h.n.Load() == 1 }, patience, time.Millisecond, "the handler returns")
		requests, _ := f.pb.limiter.requests.Use()
		ids, _ := f.pb.limiter.ids.Use()
		require.Equal(t, []int{1, 1, 1}, []int{requests, ids, int(f.pb.counters.proxying.Load())}, kind)

		if kind == "events" {
			step <- struct{}{}
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, "data: x\n", string(body))
			require.True(t, resp.Close, "and says so")
			_, err = c.rest()
			require.NoError(t, err)
		} else {
			c.expect("\x81\x01x")
			require.NoError(t, c.Close())
			step <- struct{}{}
		}
		f.quiet()

		c = f.ask(request)
		c.answer("GET")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		go func() { step <- struct{}{} }()
		require.ErrorIs(t, f.pb.Shutdown(gone), context.Canceled, "it waits for streams, and cuts them in the end")
		f.quiet()
	}
}

// hijacking offers what it should not, like many.
type hijacking struct{ unwrapping }

func (w hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.ResponseWriter.(http.Hijacker).Hijack()
}

func TestAnEventStreamIsDetachedOnlyWhereNothingIsGoneAround(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request  string
		answer   string
		wrap     func(http.ResponseWriter) http.ResponseWriter
		deadline bool
		detached bool
	}{
		"plain":                {detached: true},
		"with a body":          {request: "POST / HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\nhi", detached: true},
		"a writer that wraps":  {wrap: func(w http.ResponseWriter) http.ResponseWriter { return unwrapping{w} }},
		"a writer that offers": {wrap: func(w http.ResponseWriter) http.ResponseWriter { return hijacking{unwrapping{w}} }},
		"a deadline":           {deadline: true},
		"HTTP/1.0":             {request: "GET / HTTP/1.0\r\nHost: p\r\n\r\n"},
		"a length":             {answer: "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: x\n"},
		"no events":            {answer: "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: x\n\r\n"},
		"half a body":          {request: "POST / HTTP/1.1\r\nHost: p\r\nContent-Length: 9\r\n\r\nhi"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := returned{wrap: c.wrap}
			step := make(chan struct{})
			f := newFront(t, detaching, h.around, func(s *setup) {
				if around := s.handler; c.deadline {
					s.handler = func(next http.Handler) http.Handler {
						return around(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
							defer cancel()
							next.ServeHTTP(w, r.WithContext(ctx))
						}))
					}
				}
			})
			f.register(newFake(t, func(h *hit) {
				if name != "half a body" {
					h.body()
				}
				answer := c.answer
				if answer == "" {
					answer = eventsHead + "8\r\ndata: x\n\r\n"
				}
				h.send(answer)
				<-step
				h.send("0\r\n\r\n")
			}), "a")
			request := c.request
			if request == "" {
				request = "GET / HTTP/1.1\r\nHost: p\r\n\r\n"
			}
			client := f.ask(strings.Replace(request, " / ", " /counters/alice ", 1))
			resp := client.answer("GET")
			event := make([]byte, 8)
			_, err := io.ReadFull(resp.Body, event)
			require.NoError(t, err)
			if c.detached {
				require.Eventually(t, func() bool { return h.n.Load() == 1 }, patience, time.Millisecond)
			}
			require.EqualValues(t, 1, f.pb.counters.proxying.Load())
			require.Equal(t, c.detached, h.n.Load() == 1)
			close(step)
			if name == "half a body" {
				client.send("the rest.")
			}
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, client.Close())
			f.quiet()
		})
	}
}

// What is written to a connection that was taken over is what the server would have
// written.
func TestADetachedAnswerIsTheServersOwn(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		eventsHead + "8\r\ndata: x\n\r\n0\r\n\r\n",
		eventsHead + "0\r\n\r\n",
		"HTTP/1.1 299 Odd\r\nContent-Type: text/event-stream;charset=utf-8\r\nX-App: 1\r\nX-App: 2\r\nDate: then\r\nSet-Cookie: a=b\r\n\r\ndata\n\n",
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"8\r\ndata: x\n\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\npinboard-x: 3\r\n\r\n",
	} {
		var got [2]string
		for i := range got {
			f := newFront(t, func(s *setup) {
				s.opts.DetachStreams = i == 1
				s.handler = func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("X-Host", "h")
						next.ServeHTTP(w, r)
					})
				}
			})
			f.register(newFake(t, func(h *hit) { h.send(answer); h.last = true }), "a")
			c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
			resp, body := c.whole("GET")
			require.Equal(t, []string{"chunked"}, resp.TransferEncoding)
			require.True(t, resp.Close)
			require.Len(t, resp.Header["Date"], 1)
			if resp.Header.Get("Date") != "then" {
				when, err := http.ParseTime(resp.Header.Get("Date"))
				require.NoError(t, err)
				require.WithinDuration(t, time.Now(), when, time.Hour)
				resp.Header.Del("Date")
			}
			var text strings.Builder
			require.NoError(t, resp.Header.Write(&text))
			text.WriteString(resp.Status + body)
			require.NoError(t, resp.Trailer.Write(&text))
			got[i] = text.String()
		}
		require.Equal(t, got[0], got[1])
		require.Contains(t, got[1], "X-Host: h")
	}
}

func TestAClientOfEventsThatLeavesIsNoticed(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *client){
		"reset":    func(c *client) { c.reset() },
		"close":    func(c *client) { require.NoError(t, c.Close()) },
		"its half": func(c *client) { require.NoError(t, c.Conn.(*net.TCPConn).CloseWrite()) },
		"after it has sent something": func(c *client) {
			c.send("GET /counters/bob HTTP/1.1\r\nHost: p\r\n\r\n")
			require.NoError(t, c.Conn.(*net.TCPConn).CloseWrite())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t, detaching)
			ended := make(chan struct{})
			w := newFake(t, func(h *hit) { h.send(eventsHead); h.gone(); close(ended) })
			f.register(w, "a")
			c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
			c.answer("GET")
			leave(c)
			<-ended
			f.quiet()
			require.Len(t, w.seen(), 1, "what came after the request is none")
		})
	}
}

func TestWhatAClientOfEventsSendsIsNeitherServedNorInTheWay(t *testing.T) {
	t.Parallel()
	f := newFront(t, detaching)
	step := make(chan struct{})
	w := newFake(t, ticking(step))
	f.register(w, "a")
	next := "GET /counters/bob HTTP/1.1\r\nHost: p\r\n\r\n"
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n" + next)
	resp := c.answer("GET")
	c.send(strings.Repeat(next, 10))
	step <- struct{}{}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "data: x\n", string(body))
	rest, _ := c.rest()
	require.Empty(t, rest)
	require.Len(t, w.seen(), 1)
}

// Its end would come after all that it has sent, which nobody reads.
func TestAClientOfEventsThatSendsTooMuchAndLeavesIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFront(t, detaching)
	f.register(newFake(t, func(h *hit) {
		h.send(eventsHead)
		h.gone()
	}), "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	c.answer("GET")
	_, _ = c.Write(make([]byte, 2*unheard)) // may fail, for it is cut
	_ = c.Close()
	f.quiet()
}

func TestAReaderOfEventsThatStopsIsCut(t *testing.T) {
	t.Parallel()
	f := newFront(t, detaching, func(s *setup) { s.opts.Limits.WritePause = 100 * time.Millisecond })
	ended := make(chan struct{})
	f.register(newFake(t, func(h *hit) {
		if h.target != "/counters/alice" {
			h.ok("")
			return
		}
		defer close(ended)
		h.send(eventsHead)
		for chunk := "400\r\n" + strings.Repeat("x", 1024) + "\r\n"; ; {
			if _, err := io.WriteString(h.conn, chunk); err != nil {
				h.last = true
				return
			}
		}
	}), "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	c.answer("GET")
	<-ended
	f.quiet()
	_, err := io.ReadAll(c.r)
	require.NoError(t, err, "it ends")
	resp, _ := f.get("/counters/bob")
	require.Equal(t, 200, resp.StatusCode, "and costs nobody else anything")
}

// planted is a direction that fails.
type planted struct {
	rounds int
	fault  any
	ended  chan struct{}
}

func (*planted) await() {}

func (p *planted) round() bool {
	if p.rounds--; p.rounds == 0 {
		panic("planted")
	}
	return false
}
func (p *planted) over()            { close(p.ended) }
func (p *planted) broken(fault any) { p.fault = fault }

func TestAFaultInAStreamEndsOnlyThat(t *testing.T) {
	t.Parallel()
	p := &planted{rounds: 3, ended: make(chan struct{})}
	go follow(p)
	<-p.ended
	require.Equal(t, "planted", p.fault)
}

func TestAFlowThatHasEndedIsReplacedByOneThatHas(t *testing.T) {
	t.Parallel()
	l := &leases{}
	s := &lease{}
	for _, cause := range []error{nil, errOwnerEnded, errClientGone} {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var old, next flow
		l.open(ctx, &old, s)
		switch cause {
		case errOwnerEnded:
			old.cancel(cause)
		case errClientGone:
			leave()
		}
		l.replace(&old, &next)
		require.Equal(t, cause, next.cause())
		require.Equal(t, []*flow{&next}, slices.Collect(s.flows.all()))
		next.close()
		old.close()
		require.Zero(t, s.flows)
	}
}
