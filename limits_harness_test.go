package pinboard

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/store"
)

// limited is a node, a worker and raw clients in virtual time. The worker's lease
// runs for an hour and is not renewed.
type limited struct {
	t      *testing.T
	pb     *Pinboard
	store  store.Store
	front  *memnet.Listener
	worker *fake
}

// inLimits runs f on a node with these limits, all of whose ids are the worker's.
func inLimits(t *testing.T, limits Limits, handler func(*hit), f func(t *testing.T, b *limited)) {
	t.Helper()
	inBubble(t, Options{Limits: limits}, handler, f)
}

// inLimitsBothWays is inLimits on a node that keeps streams with their requests, and
// then on one that detaches them.
func inLimitsBothWays(t *testing.T, limits Limits, handler func(*hit), f func(t *testing.T, b *limited)) {
	t.Helper()
	for _, detach := range []bool{false, true} {
		inBubble(t, Options{Limits: limits, DetachStreams: detach}, handler, f)
	}
}

func inBubble(t *testing.T, opts Options, handler func(*hit), f func(t *testing.T, b *limited)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newLimited(t, opts, handler)) })
}

func newLimited(t *testing.T, opts Options, handler func(*hit)) *limited {
	t.Helper()
	back := memnet.NewListener()
	b := &limited{t: t, front: memnet.NewListener(), worker: &fake{
		t: t, addr: "worker:80", handler: handler, listener: back, conns: map[net.Conn]struct{}{},
	}}
	b.worker.serving.Go(func() { b.worker.accept(back) })
	opts.Passport, opts.Store, opts.LeaseTTL = anyone{}, MemoryStore(), time.Hour
	if opts.Transport == nil {
		opts.Transport = &http.Transport{}
	}
	if opts.Transport.DialContext == nil {
		opts.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return back.Dial(ctx) }
	}
	var err error
	b.pb, err = New(opts)
	require.NoError(t, err)
	b.pb.placer.back.begun = true // nobody is on his way back
	b.store = b.pb.store
	b.settle()
	server := &http.Server{Handler: b.pb, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = server.Serve(b.front) }()
	t.Cleanup(func() {
		b.worker.stop()
		_ = server.Close()
		time.Sleep(time.Second) // it waits for half of that behind a "Connection: close", for nobody
		require.NoError(t, b.pb.Shutdown(context.Background()))
		for _, in := range []interface{ Use() (int, int) }{b.pb.limiter.requests, b.pb.limiter.ids} {
			total, keys := in.Use()
			require.Zero(t, total)
			require.Zero(t, keys)
		}
		require.Zero(t, b.pb.limiter.replay.Load())
		require.Zero(t, b.pb.counters.proxying.Load())
	})
	return b
}

// settle waits the quarantine out and registers the worker.
func (b *limited) settle() {
	b.t.Helper()
	f := &front{t: b.t, pb: b.pb, store: b.store}
	register := func() *session { return f.register(b.worker, "worker") }
	register()
	_, err := b.store.Resolve(b.t.Context(), store.Request{Namespace: counters_, ID: "prime", View: store.AnyView, BalanceFactor: 1})
	require.NoError(b.t, err)
	time.Sleep(b.pb.opts.LeaseTTL)
	register()
}

// ask sends raw bytes on a new connection and returns it.
func (b *limited) ask(raw string) *client {
	b.t.Helper()
	conn, err := b.front.Dial(b.t.Context())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	c := &client{t: b.t, Conn: conn, r: bufio.NewReader(conn)}
	c.send(raw)
	return c
}

// works shows that the node goes on serving, with an id of its own.
func (b *limited) works() {
	b.t.Helper()
	resp, body := b.ask("GET /counters/works HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
	require.Equal(b.t, http.StatusOK, resp.StatusCode)
	require.Equal(b.t, "works", body)
}

// or answers what works asks for, and leaves the rest to another handler.
func or(handler func(*hit)) func(*hit) {
	return func(h *hit) {
		if h.target == "/counters/works" {
			h.ok("works")
			return
		}
		handler(h)
	}
}
