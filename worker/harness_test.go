package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/resources"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// object is a JSON object.
type object = map[string]any

// call is one call that the fake pinboard got.
type call struct {
	at     time.Duration // since the harness was made
	path   string
	header http.Header
	raw    []byte
	body   object // nil for a list
}

func (c call) list(t *testing.T) (items []object) {
	t.Helper()
	require.NoError(t, json.Unmarshal(c.raw, &items))
	return items
}

// reply is an answer of the fake pinboard's.
type reply struct {
	status     int
	body       any
	raw        string // instead of body
	retryAfter string
	location   string
	err        error // instead of an answer
	delay      time.Duration
}

// fakePinboard is a pinboard in this process: the RoundTripper of a worker. By
// default it probes like a real one, and agrees to everything.
type fakePinboard struct {
	began time.Time

	mu       sync.Mutex
	worker   *Worker
	calls    []call
	sessions int
	// script, if it is set and returns ok, decides the answer.
	script func(c call) (reply, bool)
	// plane is the data plane, if there is one.
	plane http.RoundTripper
}

func (p *fakePinboard) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.plane != nil && !strings.HasPrefix(r.URL.Path, "/registry/") {
		return p.plane.RoundTrip(r)
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	c := call{at: time.Since(p.began), path: r.URL.Path, header: r.Header, raw: raw}
	_ = json.Unmarshal(raw, &c.body)
	p.mu.Lock()
	p.calls = append(p.calls, c)
	script := p.script
	p.mu.Unlock()
	out, scripted := reply{}, false
	if script != nil {
		out, scripted = script(c)
	}
	if !scripted {
		out = p.agree(c)
	}
	if out.delay > 0 {
		timer := time.NewTimer(out.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return out.response(r)
}

func (out reply) response(r *http.Request) (*http.Response, error) {
	if out.err != nil {
		return nil, out.err
	}
	text := []byte(out.raw)
	if out.raw == "" {
		text, _ = json.Marshal(out.body)
	}
	res := &http.Response{
		StatusCode: out.status, Header: http.Header{}, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(bytes.NewReader(text)),
	}
	if out.retryAfter != "" {
		res.Header.Set("Retry-After", out.retryAfter)
	}
	if out.location != "" {
		res.Header.Set("Location", out.location)
	}
	return res, nil
}

// agree is what a pinboard without troubles answers.
func (p *fakePinboard) agree(c call) reply {
	switch c.path {
	case wire.PathRegister:
		if !p.probe(c) {
			return reply{status: http.StatusConflict, body: object{"error": "another process answers at this advertise URL"}}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sessions++
		return reply{status: http.StatusOK, body: object{
			"sessionId": "session-" + strconv.Itoa(p.sessions), "expiresInMs": 15000, "draining": false,
		}}
	case wire.PathHeartbeat:
		body := object{"expiresInMs": 15000, "draining": false}
		if !p.probe(c) {
			body["degraded"] = true
		}
		return reply{status: http.StatusOK, body: body}
	}
	return reply{status: http.StatusOK, body: object{"released": 0}}
}

// probe asks the worker for the challenge that the call carries.
func (p *fakePinboard) probe(c call) bool {
	r := httptest.NewRequest(http.MethodGet, wire.PathChallenge+"?challenge="+c.body["challenge"].(string), nil)
	r.Header.Set(wire.HeaderProxySecret, p.worker.reg.secret.Reveal())
	rec := httptest.NewRecorder()
	p.worker.ServeHTTP(rec, r)
	var answer wire.ChallengeAnswer
	_ = json.Unmarshal(rec.Body.Bytes(), &answer)
	return rec.Code == http.StatusOK && answer.Value == c.body["challengeValue"]
}

// on makes the script; nil agrees to everything again.
func (p *fakePinboard) on(script func(c call) (reply, bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// answer scripts one path.
func (p *fakePinboard) answer(path string, out reply) {
	p.on(func(c call) (reply, bool) { return out, c.path == path })
}

// to returns the calls to a path so far.
func (p *fakePinboard) to(path string) (calls []call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.path == path {
			calls = append(calls, c)
		}
	}
	return calls
}

func (p *fakePinboard) last(t *testing.T, path string) call {
	t.Helper()
	calls := p.to(path)
	require.NotEmpty(t, calls, "no call to %s", path)
	return calls[len(calls)-1]
}

// harness is a worker in front of a fake pinboard, in a bubble.
type harness struct {
	t    *testing.T
	pb   *fakePinboard
	w    *Worker
	logs *observer.ObservedLogs
	// wallStep is how far the wall clock has been stepped, or the machine
	// suspended, as seen by the monotonic clock.
	wallStep atomic.Int64
	// monoStep is how far time went on while nothing of the process ran: its
	// timers are due, and have not fired yet.
	monoStep atomic.Int64
	epoch    int64
}

func (h *harness) now() instant {
	now := systemClock()
	now.wall = now.wall.Add(time.Duration(h.wallStep.Load()))
	now.mono += time.Duration(h.monoStep.Load())
	return now
}

// inBubble runs a test in virtual time. With hosts it makes a worker for each
// namespace; start it with h.start.
func inBubble(t *testing.T, opts Options, hosts map[string]Constructor, test func(t *testing.T, h *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, opts, hosts)
		defer h.stop()
		test(t, h)
	})
}

func newHarness(t *testing.T, opts Options, hosts map[string]Constructor) *harness {
	t.Helper()
	h := &harness{t: t, pb: &fakePinboard{began: time.Now()}, epoch: 100}
	core, logs := observer.New(zap.DebugLevel)
	h.logs = logs
	opts.PinboardURL, opts.Token = "http://pinboard:8080", "planted-token-of-a-worker"
	if opts.AdvertiseURL == "" {
		opts.AdvertiseURL = "http://worker:8000"
	}
	if opts.Headroom == nil { // else figures depend on the machine
		opts.Headroom = func() float64 { return 1024 }
	}
	opts.Transport, opts.Logger = h.pb, zap.New(core)
	w, err := build(opts, none, h.now, func() float64 { return 1 })
	require.NoError(t, err)
	w.process = resources.NewProcess(t.TempDir())
	h.w, h.pb.worker = w, w
	for namespace, construct := range hosts {
		require.NoError(t, w.Host(namespace, construct))
	}
	return h
}

func (h *harness) start() {
	h.t.Helper()
	require.NoError(h.t, h.w.Start())
	synctest.Wait()
}

func (h *harness) stop() {
	h.t.Helper()
	h.pb.on(nil)
	// Bounded, so that a failed test with work left over ends as well.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	require.NoError(h.t, h.w.Shutdown(ctx))
}

// after lets virtual time pass, and everything settle.
func (h *harness) after(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

func (h *harness) since() time.Duration { return time.Since(h.pb.began) }

// mint makes an attestation for the current session.
func (h *harness) mint(claims attest.Claims) string {
	h.t.Helper()
	if claims.Audience == "" {
		claims.Audience = h.w.reg.sessionID()
	}
	token, err := attest.Mint(h.w.reg.secret, claims, h.now().wall)
	require.NoError(h.t, err)
	return token
}

// request makes an attested request, of the harness's current epoch.
func (h *harness) request(method, path string) *http.Request {
	h.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{}))
	r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(h.epoch, 10))
	return r
}

func (h *harness) do(r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.w.ServeHTTP(rec, r)
	return rec
}

func (h *harness) get(path string) *httptest.ResponseRecorder {
	h.t.Helper()
	return h.do(h.request(http.MethodGet, path))
}

// pending is a request under way.
type pending struct {
	rec  *httptest.ResponseRecorder
	done chan struct{}
}

func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// begin sends a request and does not wait for its answer.
func (h *harness) begin(r *http.Request) *pending {
	p := &pending{rec: httptest.NewRecorder(), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		h.w.ServeHTTP(p.rec, r)
	}()
	synctest.Wait()
	return p
}

func (h *harness) beginGet(path string) *pending {
	h.t.Helper()
	return h.begin(h.request(http.MethodGet, path))
}

// refused requires a refusal that the instance did not see.
func refused(t *testing.T, rec *httptest.ResponseRecorder, reason string) {
	t.Helper()
	require.Equal(t, http.StatusServiceUnavailable, rec.Code, rec.Body.String())
	require.Equal(t, reason, rec.Header().Get(wire.HeaderRefusal))
	require.Equal(t, "1", rec.Header().Get("Retry-After"))
	require.NotEmpty(t, detail(t, rec))
}

func detail(t *testing.T, rec *httptest.ResponseRecorder) string {
	t.Helper()
	var d wire.Detail
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &d), rec.Body.String())
	return d.Detail
}

func (h *harness) live(namespace, id string) bool {
	h.w.dir.mu.Lock()
	defer h.w.dir.mu.Unlock()
	return h.w.dir.instances[key{namespace, id}] != nil
}

func (h *harness) logged(message string) bool {
	return h.logs.FilterMessage(message).Len() > 0
}

// echo is a constructor whose instances answer with their id.
func echo(inst *Instance) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, inst.ID())
	}), nil
}

func hosting(construct Constructor) map[string]Constructor {
	return map[string]Constructor{"/c": construct}
}

// serving returns a constructor for one handler.
func serving(handler func(inst *Instance, w http.ResponseWriter, r *http.Request)) Constructor {
	return func(inst *Instance) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler(inst, w, r) }), nil
	}
}

// untilDone is a task that obeys its context and has no other end.
func untilDone(ctx context.Context) { <-ctx.Done() }
