package ui_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

const (
	tokenWorker   = "planted-token-of-workers"
	tokenOperator = "planted-token-of-operators"
	tokenClient   = "planted-token-of-clients" // known, but no operator's
	tokenSome     = "planted-token-of-some"    // sees /docs alone
)

const document = `{"providers": [{"type": "staticToken", "id": "p", "keys": [
	{"name": "w", "token": "` + tokenWorker + `", "scopes": ["pinboard:worker"], "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}},
	{"name": "o", "token": "` + tokenOperator + `", "scopes": ["pinboard:operator"], "claims": {"pinboard": {"namespaces": ["*"]}}},
	{"name": "s", "token": "` + tokenSome + `", "scopes": ["pinboard:operator"], "claims": {"pinboard": {"namespaces": ["/docs"]}}},
	{"name": "c", "token": "` + tokenClient + `", "scopes": []}]}],
	"namespaces": {"*": {"allow": "anonymous"}}}`

// lease is short, so that one can be waited for.
const lease = 2 * time.Second

// cookiePassport knows an operator by a cookie, as a host's own may.
type cookiePassport struct {
	passport.Passport
	revoked *atomic.Bool // nobody is known any more
}

func (p cookiePassport) Identify(ctx context.Context, r *http.Request) (*passport.Identity, error) {
	if p.revoked.Load() {
		return nil, nil
	}
	if cookie, err := r.Cookie("host"); err == nil && cookie.Value == "operator" {
		return &passport.Identity{
			Provider: "host", Subject: "ann", Scopes: []string{passport.ScopeOperator}, Ambient: true,
			Claims: map[string]any{"pinboard": map[string]any{"namespaces": []any{"*"}}},
		}, nil
	}
	return p.Passport.Identify(ctx, r)
}

// site is a pinboard in a host's server.
type site struct {
	t      *testing.T
	server *httptest.Server
	url    string // of pinboard, its base path included
	cut    atomic.Bool
	// revoked has it know nobody.
	revoked atomic.Bool

	mu       sync.Mutex
	requests []string // what was asked for, with everything but the headers
}

type siteOptions struct {
	base  string // where the host's mux has it, "" for the root
	tls   bool
	store *pinboard.Options // Store, or Redis. Default: memory
}

func newSite(t *testing.T, opts siteOptions) *site {
	t.Helper()
	standard, err := passport.Parse([]byte(document), nil)
	require.NoError(t, err)
	options := pinboard.Options{Store: pinboard.MemoryStore()}
	if opts.store != nil {
		options = *opts.store
	}
	s := &site{t: t}
	options.Passport, options.LeaseTTL = cookiePassport{standard, &s.revoked}, lease
	pb, err := pinboard.New(options)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle(opts.base+"/", http.StripPrefix(opts.base, pb))
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cut.Load() {
			panic(http.ErrAbortHandler)
		}
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.Host+" "+r.RequestURI+" "+r.Referer())
		s.mu.Unlock()
		mux.ServeHTTP(w, r)
	}))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // of connections that were cut
	if opts.tls {
		s.server.StartTLS()
	} else {
		s.server.Start()
	}
	s.url = s.server.URL + opts.base
	t.Cleanup(func() {
		_ = pb.Close()
		s.server.CloseClientConnections()
		s.server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = pb.Shutdown(ctx)
	})
	return s
}

// lose has the server answer nobody, as if it was gone, until find.
func (s *site) lose() {
	s.cut.Store(true)
	s.server.CloseClientConnections()
}

func (s *site) find() { s.cut.Store(false) }

func (s *site) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

// call makes a call with a token and returns the answer's status and body.
func (s *site) call(method, path, token string, body any) (int, string) {
	s.t.Helper()
	var text []byte
	if body != nil {
		var err error
		text, err = json.Marshal(body)
		require.NoError(s.t, err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, bytes.NewReader(text))
	require.NoError(s.t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := s.server.Client().Do(r)
	require.NoError(s.t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, res.Body.Close())
	return res.StatusCode, string(answer)
}

// place asks for an id until some worker has served it, and returns which: its
// instances answer with their worker's name.
func (s *site) place(path string) (worker string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		status, body := s.call(http.MethodGet, path, "", nil)
		worker = body
		return status == http.StatusOK
	}, patience, 20*time.Millisecond, path)
	return worker
}

// member is a worker process, as far as pinboard can tell.
type member struct {
	url    string
	client string
	stop   func() // says goodbye; may be called twice
	mute   atomic.Bool
}

// RoundTrip is the member's way to pinboard.
func (m *member) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.mute.Load() {
		return nil, fmt.Errorf("nobody is there")
	}
	return http.DefaultTransport.RoundTrip(r)
}

// join starts a worker, and returns once it is registered.
func (s *site) join(headroom float64, namespaces ...string) *member {
	s.t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	m := &member{url: "http://" + listener.Addr().String()}
	w, err := worker.New(worker.Options{
		PinboardURL: s.url, Token: tokenWorker, AdvertiseURL: m.url, Transport: m,
		HeartbeatInterval: lease / 5, LeaseBuffer: lease / 3, Headroom: func() float64 { return headroom },
	})
	require.NoError(s.t, err)
	for _, ns := range namespaces {
		require.NoError(s.t, w.Host(ns, func(*worker.Instance) (http.Handler, error) {
			return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, m.url) }), nil
		}))
	}
	life, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = w.Serve(life, listener) })
	m.stop = func() { cancel(); done.Wait() }
	s.t.Cleanup(m.stop)
	ready, cancelReady := context.WithTimeout(s.t.Context(), patience)
	defer cancelReady()
	require.NoError(s.t, w.AwaitReady(ready))
	m.client = s.clientAt(m.url)
	return m
}

// clientAt returns the clientId of the live worker at a URL.
func (s *site) clientAt(url string) string {
	s.t.Helper()
	for _, w := range s.workers() {
		if w.AdvertiseURL == url {
			return w.ClientID
		}
	}
	require.Fail(s.t, "no worker at "+url)
	return ""
}

type listed struct {
	ClientID, AdvertiseURL string
	Draining               bool
	DrainDeadline          *float64
}

func (s *site) workers() []listed {
	s.t.Helper()
	status, body := s.call(http.MethodGet, "/registry/workers", tokenOperator, nil)
	require.Equal(s.t, http.StatusOK, status, body)
	var list struct{ Workers []listed }
	require.NoError(s.t, json.Unmarshal([]byte(body), &list))
	return list.Workers
}

// fake registers a worker that does nothing but answer probes and serve ids, for
// what no honest one does. change is of its registration.
func (s *site) fake(change map[string]any) (session string) {
	s.t.Helper()
	serve := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/_pinned/challenge"):
			_, _ = io.WriteString(w, `{"value": "v"}`)
		case strings.HasSuffix(r.URL.Path, "/_pinned/stats"):
			_ = json.NewEncoder(w).Encode(map[string]any{
				"process": map[string]any{"uptimeMs": markup, "rssBytes": 1 << 20}, "instances": []any{markup, nil, 7}, "leaseFlaps": map[string]any{},
			})
		default:
			_, _ = io.WriteString(w, "fake")
		}
	}
	server := httptest.NewServer(http.HandlerFunc(serve))
	s.t.Cleanup(server.Close)
	body := map[string]any{
		"clientId": "fake", "secret": "planted-secret", "namespaces": []string{"/docs"}, "advertiseUrl": server.URL,
		"headroom": 5, "draining": false, "challenge": "c", "challengeValue": "v",
	}
	maps.Copy(body, change)
	status, text := s.call(http.MethodPost, "/registry/register", tokenWorker, body)
	require.Equal(s.t, http.StatusOK, status, text)
	var answer struct{ SessionID string }
	require.NoError(s.t, json.Unmarshal([]byte(text), &answer))
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(lease / 5); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			beat, _ := json.Marshal(map[string]any{"sessionId": answer.SessionID, "headroom": 5, "draining": false, "challenge": "c", "challengeValue": "v"})
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/registry/heartbeat", bytes.NewReader(beat))
			r.Header.Set("Authorization", "Bearer "+tokenWorker)
			if res, err := s.server.Client().Do(r); err == nil {
				_ = res.Body.Close()
			}
		}
	})
	s.t.Cleanup(func() { cancel(); done.Wait() })
	return answer.SessionID
}
