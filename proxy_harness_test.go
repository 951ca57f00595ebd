package pinboard

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// patience is how long a test waits for what must come: long, because machines
// are slow, and never waited for in full by a test that passes.
const patience = time.Minute

const counters_ = "/counters"

// front is a pinboard behind a real server, on a memory store that has no
// quarantine to wait for.
type front struct {
	t      *testing.T
	pb     *Pinboard
	store  store.Store
	server *http.Server
	addr   string
}

// setup is what a test may change about its front.
type setup struct {
	opts    Options
	store   func(store.Store) store.Store // wraps the directory
	server  http.Server
	handler func(http.Handler) http.Handler // wraps the pinboard
	listen  func(net.Listener, *http.Server) net.Listener
	// hasty has the node give up the store as soon as it does elsewhere.
	hasty bool
	// namespaces have no quarantine to wait for, besides counters_.
	namespaces []string
}

func newFront(t *testing.T, changes ...func(*setup)) *front {
	t.Helper()
	s := setup{opts: Options{
		Passport: anyone{}, Store: MemoryStore(), LeaseTTL: time.Hour,
		Logger: zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)),
	}}
	for _, change := range changes {
		change(&s)
	}
	if !s.hasty {
		s.opts.Store = &Store{backend: unhurried{s.opts.Store.backend}}
	}
	s.opts.Limits.DialTimeout = cmp.Or(s.opts.Limits.DialTimeout, patience)
	pb, err := New(s.opts)
	require.NoError(t, err)
	pb.placer.back.begun = true // nobody is on his way back
	if s.store != nil {
		pb.store = s.store(pb.store)
		pb.leases.store, pb.placer.store = pb.store, pb.store
	}
	pb.probe.within, pb.registry.within = patience, 2*patience
	f := &front{t: t, pb: pb, store: pb.store, server: &s.server}
	f.prime(s.opts, append(s.namespaces, counters_)...)
	var handler http.Handler = pb
	if s.handler != nil {
		handler = s.handler(handler)
	}
	s.server.Handler = handler
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f.addr = listener.Addr().String()
	if s.listen != nil {
		listener = s.listen(listener, &s.server)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if s.server.TLSConfig != nil {
			_ = s.server.ServeTLS(listener, "", "")
			return
		}
		_ = s.server.Serve(listener)
	}()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = s.server.Close() // clients that are still there leave
		require.NoError(t, pb.Shutdown(ctx))
		<-served
	})
	return f
}

// bothWays runs a test on fronts that keep streams with their requests, and on fronts
// that detach them.
func bothWays(t *testing.T, test func(t *testing.T, way func(*setup))) {
	t.Helper()
	for name, detach := range map[string]bool{"attached": false, "detached": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(s *setup) { s.opts.DetachStreams = detach })
		})
	}
}

// prime places something in each bucket of the test's namespaces, so that their
// quarantine is over.
func (f *front) prime(opts Options, namespaces ...string) {
	f.t.Helper()
	ctx, session := f.t.Context(), "prime-"+rand.Text()
	long := opts.Store.backend.Open(store.Config{Prefix: "pinboard", LeaseTTL: time.Hour, Shards: 1})
	hasty := opts.Store.backend.Open(store.Config{Prefix: "pinboard", LeaseTTL: time.Millisecond, Shards: 1})
	_, err := long.Register(ctx, store.Registration{
		SessionID: session, ClientID: "prime", Secret: wire.NewSecret("prime"), AdvertiseURL: "http://prime",
		Namespaces: namespaces, Headroom: 1,
	})
	require.NoError(f.t, err)
	require.NoError(f.t, long.Activate(ctx, session))
	for _, namespace := range namespaces {
		require.Eventually(f.t, func() bool {
			res, err := hasty.Resolve(ctx, store.Request{Namespace: namespace, ID: "prime", View: store.AnyView, BalanceFactor: 1})
			return err == nil && res.Outcome != store.Quarantined
		}, patience, time.Millisecond)
	}
	require.NoError(f.t, long.Deregister(ctx, session))
}

// session is a fake worker's registration.
type session struct {
	store.Registration
	f *front
}

// register registers the fake worker, as the client of the given name.
func (f *front) register(w *fake, client string, changes ...func(*store.Registration)) *session {
	f.t.Helper()
	s := &session{f: f, Registration: store.Registration{
		SessionID: "session-" + rand.Text(), ClientID: client, Secret: wire.NewSecret("planted secret of session " + client),
		Namespaces: []string{counters_}, AdvertiseURL: "http://" + w.addr, Headroom: 1e6,
	}}
	for _, change := range changes {
		change(&s.Registration)
	}
	_, err := f.store.Register(f.t.Context(), s.Registration)
	require.NoError(f.t, err)
	require.NoError(f.t, f.store.Activate(f.t.Context(), s.SessionID))
	return s
}

// place has the id placed on the session and returns its epoch.
func (s *session) place(id string) int64 {
	s.f.t.Helper()
	res, err := s.f.store.Resolve(s.f.t.Context(), store.Request{
		Namespace: counters_, ID: id, Preferred: s.SessionID, View: store.AnyView, BalanceFactor: 1e9,
	})
	require.NoError(s.f.t, err)
	require.Equal(s.f.t, s.SessionID, res.SessionID)
	return res.Epoch
}

func (f *front) url(path string) string { return "http://" + f.addr + path }

// dial opens a connection to the front, closed with the test.
func (f *front) dial() *client {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(f.t, conn.SetDeadline(time.Now().Add(patience)))
	return &client{t: f.t, Conn: conn, r: bufio.NewReader(conn)}
}

// ask sends raw bytes on a new connection and returns it.
func (f *front) ask(raw string) *client {
	f.t.Helper()
	c := f.dial()
	c.send(raw)
	return c
}

// get asks for a path and returns the answer and its body, read to the end.
func (f *front) get(path string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	return f.ask("GET " + path + " HTTP/1.1\r\nHost: p\r\nConnection: close\r\n" + lines(headers) + "\r\n").whole("GET")
}

// post sends a body and returns the answer and its body.
func (f *front) post(path, body string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	return f.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(body)) +
		"\r\n" + lines(headers) + "\r\n" + body).whole("POST")
}

func lines(headers []string) string {
	var b strings.Builder
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	return b.String()
}

// client is one raw connection to the front.
type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (c *client) send(raw string) {
	c.t.Helper()
	_, err := io.WriteString(c.Conn, raw)
	require.NoError(c.t, err)
}

// answer reads the head of the next answer, informational ones too.
func (c *client) answer(method string) *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	require.NoError(c.t, err)
	return resp
}

// whole reads an answer to its end, which must be in order.
func (c *client) whole(method string) (*http.Response, string) {
	c.t.Helper()
	resp := c.answer(method)
	body, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return resp, string(body)
}

// rest reads until the connection ends and returns what came and the error
// that is not io.EOF. That it does not end is a failure.
func (c *client) rest() (string, error) {
	b, err := io.ReadAll(c.r)
	assert.NotErrorIs(c.t, err, os.ErrDeadlineExceeded)
	return string(b), err
}

// errorOf returns the message of a refusal of pinboard's own.
func errorOf(t *testing.T, body string) string {
	t.Helper()
	text, ok := strings.CutPrefix(strings.TrimSuffix(body, `"}`), `{"error":"`)
	require.True(t, ok, "not a refusal: %s", body)
	return text
}

// reset ends the connection with a reset.
func (c *client) reset() {
	c.t.Helper()
	require.NoError(c.t, c.Conn.(*net.TCPConn).SetLinger(0))
	require.NoError(c.t, c.Close())
}

// anyone is a passport that lets everybody in and knows some tokens.
type anyone struct {
	tokens map[string]*passport.Identity // by the value of Authorization
	refuse error
	fail   error
}

func (a anyone) Identify(_ context.Context, r *http.Request) (*passport.Identity, error) {
	if token := r.URL.Query().Get("access_token"); token != "" {
		return a.tokens[token], a.fail
	}
	return a.tokens[r.Header.Get("Authorization")], a.fail
}

func (a anyone) Admit(_ context.Context, _ string, who *passport.Identity) error {
	if who != nil {
		return nil
	}
	return a.refuse
}

func withPassport(p passport.Passport) func(*setup) { return func(s *setup) { s.opts.Passport = p } }

// stuck is a store that can be made to answer nothing but errors.
type stuck struct {
	store.Store
	mu  sync.Mutex
	err error
}

var errPlanted = errors.New("the store is out")

func (s *stuck) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *stuck) fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *stuck) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if err := s.fault(); err != nil {
		return store.Result{}, err
	}
	return s.Store.Resolve(ctx, r)
}

func (s *stuck) Session(ctx context.Context, id string) (store.Session, error) {
	if err := s.fault(); err != nil {
		return store.Session{}, err
	}
	return s.Store.Session(ctx, id)
}

func (s *stuck) Lookup(ctx context.Context, namespace, id string) (store.Row, error) {
	if err := s.fault(); err != nil {
		return store.Row{}, err
	}
	return s.Store.Lookup(ctx, namespace, id)
}

func (s *stuck) Candidates(ctx context.Context, namespace, id string) (store.View, error) {
	if err := s.fault(); err != nil {
		return store.View{}, err
	}
	return s.Store.Candidates(ctx, namespace, id)
}
