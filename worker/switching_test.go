package worker

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
)

// counting is a writer of many a middleware's: without Unwrap, and without Hijack.
type counting struct {
	http.ResponseWriter
	statuses *record
}

func (w counting) WriteHeader(status int) {
	w.statuses.add("%d", status)
	w.ResponseWriter.WriteHeader(status)
}

// lying is a writer that has a Hijack method, and nothing to call by it.
type lying struct{ http.ResponseWriter }

func (lying) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errors.New("not here") }

func (w lying) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// byHand answers 101 and leaves it at that.
func byHand(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", "websocket")
	w.WriteHeader(http.StatusSwitchingProtocols)
	_, _ = w.Write([]byte("frames"))
	_ = http.NewResponseController(w).Flush()
}

// byLibrary answers as a library for WebSockets does: first 101, then Hijack.
func byLibrary(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err == nil {
		_ = c.CloseNow()
	}
}

// byHijack takes the connection first, as other libraries do, and says nothing of
// having failed.
func byHijack(w http.ResponseWriter, _ *http.Request) {
	_, _, _ = http.NewResponseController(w).Hijack()
}

func upgradeOf(h *harness, path string) *http.Request {
	r := h.outgoing(h.t.Context(), path)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(name, value)
	}
	return r
}

// After a 101, what a client sends goes to the worker's server unread: if it still had
// the connection, it would take that for requests, to routes that are not pinboard's.
func TestA101LeavesOnlyWithItsConnection(t *testing.T) {
	t.Parallel()
	var statuses record
	wraps := func(wrap func(http.ResponseWriter) http.ResponseWriter) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(wrap(w), r) })
		}
	}
	counts := wraps(func(w http.ResponseWriter) http.ResponseWriter { return counting{w, &statuses} })
	lies := wraps(func(w http.ResponseWriter) http.ResponseWriter { return lying{w} })
	const noUnwrap = "a connection cannot be handed over, so WebSockets are not possible: " +
		"the ResponseWriter of a middleware, or of what is around the worker, has no Unwrap method"
	const left = "a handler answered 101 and did not take the connection over"
	const lied = "a connection was not handed over after a 101"
	for name, tc := range map[string]struct {
		middleware, around func(http.Handler) http.Handler
		handler            http.HandlerFunc
		logged             string
		cut                bool // instead of a 500
	}{
		"a middleware's writer, a library":    {middleware: counts, handler: byLibrary, logged: noUnwrap},
		"a middleware's writer, by hand":      {middleware: counts, handler: byHand, logged: noUnwrap},
		"a middleware's writer, Hijack first": {middleware: counts, handler: byHijack, logged: noUnwrap},
		"around the worker, a library":        {around: counts, handler: byLibrary, logged: noUnwrap},
		"around the worker, by hand":          {around: counts, handler: byHand, logged: noUnwrap},
		"around the worker, Hijack first":     {around: counts, handler: byHijack, logged: noUnwrap},
		"around both, a library":              {around: counts, middleware: wraps(func(w http.ResponseWriter) http.ResponseWriter { return w }), handler: byLibrary, logged: noUnwrap},
		"by hand":                             {handler: byHand, logged: left},
		"a middleware, by hand": {
			middleware: func(http.Handler) http.Handler { return http.HandlerFunc(byHand) }, handler: byLibrary, logged: left,
		},
		"a middleware, by hand behind one":    {around: counts, middleware: func(http.Handler) http.Handler { return http.HandlerFunc(byHand) }, handler: byLibrary, logged: noUnwrap},
		"a Hijack that fails, a library":      {around: lies, handler: byLibrary, logged: lied, cut: true},
		"a middleware whose Hijack fails":     {middleware: lies, handler: byLibrary, logged: lied, cut: true},
		"a Hijack that fails, and no attempt": {around: lies, handler: byHand, logged: left},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, Options{}, nil)
				defer h.stop()
				require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: tc.middleware},
					serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) { tc.handler(w, r) })))
				h.start()
				l, handler := newPipeListener(), http.Handler(h.w)
				if tc.around != nil {
					handler = tc.around(handler)
				}
				server := &http.Server{Handler: handler}
				go func() { _ = server.Serve(l) }()
				defer server.Close()
				conn, err := l.dial(t.Context(), "", "")
				require.NoError(t, err)
				defer conn.Close()
				r := upgradeOf(h, "/c/1")
				require.NoError(t, r.Write(conn))
				res, err := http.ReadResponse(bufio.NewReader(conn), r)
				if tc.cut {
					require.Error(t, err)
				} else {
					require.NoError(t, err)
					require.Equal(t, http.StatusInternalServerError, res.StatusCode)
					require.Empty(t, res.Header.Get("Upgrade"))
					require.JSONEq(t, `{"detail": "WebSockets are not possible here"}`, read(t, res, nil))
				}
				lines := h.logs.FilterLevelExact(zapcore.ErrorLevel).All()
				require.Len(t, lines, 1)
				require.Equal(t, tc.logged, lines[0].Message)
				require.Equal(t, "/c/1", lines[0].ContextMap()["instance"])
				if tc.logged == noUnwrap {
					require.Equal(t, "worker.counting", lines[0].ContextMap()["writer"])
				}
			})
		})
	}
	t.Cleanup(func() { require.NotContains(t, statuses.all(), "101") })
}

// A call in process has a server, too: it believes what its requests say of who calls.
func TestACallInProcessGetsNo101WithoutItsConnection(t *testing.T) {
	t.Parallel()
	inCluster(t, func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		if inst.ID() == "b" && r.Header.Get("Upgrade") != "" {
			byHand(w, r)
		}
	}, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		call := upgradeOf(c.harness, "/")
		call.URL.Host, call.URL.Path = clusterHost, "/c/b"
		res, err := a.Client().Do(call)
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusInternalServerError, res.StatusCode) // else there may be no end
		require.JSONEq(t, `{"detail": "WebSockets are not possible here"}`, read(t, res, nil))
		require.Empty(t, c.seen(), "it was answered here")
	})
}

// A middleware's writer that can be unwrapped sees the 101, and lets it through.
func TestA101PassesAWriterWithUnwrap(t *testing.T) {
	t.Parallel()
	var statuses record
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		defer h.stop()
		counts := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(struct {
					counting
					unwrapper
				}{counting{w, &statuses}, unwrapper{w}}, r)
			})
		}
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: counts},
			serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) { byLibrary(w, r) })))
		h.start()
		res, err := h.network().Do(upgradeOf(h, "/c/1"))
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
		require.Equal(t, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", res.Header.Get("Sec-WebSocket-Accept"))
		require.Equal(t, []string{fmt.Sprint(http.StatusSwitchingProtocols)}, statuses.all())
	})
}

type unwrapper struct{ below http.ResponseWriter }

func (u unwrapper) Unwrap() http.ResponseWriter { return u.below }
