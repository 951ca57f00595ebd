package pinboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// holdBubble is a pinboard, its workers and its clients in virtual time: they
// meet over pipes. Leases run for 15 s and are not renewed.
type holdBubble struct {
	t        *testing.T
	pb       *Pinboard
	store    store.Store
	asked    *counting
	front    *pipeListener
	client   *http.Client
	mu       sync.Mutex
	machines map[string]*pipeListener // by address
	dialling func(ctx context.Context) error
}

// counting is a store that counts look-ups, and may be in quarantine again.
type counting struct {
	store.Store
	resolves atomic.Int64
	wiped    atomic.Bool
}

func (c *counting) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	c.resolves.Add(1)
	if c.wiped.Load() {
		return store.Result{Outcome: store.Quarantined, Left: 15 * time.Second}, nil
	}
	return c.Store.Resolve(ctx, r)
}

// inHoldBubble runs f on a node that holds requests for 5 s, if change does not
// say otherwise, and whose quarantine is over.
func inHoldBubble(t *testing.T, change func(*Options), f func(t *testing.T, b *holdBubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newHoldBubble(t, change)
		b.settle()
		f(t, b)
	})
}

func newHoldBubble(t *testing.T, change func(*Options)) *holdBubble {
	t.Helper()
	b := &holdBubble{t: t, front: newPipeListener(), machines: map[string]*pipeListener{}}
	opts := Options{Passport: anyone{}, Store: MemoryStore(), PlacementHold: 5 * time.Second, Transport: &http.Transport{DialContext: b.dial}}
	if change != nil {
		change(&opts)
	}
	var err error
	b.pb, err = New(opts)
	require.NoError(t, err)
	b.pb.placer.back.begun = true // nobody is on his way back
	b.asked = &counting{Store: b.pb.store}
	b.store = b.asked
	b.pb.store, b.pb.leases.store, b.pb.placer.store = b.asked, b.asked, b.asked
	server := &http.Server{Handler: b.pb}
	go func() { _ = server.Serve(b.front) }()
	b.client = &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return b.front.dial(ctx) },
		DisableKeepAlives: true,
	}}
	t.Cleanup(func() {
		_ = server.Close()
		time.Sleep(time.Second) // it waits for half of that behind a "Connection: close", for nobody
		require.NoError(t, b.pb.Shutdown(context.Background()))
		require.Zero(t, b.held())
		require.Empty(t, b.pb.holds.ids)
	})
	return b
}

// settle waits the quarantine out.
func (b *holdBubble) settle() {
	b.t.Helper()
	w := b.worker("prime", nil)
	_, err := b.store.Resolve(b.t.Context(), store.Request{Namespace: counters_, ID: "prime", View: store.AnyView, BalanceFactor: 1})
	require.NoError(b.t, err)
	w.end()
	time.Sleep(b.pb.opts.LeaseTTL)
	w = b.worker("prime", nil)
	w.place("prime")
	w.end()
	b.asked.resolves.Store(0)
}

// dial connects the node to a worker.
func (b *holdBubble) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	b.mu.Lock()
	machine, dialling := b.machines[addr], b.dialling
	b.mu.Unlock()
	if dialling != nil {
		if err := dialling(ctx); err != nil {
			return nil, err
		}
	}
	if machine == nil {
		return nil, syscall.ECONNREFUSED
	}
	return machine.dial(ctx)
}

func (b *holdBubble) held() int64 { return b.pb.counters.held.Load() }

// holdWorker is a worker's session, and the machine that it runs on.
type holdWorker struct {
	*session
	b    *holdBubble
	addr string
	hits atomic.Int64
	stop func()
}

// worker starts a worker and registers it. A nil handler answers with its name.
func (b *holdBubble) worker(name string, handler http.HandlerFunc, changes ...func(*store.Registration)) *holdWorker {
	b.t.Helper()
	w := &holdWorker{b: b, addr: name + ":80"}
	if handler == nil {
		handler = func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = io.WriteString(rw, name+string(body))
		}
	}
	w.listen(func(rw http.ResponseWriter, r *http.Request) {
		w.hits.Add(1)
		handler(rw, r)
	})
	w.session = (&front{t: b.t, pb: b.pb, store: b.store}).register(&fake{addr: w.addr}, name, changes...)
	return w
}

// listen has the worker's machine accept connections.
func (w *holdWorker) listen(handler http.HandlerFunc) {
	listener := newPipeListener()
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }()
	w.b.mu.Lock()
	w.b.machines[w.addr] = listener
	w.b.mu.Unlock()
	w.stop = sync.OnceFunc(func() {
		w.b.mu.Lock()
		delete(w.b.machines, w.addr)
		w.b.mu.Unlock()
		_ = server.Close()
	})
	w.b.t.Cleanup(w.stop)
}

// end deregisters the worker.
func (w *holdWorker) end() {
	require.NoError(w.b.t, w.b.store.Deregister(context.Background(), w.SessionID))
}

// release gives an id back.
func (w *holdWorker) release(id string) {
	w.b.t.Helper()
	n, err := w.b.store.Release(context.Background(), []wire.Release{{SessionID: w.SessionID, Namespace: counters_, ID: id}})
	require.NoError(w.b.t, err)
	require.Equal(w.b.t, 1, n)
}

// reply is what a client has got, or is still to get.
type reply struct {
	done   chan struct{}
	leave  context.CancelFunc
	after  time.Duration
	status int
	header http.Header
	body   string
	err    error
}

// send sends a request, and does not wait for the answer.
func (b *holdBubble) send(method, path, body string, headers ...string) *reply {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &reply{done: make(chan struct{}), leave: cancel}
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://pinboard"+path, content)
	require.NoError(b.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	began := time.Now()
	go func() {
		defer close(r.done)
		defer cancel()
		res, err := b.client.Do(req)
		if err == nil {
			var text []byte
			r.status, r.header = res.StatusCode, res.Header
			if res.StatusCode != http.StatusSwitchingProtocols {
				text, err = io.ReadAll(res.Body)
			}
			_ = res.Body.Close()
			r.body = string(text)
		}
		r.after, r.err = time.Since(began), err
	}()
	return r
}

func (b *holdBubble) get(id string) *reply { return b.send("GET", "/counters/"+id, "") }

// requireStatus waits for the answer.
func (r *reply) requireStatus(t *testing.T, status int) *reply {
	t.Helper()
	<-r.done
	require.NoError(t, r.err)
	require.Equal(t, status, r.status, r.body)
	if status == http.StatusServiceUnavailable {
		require.NotEmpty(t, r.header.Get("Retry-After"))
	}
	require.Empty(t, r.header.Get(wire.HeaderRefusal))
	return r
}

// requireWaits lets all come to rest and checks that the request is held.
func (r *reply) requireWaits(b *holdBubble) *reply {
	b.t.Helper()
	synctest.Wait()
	select {
	case <-r.done:
		require.Fail(b.t, "answered at once", "%d %s %v", r.status, r.body, r.err)
	default:
	}
	require.Positive(b.t, b.held())
	return r
}

// requireAtOnce checks that the answer has come without a wait.
func (r *reply) requireAtOnce(t *testing.T, status int) *reply {
	t.Helper()
	r.requireStatus(t, status)
	require.Less(t, r.after, firstPause/2)
	return r
}

// requireSoonAfter checks that the answer came when the id became free, give or
// take one pause between look-ups.
func (r *reply) requireSoonAfter(t *testing.T, wait time.Duration) *reply {
	t.Helper()
	r.requireStatus(t, http.StatusOK)
	require.GreaterOrEqual(t, r.after, wait)
	require.LessOrEqual(t, r.after, wait+lastPause*5/4+firstPause)
	return r
}

func withHold(limit time.Duration) func(*Options) {
	return func(o *Options) { o.PlacementHold = limit }
}

// refusing answers as a Go worker that refuses an id.
func refusing(reason string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set(wire.HeaderRefusal, reason)
		http.Error(rw, "refused: "+reason, http.StatusServiceUnavailable)
	}
}

// failing answers with a worker's error.
func failing(status int, detail string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, `{"detail":"`+detail+`"}`)
	}
}

// recorded is a ResponseWriter that keeps what is written.
type recorded struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorded) Header() http.Header         { return r.header }
func (r *recorded) WriteHeader(status int)      { r.status = status }
func (r *recorded) Write(p []byte) (int, error) { return r.body.Write(p) }
