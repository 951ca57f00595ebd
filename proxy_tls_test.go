package pinboard

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/testcert"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// realWorker is a worker on net/http that holds what a client holds: it answers
// probes, takes upgrades and tells how it was reached.
type realWorker struct {
	t      *testing.T
	url    string
	client string
	secret string

	mu               sync.Mutex
	challenge, value string
	reached          []string // protocol and path of each request
}

// newRealWorker starts a worker whose server the test may change before.
func newRealWorker(t *testing.T, client string, change func(*httptest.Server)) *realWorker {
	t.Helper()
	w := &realWorker{t: t, client: client, secret: "planted-secret-of-" + client}
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if change == nil {
		server.Start()
	} else {
		change(server)
	}
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// overTLS starts a server with a certificate, and with HTTP/2 for who asks.
func overTLS(config *tls.Config) func(*httptest.Server) {
	return func(s *httptest.Server) {
		s.TLS, s.EnableHTTP2 = config, true
		s.StartTLS()
	}
}

func (w *realWorker) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.reached = append(w.reached, r.Proto+" "+r.URL.Path)
	challenge, value := w.challenge, w.value
	w.mu.Unlock()
	switch {
	case r.URL.Path == wire.PathChallenge:
		if r.Header.Get(wire.HeaderProxySecret) != w.secret || r.URL.Query().Get("challenge") != challenge {
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = fmt.Fprintf(rw, `{"value":%q}`, value)
	case r.Header.Get("Upgrade") != "":
		conn, buffered, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			rw.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	default:
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(rw, "%s:%s", r.Method, body)
	}
}

// seen returns what reached the worker.
func (w *realWorker) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.reached...)
}

func (w *realWorker) fresh() (challenge, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.challenge = fmt.Sprintf("challenge-%d", len(w.reached))
	w.value = "planted-value-for-" + w.challenge
	return w.challenge, w.value
}

const asWorker = "Authorization: Bearer " + tokenWorker

// register registers over HTTP.
func (w *realWorker) register(f *front) (*http.Response, map[string]any) {
	challenge, value := w.fresh()
	return f.tell("/registry/register", fields{
		"clientId": w.client, "secret": w.secret, "namespaces": []string{counters_}, "advertiseUrl": w.url,
		"headroom": 10, "draining": false, "challenge": challenge, "challengeValue": value,
	})
}

func (w *realWorker) heartbeat(f *front, session any) (*http.Response, map[string]any) {
	challenge, value := w.fresh()
	return f.tell("/registry/heartbeat", fields{
		"sessionId": session, "headroom": 10, "draining": false, "challenge": challenge, "challengeValue": value,
	})
}

func (f *front) tell(path string, body fields) (*http.Response, map[string]any) {
	f.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(f.t, err)
	resp, answer := f.post(path, string(text), asWorker)
	var object map[string]any
	require.NoError(f.t, json.Unmarshal([]byte(answer), &object), answer)
	return resp, object
}

// reaches has everything that pinboard calls on a worker called, and requires
// that it works: both probes, requests with and without a body, an upgrade.
func (f *front) reaches(w *realWorker) {
	f.t.Helper()
	resp, answer := w.register(f)
	require.Equal(f.t, http.StatusOK, resp.StatusCode, answer)
	resp, beat := w.heartbeat(f, answer["sessionId"])
	require.Equal(f.t, http.StatusOK, resp.StatusCode, beat)
	require.Nil(f.t, beat["degraded"])
	for range 2 { // the second on a connection that is kept
		resp, body := f.get("/counters/alice")
		require.Equal(f.t, http.StatusOK, resp.StatusCode, body)
		require.Equal(f.t, "GET:", body)
	}
	resp, body := f.post("/counters/alice", "text")
	require.Equal(f.t, http.StatusOK, resp.StatusCode, body)
	require.Equal(f.t, "POST:text", body)
	c := f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(f.t, http.StatusSwitchingProtocols, c.answer("GET").StatusCode)
	c.send("there and back")
	c.expect("there and back")
	require.NoError(f.t, c.Close())
	require.Len(f.t, w.seen(), 6)
}

// registryFront is a front with the passport of the registry's tests, and what
// it logs.
func registryFront(t *testing.T, changes ...func(*setup)) (*front, *observer.ObservedLogs) {
	t.Helper()
	keys, err := passport.Parse([]byte(regPassport), nil)
	require.NoError(t, err)
	core, logs := observer.New(zap.DebugLevel)
	return newFront(t, append([]func(*setup){withPassport(keys), func(s *setup) { s.opts.Logger = zap.New(core) }}, changes...)...), logs
}

func withTransport(model *http.Transport) func(*setup) {
	return func(s *setup) { s.opts.Transport = model }
}

// said returns all that was logged, in one text.
func said(logs *observer.ObservedLogs) string {
	var b strings.Builder
	for _, entry := range logs.All() {
		fmt.Fprintln(&b, entry.Message, entry.ContextMap())
	}
	return b.String()
}

func TestPinboardAndWorkersKnowEachOtherByTheirCertificates(t *testing.T) {
	t.Parallel()
	workers, nodes := testcert.NewAuthority(t), testcert.NewAuthority(t)
	w := newRealWorker(t, "a", overTLS(&tls.Config{
		Certificates: []tls.Certificate{workers.Issue("127.0.0.1")},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: nodes.Pool(),
	}))
	f, logs := registryFront(t, withTransport(&http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: workers.Pool(), Certificates: []tls.Certificate{nodes.Issue("node")},
	}}))
	f.reaches(w)
	require.NotContains(t, said(logs), "planted")
}

// Also a name that is dialled by its address is proven by its name.
func TestAWorkersCertificateIsForTheHostThatItAdvertises(t *testing.T) {
	t.Parallel()
	workers := testcert.NewAuthority(t)
	w := newRealWorker(t, "a", overTLS(&tls.Config{Certificates: []tls.Certificate{workers.Issue("localhost")}}))
	f, logs := registryFront(t, withTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: workers.Pool()}}))
	resp, _ := w.register(f)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "the certificate is not for 127.0.0.1")
	require.Contains(t, said(logs), "certificate")
	w.url = strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	f.reaches(w)
}

func TestAWorkerThatDoesNotProveItselfIsNotTalkedTo(t *testing.T) {
	t.Parallel()
	workers, others := testcert.NewAuthority(t), testcert.NewAuthority(t)
	trusting := &tls.Config{RootCAs: workers.Pool()}
	for name, c := range map[string]struct {
		serve  func(*httptest.Server)
		url    func(string) string
		reason string
	}{
		"another authority":   {serve: overTLS(&tls.Config{Certificates: []tls.Certificate{others.Issue("127.0.0.1")}}), reason: "unknown authority"},
		"another host":        {serve: overTLS(&tls.Config{Certificates: []tls.Certificate{workers.Issue("127.0.0.2", "localhost")}}), reason: "127.0.0.2"},
		"expired":             {serve: overTLS(&tls.Config{Certificates: []tls.Certificate{workers.IssueExpired("127.0.0.1")}}), reason: "expired"},
		"no common version":   {serve: overTLS(&tls.Config{Certificates: []tls.Certificate{workers.Issue("127.0.0.1")}, MaxVersion: tls.VersionTLS11}), reason: "protocol version"},
		"no TLS at all":       {url: func(u string) string { return strings.Replace(u, "http:", "https:", 1) }, reason: "TLS"},
		"a client's is asked": {serve: overTLS(&tls.Config{Certificates: []tls.Certificate{workers.Issue("127.0.0.1")}, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}), reason: "tls: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealWorker(t, "a", c.serve)
			if c.url != nil {
				w.url = c.url(w.url)
			}
			f, logs := registryFront(t, withTransport(&http.Transport{TLSClientConfig: trusting}))
			resp, answer := w.register(f)
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, answer)
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			require.Contains(t, answer["error"], "does not answer")
			require.Contains(t, said(logs), c.reason)

			// One that registered while it could prove itself.
			s := f.register(&fake{}, w.client, func(r *store.Registration) { r.AdvertiseURL = w.url })
			s.place("alice")
			for _, method := range []string{"GET", "POST"} {
				logs.TakeAll()
				resp, body := f.ask(method + " /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").whole(method)
				require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, body)
				require.NotEmpty(t, resp.Header.Get("Retry-After"))
				require.Contains(t, said(logs), c.reason)
			}
			require.Equal(t, http.StatusServiceUnavailable, f.ask(upgradeRequest("/counters/alice")).answer("GET").StatusCode)
			resp, answer = w.heartbeat(f, s.SessionID)
			require.Equal(t, http.StatusOK, resp.StatusCode, answer)
			require.Equal(t, true, answer["degraded"])
			require.Empty(t, w.seen(), "nothing was sent")
			require.NotContains(t, said(logs), "planted")
		})
	}
}

// Over HTTP/2 there are no upgrades, and one connection is shared by requests
// that must not know of each other.
func TestHTTP2IsNotSpokenToWorkers(t *testing.T) {
	t.Parallel()
	workers := testcert.NewAuthority(t)
	trust := func(t *http.Transport) *http.Transport {
		t.TLSClientConfig = &tls.Config{RootCAs: workers.Pool()}
		return t
	}
	standard := http.DefaultTransport.(*http.Transport)
	var only http.Protocols
	only.SetHTTP2(true)
	used := trust(standard.Clone())
	used.CloseIdleConnections() // has it settle what it speaks
	// Nothing of its own but a limit: net/http would give it settings for HTTP/2.
	bare := &http.Transport{MaxIdleConns: 3}
	_ = bare.Clone()
	bare.TLSClientConfig.RootCAs = workers.Pool()
	asking := trust(&http.Transport{})
	asking.TLSClientConfig.NextProtos = []string{"h2", "http/1.1"}
	for name, model := range map[string]*http.Transport{
		"plain": trust(&http.Transport{}), "standard": trust(standard.Clone()), "used": used, "bare": bare, "asking": asking,
		"forced": trust(&http.Transport{ForceAttemptHTTP2: true}), "only HTTP/2": trust(&http.Transport{Protocols: &only}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRealWorker(t, "a", overTLS(&tls.Config{Certificates: []tls.Certificate{workers.Issue("127.0.0.1")}}))
			f, _ := registryFront(t, withTransport(model))
			f.reaches(w)
			for _, request := range w.seen() {
				require.Contains(t, request, "HTTP/1.1 ")
			}
		})
	}
}

// A peer that takes the connection and says nothing holds a request, or a
// worker's call, only so long.
func TestATLSHandshakeWithASilentPeerIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }() // reads, and never answers
			return here, nil
		})
		n.awaitQuarantine("/a")
		w := n.workerAt("https://127.0.0.1:1")
		began := time.Now()
		n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
		require.Equal(t, probeTime, time.Since(began)) // virtual time
		w.record("/a")
		require.NoError(t, n.store.Activate(t.Context(), w.session))
		began = time.Now()
		require.Equal(t, http.StatusServiceUnavailable, n.get("/a/alice", "").status)
		require.Equal(t, tlsTimeout, time.Since(began))
	})
}

// A worker that offers TLS 1.3 learns of a missing client certificate after
// pinboard has sent its request, and so nobody knows whether it was read.
func TestAWorkerThatMissesTheNodesCertificateSeesNoRequest(t *testing.T) {
	t.Parallel()
	workers, nodes := testcert.NewAuthority(t), testcert.NewAuthority(t)
	w := newRealWorker(t, "a", overTLS(&tls.Config{
		Certificates: []tls.Certificate{workers.Issue("127.0.0.1")},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: nodes.Pool(),
	}))
	for name, certificates := range map[string][]tls.Certificate{"none": nil, "another authority's": {workers.Issue("node")}} {
		f, logs := registryFront(t, withTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: workers.Pool(), Certificates: certificates}}))
		resp, answer := w.register(f)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, "%s: %v", name, answer)
		require.Contains(t, said(logs), "tls: ", name)
		f.register(&fake{}, w.client, func(r *store.Registration) { r.AdvertiseURL = w.url }).place("alice")
		resp, _ = f.get("/counters/alice")
		require.Contains(t, []int{http.StatusBadGateway, http.StatusServiceUnavailable}, resp.StatusCode, name)
		require.Empty(t, w.seen(), name)
	}
}
