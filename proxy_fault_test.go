package pinboard

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

func TestTheTableOfAnswersIsReadFromTheTop(t *testing.T) {
	t.Parallel()
	f := newFront(t, withPassport(anyone{
		refuse: passport.ErrUnauthenticated,
		tokens: map[string]*passport.Identity{"Bearer good": {Provider: "p", Subject: "s", HideHeaders: []string{"authorization"}}},
	}))
	status := func(path string, headers ...string) (int, string, string) {
		resp, body := f.get(path, headers...)
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		return resp.StatusCode, errorOf(t, body), resp.Header.Get("Retry-After")
	}
	code, _, _ := status("/nowhere/a%20b")
	require.Equal(t, 400, code, "an invalid id, before the policy")

	resp, _ := f.get("/nowhere/alice", "Authorization: Bearer bad")
	require.Equal(t, 401, resp.StatusCode, "the policy, before whether there is a worker")
	require.Equal(t, "Bearer", resp.Header.Get("Www-Authenticate"))

	code, message, _ := status("/nowhere/alice", "Authorization: Bearer good")
	require.Equal(t, 404, code)
	require.Equal(t, "unknown namespace", message)

	const cold = "/cold" // no placement was ever tried there
	w := newFake(t, nil)
	s := f.register(w, "a", func(r *store.Registration) { r.Namespaces = []string{counters_, cold} })
	code, _, retry := status(cold+"/alice", "Authorization: Bearer good")
	require.Equal(t, 503, code, "quarantine")
	require.Equal(t, "3600", retry)

	_, err := f.store.Heartbeat(t.Context(), store.Beat{SessionID: s.SessionID, Headroom: 1, Draining: true})
	require.NoError(t, err)
	code, _, retry = status("/counters/alice", "Authorization: Bearer good")
	require.Equal(t, 503, code, "no candidate")
	require.Equal(t, "1", retry)
	require.Empty(t, w.seen())
}

func TestAPolicyCanForbidAndItsFailureIsNoRefusal(t *testing.T) {
	t.Parallel()
	f := newFront(t, withPassport(anyone{refuse: passport.ErrForbidden}))
	resp, body := f.get("/counters/alice")
	require.Equal(t, 403, resp.StatusCode)
	errorOf(t, body)
	for _, p := range []anyone{{refuse: errPlanted}, {fail: errPlanted}} {
		f := newFront(t, withPassport(p), func(s *setup) { s.opts.Logger = nil })
		resp, body := f.get("/counters/alice")
		require.Equal(t, 503, resp.StatusCode)
		require.NotContains(t, body, errPlanted.Error())
	}
}

func TestAnOwnerThatAcceptsNoConnectionKeepsItsID(t *testing.T) {
	t.Parallel()
	f, a, b, sa, _ := pair(t, nil, nil)
	a.stop()
	for _, body := range []string{"", "x"} {
		resp, got := f.post("/counters/alice", body)
		require.Equal(t, 503, resp.StatusCode)
		require.Equal(t, "3", resp.Header.Get("Retry-After"), "the lease has an hour, and the wait a cap")
		require.Equal(t, "the owner does not answer", errorOf(t, got))
	}
	require.Equal(t, sa.SessionID, f.owner("alice"))
	require.Empty(t, b.seen())
}

func TestALostConnectionIsABadGatewayAndNotPlacedAnew(t *testing.T) {
	t.Parallel()
	f, a, b, sa, _ := pair(t, func(h *hit) {
		switch h.target {
		case "/counters/alice/part":
			h.send("HTTP/1.1 200 O")
		case "/counters/alice/noise":
			h.send("what?\r\n\r\n")
		}
		h.last = true
	}, nil)
	for i, path := range []string{"/counters/alice", "/counters/alice/part", "/counters/alice/noise"} {
		resp, body := f.post(path, "x")
		require.Equal(t, http.StatusBadGateway, resp.StatusCode, path)
		errorOf(t, body)
		require.Len(t, a.seen(), i+1, "sent once")
	}
	require.Equal(t, sa.SessionID, f.owner("alice"))
	require.Empty(t, b.seen())
}

func TestALostConnectionIsToldToAClientThatIsSilentInTheMiddleOfItsBody(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Content-Length: 100000", "Transfer-Encoding: chunked"} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.last = true })
		f.register(w, "a")
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\n" + framing + "\r\n\r\n")
		resp, _ := c.whole("POST") // not a byte of the body was sent
		require.Equal(t, http.StatusBadGateway, resp.StatusCode)
	}
}

// A cut answer must not look whole to the client, whatever its framing.
func TestAnAnswerThatBreaksOffIsBrokenOff(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/1.0"} {
			f := newFront(t)
			w := newFake(t, func(h *hit) {
				h.send("HTTP/1.1 200 OK\r\n" + head + "\r\n\r\n")
				if strings.HasPrefix(head, "T") {
					h.send("4\r\npart\r\n")
				} else {
					h.send("part")
				}
				h.last = true
			})
			f.register(w, "a")
			c := f.ask("GET /counters/alice " + proto + "\r\nHost: p\r\n\r\n")
			_, err := io.ReadAll(c.answer("GET").Body)
			require.Error(t, err, "%s %s", head, proto)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		}
	}
}

func TestAnAnswerThatBreaksOffIsBrokenOffWhileTheClientIsSilentInItsBody(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Content-Length: 100000", "Transfer-Encoding: chunked"} {
		f := newFront(t)
		w := newFake(t, func(h *hit) {
			h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
			_, _ = h.r.ReadByte() // the connection lives until the client has sent something
			h.last = true
		})
		f.register(w, "a")
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\n" + framing + "\r\n\r\n")
		resp := c.answer("POST")
		c.send("5\r\nstart\r\n")
		_, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

func TestAnErrorAnswerThatBreaksOffIsABadGateway(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 503 x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		h.last = true
	})
	f.register(w, "a")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
}

// Not parallel: it counts goroutines.
func TestAClientThatLeavesEndsTheRequestAndIsNobodysFault(t *testing.T) { // C20
	const count = 100
	core, logs := observer.New(zap.InfoLevel)
	ended := make(chan struct{})
	f, a, b, sa, _ := pair(t, func(h *hit) {
		if h.target == "/counters/alice/sse" {
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n:\n\r\n")
		}
		h.gone()
		ended <- struct{}{}
	}, nil, func(s *setup) { s.opts.Logger = zap.New(core) })
	resp, _ := f.get("/nowhere/x") // the node's own goroutines begin with its first request
	require.Equal(t, 404, resp.StatusCode)
	baseline := runtime.NumGoroutine()
	clients := make([]*client, 0, 2*count)
	for i := range 2 * count {
		path := "/counters/alice/sse"
		if i%2 == 1 {
			path = "/counters/alice/wait"
		}
		clients = append(clients, f.ask("GET "+path+" HTTP/1.1\r\nHost: p\r\n\r\n"))
	}
	for i, c := range clients {
		if i%2 == 0 {
			require.Equal(t, 200, c.answer("GET").StatusCode)
		}
	}
	require.Eventually(t, func() bool { return len(a.seen()) == 2*count }, patience, time.Millisecond)
	for _, c := range clients {
		c.reset()
	}
	for range clients {
		<-ended
	}
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= baseline+5 }, patience, time.Millisecond)
	require.Zero(t, logs.Len(), "%v", logs.All())
	require.Equal(t, sa.SessionID, f.owner("alice"))
	require.Empty(t, b.seen())
	s, err := f.store.Session(t.Context(), sa.SessionID)
	require.NoError(t, err)
	require.False(t, s.Degraded)
}

// recording is a middleware that logs what was answered.
type recording struct {
	http.ResponseWriter
	status chan<- int
}

func (r recording) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r recording) WriteHeader(status int) {
	r.status <- status
	r.ResponseWriter.WriteHeader(status)
}

func TestAClientThatHasLeftIsNotLoggedAsServed(t *testing.T) {
	t.Parallel()
	status := make(chan int, 1)
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(recording{w, status}, r) })
		}
	})
	w := newFake(t, func(h *hit) { h.gone() })
	f.register(w, "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	require.Eventually(t, func() bool { return len(w.seen()) == 1 }, patience, time.Millisecond)
	require.NoError(t, c.Close())
	require.Equal(t, statusClientGone, <-status)
}

func TestAClientThatLeavesInTheMiddleOfItsBodySendsNoWholeRequest(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Content-Length: 100000", "Transfer-Encoding: chunked"} {
		f := newFront(t)
		errs := make(chan error)
		w := newFake(t, func(h *hit) {
			_, err := h.bodyErr()
			h.last = true
			errs <- err
		})
		f.register(w, "a")
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\n" + framing + "\r\n\r\n5\r\nstart\r\n")
		require.Eventually(t, func() bool { return strings.Contains(w.bytes(), "start") }, patience, time.Millisecond)
		require.NoError(t, c.Close())
		require.Error(t, <-errs, framing)
	}
}

func TestAMalformedBodyIsTheClientsFault(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.body() })
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nstart\r\nzz\r\n")
	resp, _ := c.whole("POST")
	require.Equal(t, 400, resp.StatusCode)
}

func TestTheHostsLimitOnBodiesHolds(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler { return http.MaxBytesHandler(h, 10) }
	})
	w := newFake(t, func(h *hit) { h.body() })
	f.register(w, "a")
	resp, _ := f.post("/counters/alice", strings.Repeat("b", 100))
	require.Equal(t, 413, resp.StatusCode)
}

func TestARequestOutOfTheHostsTimeIsToldSo(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
				defer cancel()
				h.ServeHTTP(w, r.WithContext(ctx))
			})
		}
	})
	w := newFake(t, func(h *hit) { h.gone() })
	f.register(w, "a")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 503, resp.StatusCode)
}

func TestKnownPlacementsAreServedWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	broken := &stuck{}
	f := newFront(t, func(s *setup) {
		s.store = func(inner store.Store) store.Store { broken.Store = inner; return broken }
		s.opts.Logger = nil
	})
	w := newFake(t, nil)
	f.register(w, "a")
	resp, _ := f.get("/counters/known")
	require.Equal(t, 200, resp.StatusCode)

	broken.set(errPlanted)
	resp, _ = f.get("/counters/known")
	require.Equal(t, 200, resp.StatusCode, "placed, and inside its lease")
	for _, path := range []string{"/counters/unknown", "/nowhere/alice"} {
		resp, body := f.get(path)
		require.Equal(t, 503, resp.StatusCode, path)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.NotContains(t, body, errPlanted.Error())
	}
	resp, _ = f.get("/counters/known", "pinboard-from: /counters/known", "pinboard-session: x", "pinboard-session-secret: y")
	require.Equal(t, 503, resp.StatusCode, "a cluster call that can't be checked")

	broken.set(nil)
	resp, _ = f.get("/counters/unknown")
	require.Equal(t, 200, resp.StatusCode)
}

func TestARefusalWhileTheStoreIsAwayIsTheAnswer(t *testing.T) {
	t.Parallel()
	broken := &stuck{}
	f, a, _, _, _ := pair(t, func(h *hit) {
		if h.target == "/counters/alice/ok" {
			h.ok("")
			return
		}
		broken.set(errPlanted)
		h.refuse()
	}, nil, func(s *setup) {
		s.store = func(inner store.Store) store.Store { broken.Store = inner; return broken }
	})
	resp, body := f.get("/counters/alice/x")
	require.Equal(t, 503, resp.StatusCode)
	require.Contains(t, body, "lease unhealthy")
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	a.only()
}

func TestNothingIsLoggedThatAClientWouldHide(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	f := newFront(t, func(s *setup) { s.opts.Logger = zap.New(core) })
	w := newFake(t, func(h *hit) {
		if h.target == "/counters/alice/half?access_token=hush" {
			h.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
		}
		h.last = true
	})
	f.register(w, "a")
	for _, path := range []string{"/counters/alice/x?access_token=hush", "/counters/alice/half?access_token=hush"} {
		_, _ = f.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\nConnection: close\r\nAuthorization: hush\r\nContent-Length: 4\r\n\r\nhush").rest()
	}
	w.stop()
	f.get("/counters/alice/x?access_token=hush", "Authorization: Bearer hush", "Cookie: hush")
	require.GreaterOrEqual(t, logs.Len(), 3)
	for _, entry := range logs.All() {
		require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), "hush")
	}
}

// What net/http reports of a handler, or of itself, goes to the host's log.
func TestNoRequestMakesTheServerStumble(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.DebugLevel)
	f := newFront(t, func(s *setup) { s.server.ErrorLog = zap.NewStdLog(zap.New(core)) })
	w := newFake(t, func(h *hit) {
		if h.target == "/counters/alice/early" {
			h.reply(413, "too much")
		}
		h.last = true
	})
	f.register(w, "a").place("alice")
	down := newFake(t, nil)
	f.register(down, "b").place("bob")
	down.stop()
	const next = "GET /counters/bob HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"
	for range 10 {
		for _, body := range []string{"Content-Length: 20000\r\n\r\n|" + strings.Repeat("b", 20_000), "Transfer-Encoding: chunked\r\n\r\n|4\r\nbody\r\n0\r\n\r\n"} {
			head, body, _ := strings.Cut(body, "|")
			for _, path := range []string{"/counters/alice/early", "/counters/alice/dies"} {
				c := f.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\n" + head)
				resp, _ := c.whole("POST")
				require.GreaterOrEqual(t, resp.StatusCode, 400)
				_, _ = io.WriteString(c.Conn, body+next)
				_, _ = c.rest()
			}
			c := f.ask("POST /counters/bob HTTP/1.1\r\nHost: p\r\n" + head + body)
			resp, _ := c.whole("POST")
			require.Equal(t, 503, resp.StatusCode)
			require.False(t, resp.Close)
			c.send(next)
			resp, _ = c.whole("GET")
			require.Equal(t, 503, resp.StatusCode)
		}
	}
	require.Zero(t, logs.Len(), "%v", logs.All())
}

// The transport quotes what it can't read; that may be a client's cookie.
func TestWhatAWorkerSendsAmissIsNotLogged(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"HTTP/1.1 200 OK\r\nSet-Cookie session=planted\r\n\r\n", "planted\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: planted\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n0\r\nX planted\r\n\r\n",
	} {
		core, logs := observer.New(zap.DebugLevel)
		f := newFront(t, func(s *setup) { s.opts.Logger = zap.New(core) })
		w := newFake(t, func(h *hit) {
			h.send(answer)
			h.last = true
		})
		f.register(w, "a")
		_, _ = f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").rest()
		require.Eventually(t, func() bool { return logs.Len() > 0 }, patience, time.Millisecond)
		for _, entry := range logs.All() {
			require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), "planted", answer)
		}
	}
}
