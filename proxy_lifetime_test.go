package pinboard

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// When the owner's session ends, what is open to it is cut.
func TestTheEndOfTheOwnersSessionCutsWhatIsOpen(t *testing.T) {
	t.Parallel()
	bothWays(t, testTheEndOfTheOwnersSessionCutsWhatIsOpen)
}

func testTheEndOfTheOwnersSessionCutsWhatIsOpen(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, func(h *hit) {
		switch h.target {
		case "/counters/alice/sse":
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n:\n\r\n")
		case "/counters/alice/length":
			h.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart")
		case "/counters/alice/flood":
			h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for _, err := io.WriteString(h.conn, "400\r\n"+strings.Repeat("x", 1024)+"\r\n"); err == nil; {
				_, err = io.WriteString(h.conn, "400\r\n"+strings.Repeat("x", 1024)+"\r\n")
			}
		case "/counters/alice/ws":
			h.accept()
		}
		h.gone()
	})
	s := f.register(w, "a")
	s.place("alice")
	open := map[string]*client{}
	for _, kind := range []string{"wait", "sse", "length", "flood", "ws"} {
		raw := "GET /counters/alice/" + kind + " HTTP/1.1\r\nHost: p\r\n\r\n"
		if kind == "ws" {
			raw = upgradeRequest("/counters/alice/ws")
		}
		open[kind] = f.ask(raw)
	}
	open["upload"] = f.ask("POST /counters/alice/upload HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\npart")
	bodies := map[string]io.Reader{}
	for _, kind := range []string{"sse", "length", "flood"} {
		bodies[kind] = open[kind].answer("GET").Body
	}
	require.Equal(t, 101, open["ws"].answer("GET").StatusCode)
	require.Eventually(t, func() bool { return len(w.seen()) == len(open) }, patience, time.Millisecond)

	require.NoError(t, f.store.Deregister(t.Context(), s.SessionID))
	for _, kind := range []string{"wait", "upload"} {
		resp, body := open[kind].whole("GET")
		require.Equal(t, 502, resp.StatusCode, "the owner may be at work on it: no 503, which clients repeat")
		require.Empty(t, resp.Header.Get("Retry-After"))
		errorOf(t, body)
	}
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond,
		"also that of a client that does not read")
	for kind, body := range bodies {
		_, err := io.ReadAll(body)
		require.Error(t, err, kind)
	}
	rest, _ := open["ws"].rest()
	require.Empty(t, rest)
}

func TestNeitherAReleaseNorASuccessorCutsWhatIsOpen(t *testing.T) {
	t.Parallel()
	bothWays(t, testNeitherAReleaseNorASuccessorCutsWhatIsOpen)
}

func testNeitherAReleaseNorASuccessorCutsWhatIsOpen(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	step := make(chan struct{})
	w := newFake(t, func(h *hit) {
		if h.target != "/counters/alice/sse" {
			h.ok("")
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		<-step
		h.send("2\r\n:\n\r\n0\r\n\r\n")
	})
	s := f.register(w, "a")
	s.place("alice")
	c := f.ask("GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n")
	resp := c.answer("GET")

	n, err := f.store.Release(t.Context(), []wire.Release{{SessionID: s.SessionID, Namespace: counters_, ID: "alice"}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	f.pb.leases.round(t.Context())
	next := f.register(w, "a")
	require.NotEqual(t, s.SessionID, next.SessionID)
	f.pb.leases.round(t.Context())
	f.pb.leases.round(t.Context())

	step <- struct{}{}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, ":\n", string(body))

	// New requests go to the new session.
	get, _ := f.get("/counters/alice/x")
	require.Equal(t, 200, get.StatusCode)
	w.seen()[1].claims(next)

	// The successor's end is the end.
	c = f.ask("GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n")
	resp = c.answer("GET")
	require.NoError(t, f.store.Deregister(t.Context(), next.SessionID))
	_, err = io.ReadAll(resp.Body)
	require.Error(t, err)
	step <- struct{}{}
}
