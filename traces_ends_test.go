package pinboard

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireEnd checks how a request and its one attempt ended: with an error, or else
// with what is no error, or with neither.
func (f *traced) requireEnd(fails, ends string) spansSeen {
	f.t.Helper()
	all := f.ended(3)
	for _, s := range []int{0, 2} {
		require.Equal(f.t, fails, failedAs(f.t, all[s]), all[s].Name())
		require.Equal(f.t, ends, attrs(all[s])["pinboard.end"], all[s].Name())
	}
	return all
}

// A worker that begins what it never ends by itself.
func endless(h *hit) {
	switch {
	case strings.HasSuffix(h.target, "/sse"):
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n:\n\r\n")
	case strings.HasSuffix(h.target, "/ws"):
		h.accept()
	}
	h.gone()
}

// begin opens a stream to alice.
func (f *traced) begin(kind string) *client {
	f.t.Helper()
	raw, status := "GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n", 200
	if kind == "ws" {
		raw, status = upgradeRequest("/counters/alice/ws"), 101
	}
	c := f.ask(raw)
	require.Equal(f.t, status, c.answer("GET").StatusCode)
	require.Eventually(f.t, func() bool { return len(f.spans.Ended()) == 1 }, patience, time.Millisecond)
	require.Len(f.t, f.spans.Started(), 3, "the stream is open, and so are its spans")
	return c
}

func TestASpanEndsWithItsStreamAndSaysWhy(t *testing.T) {
	t.Parallel()
	eachStream(t, func(t *testing.T, kind string, detach func(*setup)) {
		f := newTraced(t, detach)
		s := f.register(newFake(t, endless), "a")
		f.begin(kind)
		require.NoError(t, f.store.Deregister(t.Context(), s.SessionID))
		all := f.requireEnd("owner_ended", "")
		require.Equal(t, map[string]string{"sse": "200", "ws": "101"}[kind], attrs(all[0])["http.response.status_code"])
		require.Equal(t, "pinboard.proxy /counters", all[0].Name())

		f = newTraced(t, detach)
		f.register(newFake(t, endless), "a")
		f.begin(kind)
		require.NoError(t, f.pb.Close())
		f.requireEnd("", "node_stopping")

		f = newTraced(t, detach, func(s *setup) { s.opts.Limits.Silence = 100 * time.Millisecond })
		f.register(newFake(t, endless), "a")
		f.begin(kind)
		f.requireEnd("silent", "")
	})
}

// eachStream runs a test for both kinds of streams, and whether or not they go on
// apart from their requests.
func eachStream(t *testing.T, test func(t *testing.T, kind string, detach func(*setup))) {
	t.Helper()
	for _, kind := range []string{"sse", "ws"} {
		for name, apart := range map[string]bool{"": false, " apart": true} {
			t.Run(kind+name, func(t *testing.T) {
				t.Parallel()
				test(t, kind, func(s *setup) { s.opts.DetachStreams = apart })
			})
		}
	}
}

func TestAnAnswerThatIsWholeIsNoErrorOfASpan(t *testing.T) {
	t.Parallel()
	eachStream(t, func(t *testing.T, kind string, detach func(*setup)) {
		f := newTraced(t, detach)
		finish := make(chan struct{})
		f.register(newFake(t, func(h *hit) {
			h.last = true
			if kind == "ws" {
				h.accept()
				<-finish
				return
			}
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n:\n\r\n")
			<-finish
			h.send("0\r\n\r\n")
		}), "a")
		c := f.begin(kind)
		close(finish)
		if kind == "ws" { // the end of one side is passed on to the other
			_, _ = c.rest()
			require.NoError(t, c.Close())
		}
		f.requireEnd("", "")
	})
}

func TestTheEndOfAWebSocketByOneOfItsEndsIsNoError(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		f := newTraced(t, func(s *setup) { s.opts.DetachStreams = apart })
		f.register(newFake(t, endless), "a")
		require.NoError(t, f.begin("ws").Close())
		f.requireEnd("", "")
	}
}

func TestAClientThatLeavesIsNoErrorOfASpan(t *testing.T) {
	t.Parallel()
	f := newTraced(t, func(s *setup) { s.opts.DetachStreams = true })
	f.register(newFake(t, endless), "a")
	f.begin("sse").reset()
	f.requireEnd("", "client_gone")
	f = newTraced(t)
	f.register(newFake(t, endless), "a")
	f.begin("sse").reset()
	f.requireEnd("", "client_gone")
	c := f.ask("GET /counters/alice/never HTTP/1.1\r\nHost: p\r\n\r\n")
	require.Eventually(t, func() bool { return len(f.spans.Started()) == 3 }, patience, time.Millisecond)
	c.reset()
	all := f.requireEnd("", "client_gone")
	require.NotContains(t, attrs(all[0]), "http.response.status_code", "nobody has got one")
}

func TestWhyAWorkerHasNotAnsweredIsTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		worker func(*hit)
		change func(*setup)
		status string
	}{
		"connection_lost":  {worker: func(h *hit) { h.last = true }, status: "502"},
		"malformed_answer": {worker: func(h *hit) { h.send("HTTP/1.1 99 X\r\n\r\n") }, status: "502"},
		"timeout": {
			worker: func(h *hit) { h.gone() }, status: "504",
			change: func(s *setup) { s.opts.Limits.AnswerTimeout = 20 * time.Millisecond },
		},
		"no_connection": {status: "503"},
	} {
		if c.change == nil {
			c.change = func(*setup) {}
		}
		f := newTraced(t, c.change)
		w := &fake{addr: silentAddr(t)}
		if c.worker != nil {
			w = newFake(t, c.worker)
		}
		f.register(w, "a")
		resp, _ := f.post("/counters/alice", "x")
		all := f.ended(3)
		for name == "timeout" && resp.StatusCode == 503 { // nothing was sent in that time
			resp, _ = f.post("/counters/alice", "x")
			all = f.ended(3)
		}
		require.Equal(t, name, failedAs(t, all[2]))
		require.Equal(t, c.status, failedAs(t, all[0]), name)
		require.NotEmpty(t, all[0].Status().Description)
	}
	f := newTraced(t)
	f.register(newFake(t, func(h *hit) { h.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"); h.last = true }), "a")
	_, err := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").rest()
	_ = err
	f.requireEnd("connection_lost", "")
}

// silentAddr is where nobody listens.
func silentAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}
