package pinboard

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// The credentials of these tests. Each text is looked for in everything that a
// node says.
const (
	tokenWorker   = "planted-token-worker"    // everything a worker may
	tokenHost     = "planted-token-host"      // only backends on 127.0.0.1
	tokenSome     = "planted-token-some"      // only namespaces /a…
	tokenBare     = "planted-token-bare"      // a worker's scope, no claims
	tokenOperator = "planted-token-operator"  // everything an operator may
	tokenViewer   = "planted-token-viewer"    // an operator who sees only /a…
	tokenNobody   = "planted-token-nobody"    // known, no scope
	tokenUnknown  = "planted-token-not-known" // not in the passport
)

const regPassport = `{"providers": [{"type": "staticToken", "id": "pinboard", "keys": [
  {"name": "worker", "token": "planted-token-worker", "scopes": ["pinboard:worker"],
   "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}},
  {"name": "host", "token": "planted-token-host", "scopes": ["pinboard:worker"],
   "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}},
  {"name": "some", "token": "planted-token-some", "scopes": ["pinboard:worker"],
   "claims": {"pinboard": {"namespaces": ["/a*"], "allowedBackendHosts": ["*"]}}},
  {"name": "bare", "token": "planted-token-bare", "scopes": ["pinboard:worker"]},
  {"name": "operator", "token": "planted-token-operator", "scopes": ["pinboard:operator"],
   "claims": {"pinboard": {"namespaces": ["*"]}}},
  {"name": "viewer", "token": "planted-token-viewer", "scopes": ["pinboard:operator"],
   "claims": {"pinboard": {"namespaces": ["/a*"]}}},
  {"name": "nobody", "token": "planted-token-nobody"}]}],
 "namespaces": {"*": {"allow": "anonymous"}}}`

// regNode is a pinboard under test, on the memory store behind a layer that can
// be told to fail.
type regNode struct {
	t     testing.TB
	pb    *Pinboard
	store *regStore
	dials atomic.Int64
	do    func(*http.Request) (*http.Response, error)
	url   string

	said    syncBuffer // logs, and every answer's head and body
	mu      sync.Mutex
	secrets []string
}

// regDial connects to a fake worker.
type regDial func(ctx context.Context, network, addr string) (net.Conn, error)

// newRegNode makes a node that is called without a socket, as works in a
// synctest bubble; dial, if not nil, replaces how its probes connect.
func newRegNode(t testing.TB, opts Options, dial regDial) *regNode {
	t.Helper()
	n := &regNode{t: t, url: "http://pinboard.test"}
	n.secrets = []string{"planted-token"}
	pass, err := passport.Parse([]byte(regPassport), nil)
	require.NoError(t, err)
	if opts.Passport == nil {
		opts.Passport = pass
	}
	if opts.Store == nil {
		opts.Store = MemoryStore()
	}
	if dial != nil {
		opts.Transport = &http.Transport{DialContext: dial}
	}
	opts.Logger = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), &n.said, zap.DebugLevel))
	n.store = &regStore{}
	opts.Store = &Store{backend: regBackend{opts.Store.backend, n.store}}
	n.pb, err = New(opts)
	require.NoError(t, err)
	n.pb.placer.back.begun = true // nobody is on his way back
	dial = n.pb.probe.dial
	n.pb.probe.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.dials.Add(1)
		return dial(ctx, network, addr)
	}
	n.do = func(r *http.Request) (*http.Response, error) {
		r.RemoteAddr = "192.0.2.1:4000"
		r.RequestURI = r.URL.RequestURI()
		rec := httptest.NewRecorder()
		n.pb.ServeHTTP(rec, r)
		return rec.Result(), nil
	}
	t.Cleanup(func() {
		require.NoError(t, n.pb.Shutdown(context.Background()))
		said := n.said.String()
		for _, secret := range n.secrets {
			require.NotContains(t, said, secret)
		}
	})
	return n
}

// serveRegNode makes a node behind a real server on 127.0.0.1.
func serveRegNode(t testing.TB, opts Options) *regNode {
	t.Helper()
	n := newRegNode(t, opts, nil)
	n.pb.probe.within, n.pb.probe.telling, n.pb.registry.within = patience, patience, 2*patience
	n.store.Store = patientStore{n.store.Store}
	server := httptest.NewServer(n.pb)
	client := &http.Client{Transport: &http.Transport{}}
	n.url, n.do = server.URL, client.Do
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
	})
	return n
}

func (n *regNode) plant(secret string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.secrets = append(n.secrets, secret)
}

// regAnswer is an answer, read to its end.
type regAnswer struct {
	status int
	header http.Header
	text   string
}

func (a regAnswer) into(t testing.TB, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.text), into), "%s", a.text)
}

// field returns a member of the answer's object, nil if it is not there.
func (a regAnswer) field(t testing.TB, name string) any {
	t.Helper()
	var object map[string]any
	a.into(t, &object)
	return object[name]
}

// call sends a request with a JSON body, or with the text if it is one.
func (n *regNode) call(method, path, token string, body any) regAnswer {
	n.t.Helper()
	a, err := n.try(context.Background(), method, path, token, body)
	require.NoError(n.t, err)
	return a
}

func (n *regNode) try(ctx context.Context, method, path, token string, body any) (regAnswer, error) {
	r, err := n.request(ctx, method, path, token, body)
	if err != nil {
		return regAnswer{}, err
	}
	res, err := n.do(r)
	if err != nil {
		return regAnswer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return regAnswer{}, err
	}
	_, _ = fmt.Fprintln(&n.said, res.StatusCode, res.Header, string(text))
	return regAnswer{res.StatusCode, res.Header, string(text)}, nil
}

func (n *regNode) request(ctx context.Context, method, path, token string, body any) (*http.Request, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, n.url+path, reader)
	if err == nil && token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r, err
}

func (n *regNode) get(path, token string) regAnswer {
	n.t.Helper()
	return n.call(http.MethodGet, path, token, nil)
}

func (n *regNode) post(path, token string, body any) regAnswer {
	n.t.Helper()
	return n.call(http.MethodPost, path, token, body)
}

// requireRefusal checks what holds for every error of pinboard's own: status,
// a JSON error that has the text, Retry-After on a 503, no-store.
func (a regAnswer) requireRefusal(t testing.TB, status int, has string) {
	t.Helper()
	require.Equal(t, status, a.status, a.text)
	message, _ := a.field(t, "error").(string)
	require.NotEmpty(t, message)
	require.Contains(t, message, has)
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	if status == http.StatusServiceUnavailable {
		require.Regexp(t, `^[1-9][0-9]*$`, a.header.Get("Retry-After"))
	}
	if status == http.StatusUnauthorized {
		require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
	}
}

// regWorker is a fake worker: it answers probes, and holds what the Python
// client holds.
type regWorker struct {
	n                   *regNode
	client, secret, url string
	probes              atomic.Int64
	session             string

	mu               sync.Mutex
	challenge, value string
	minted           int
	answer           http.HandlerFunc // instead of the worker's own
}

var regWorkers atomic.Int64

// worker makes a fake worker at an address of its own.
func (n *regNode) worker() *regWorker {
	w := n.workerAt("")
	server := httptest.NewServer(w)
	n.t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// workerAt makes a fake worker that somebody else serves at url.
func (n *regNode) workerAt(url string) *regWorker {
	number := regWorkers.Add(1)
	w := &regWorker{n: n, url: url, client: fmt.Sprintf("client%d", number), secret: fmt.Sprintf("planted-secret-%d", number)}
	n.plant("planted-secret")
	n.plant("planted-value")
	return w
}

func (w *regWorker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.probes.Add(1)
	w.mu.Lock()
	challenge, value, answer := w.challenge, w.value, w.answer
	w.mu.Unlock()
	switch {
	case answer != nil:
		answer(rw, r)
	case r.Header.Get("Pinboard-Proxy-Secret") != w.secret:
		http.Error(rw, `{"detail":"invalid proxy secret"}`, http.StatusForbidden)
	case r.Method != http.MethodGet, r.URL.Path != "/_pinned/challenge", r.URL.Query().Get("challenge") != challenge:
		http.Error(rw, `{"detail":"unknown challenge"}`, http.StatusNotFound)
	default:
		_, _ = fmt.Fprintf(rw, `{"value":%q}`, value)
	}
}

func (w *regWorker) answers(f http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = f
}

type fields map[string]any

func (w *regWorker) mint(body fields, changes []fields) fields {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.minted++
	w.challenge, w.value = fmt.Sprintf("challenge %d&x=y", w.minted), fmt.Sprintf("planted-value-%d", w.minted)
	body["challenge"], body["challengeValue"] = w.challenge, w.value
	for _, c := range changes {
		maps.Copy(body, c)
	}
	maps.DeleteFunc(body, func(_ string, v any) bool { return v == missing })
	return body
}

// missing takes a field out of a body.
var missing = new(int)

func (w *regWorker) registration(changes ...fields) fields {
	return w.mint(fields{
		"clientId": w.client, "secret": w.secret, "namespaces": []string{"/a"}, "advertiseUrl": w.url,
		"headroom": 10, "draining": false,
	}, changes)
}

func (w *regWorker) beat(changes ...fields) fields {
	return w.mint(fields{"sessionId": w.session, "headroom": 10, "draining": false}, changes)
}

// register registers and fails the test unless that works. It returns when the
// session is active.
func (w *regWorker) register(changes ...fields) regAnswer {
	w.n.t.Helper()
	a := w.n.post("/registry/register", tokenWorker, w.registration(changes...))
	require.Equal(w.n.t, http.StatusOK, a.status, a.text)
	w.session = a.field(w.n.t, "sessionId").(string)
	w.n.pb.registry.settled(w.n.t, w.client)
	return a
}

// settled waits until no registration of the client's is under way: its session is
// active then, which is shortly after the answer.
func (g *registry) settled(t testing.TB, client string) {
	t.Helper()
	require.Eventually(t, func() bool { return g.clients.waiting(client) == 0 }, patience, 100*time.Microsecond)
}

// waiting returns how many hold or wait for the key.
func (k *keyed) waiting(key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.locks[key]; l != nil {
		return l.users
	}
	return 0
}

func (w *regWorker) heartbeat(changes ...fields) regAnswer {
	w.n.t.Helper()
	return w.n.post("/registry/heartbeat", tokenWorker, w.beat(changes...))
}

// listed returns what operators see of the worker, nil if it is not there.
func (w *regWorker) listed() map[string]any {
	w.n.t.Helper()
	a := w.n.get("/registry/workers", tokenOperator)
	require.Equal(w.n.t, http.StatusOK, a.status, a.text)
	var list struct{ Workers []map[string]any }
	a.into(w.n.t, &list)
	var found map[string]any
	for _, one := range list.Workers {
		if one["clientId"] == w.client {
			require.Nil(w.n.t, found, "the worker is listed twice")
			found = one
		}
	}
	return found
}

// awaitQuarantine sees to it that ids of the namespace can be placed. It takes a
// lease of time: for bubbles only.
func (n *regNode) awaitQuarantine(namespace string) {
	n.t.Helper()
	n.workerAt("http://127.0.0.1:1").record(namespace)
	res, err := n.store.Resolve(context.Background(), n.ask(namespace, "first"))
	require.NoError(n.t, err)
	require.Equal(n.t, store.Quarantined, res.Outcome)
	time.Sleep(res.Left)
}

// record puts a session into the store, past the registry.
func (w *regWorker) record(namespaces ...string) {
	w.n.t.Helper()
	w.session = rand.Text()
	_, err := w.n.store.Register(context.Background(), store.Registration{
		SessionID: w.session, ClientID: w.client, Secret: wire.NewSecret(w.secret), Namespaces: namespaces,
		AdvertiseURL: w.url, BackendHosts: []string{"*"},
	})
	require.NoError(w.n.t, err)
}

func (n *regNode) ask(namespace, id string) store.Request {
	return store.Request{Namespace: namespace, ID: id, View: store.AnyView, BalanceFactor: 1}
}

// owner returns the session that has the id, placing the id if nobody has.
func (n *regNode) owner(namespace, id string) (session string, epoch int64) {
	n.t.Helper()
	res, err := n.store.Resolve(context.Background(), n.ask(namespace, id))
	require.NoError(n.t, err)
	require.Contains(n.t, []store.Outcome{store.Owned, store.Placed}, res.Outcome)
	return res.SessionID, res.Epoch
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) Sync() error { return nil }

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// at is a registration of the worker, for the store, at a name that stood for
// an address.
func (w *regWorker) at(url, addr string) store.Registration {
	return store.Registration{
		SessionID: w.session, ClientID: w.client, Secret: wire.NewSecret(w.secret), Namespaces: []string{"/a"},
		AdvertiseURL: url, BackendHosts: []string{"localhost"}, BackendAddr: addr,
	}
}

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}
