package pinboard

import (
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

func TestARequestIsTracedWithoutWhatItAsksFor(t *testing.T) {
	t.Parallel()
	f := newTraced(t)
	w := newFake(t, func(h *hit) { h.body(); h.ok("") })
	s := f.register(w, "worker-a")
	s.place("alice-secret")
	resp, _ := f.post("/counters/alice-secret/path?token=planted", "body", "X-Planted: header", "Authorization: Bearer planted")
	require.Equal(t, 200, resp.StatusCode)
	all := f.ended(3)
	require.Equal(t, []string{"pinboard.proxy /counters", "pinboard.resolve", "pinboard.attempt"}, all.names())
	proxy, resolve, attempt := all[0], all[1], all[2]
	require.Equal(t, trace.SpanKindServer, proxy.SpanKind())
	require.False(t, proxy.Parent().IsValid())
	require.Empty(t, proxy.Links())
	require.Equal(t, map[string]string{
		"http.request.method": "POST", "url.scheme": "http", "network.protocol.version": "1.1", "server.address": "p",
		"http.route": "/counters/{id}", "http.response.status_code": "200", "pinboard.namespace": "/counters",
	}, attrs(proxy))
	for _, below := range []sdktrace.ReadOnlySpan{resolve, attempt} {
		require.Equal(t, proxy.SpanContext().SpanID(), below.Parent().SpanID())
	}
	epoch := strconv.FormatInt(w.only().epoch(), 10)
	require.Equal(t, map[string]string{"pinboard.outcome": "asked", "pinboard.worker": "worker-a", "pinboard.epoch": epoch}, attrs(resolve))
	require.Equal(t, trace.SpanKindClient, attempt.SpanKind())
	addr := netip.MustParseAddrPort(w.addr)
	require.Equal(t, map[string]string{
		"http.request.method": "POST", "network.protocol.version": "1.1", "server.address": addr.Addr().String(),
		"server.port": strconv.Itoa(int(addr.Port())), "http.response.status_code": "200", "pinboard.namespace": "/counters",
		"pinboard.worker": "worker-a", "pinboard.epoch": epoch,
	}, attrs(attempt))
	w.only().requireParent(attempt)
	for _, s := range all {
		require.Empty(t, failedAs(t, s))
	}
	for _, hidden := range []string{"alice", "path", "planted", "token"} {
		require.NotContains(t, all.text(), hidden)
	}
	f.get("/counters/alice-secret") // from now on the node knows
	f.ended(3)
	f.get("/counters/alice-secret")
	require.Equal(t, "recalled", attrs(f.ended(3)[1])["pinboard.outcome"])
}

func TestIDsAreTracedWhereTheHostSaysSo(t *testing.T) {
	t.Parallel()
	f := newTraced(t, func(s *setup) { s.opts.TraceIDs = true })
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice/path")
	all := f.ended(3)
	require.Equal(t, "alice", attrs(all[0])["pinboard.id"])
	require.Equal(t, "alice", attrs(all[2])["pinboard.id"])
	require.NotContains(t, all.text(), "path")
}

// Whoever can name a span at will can fill a tracing system.
func TestNoSpanIsNamedByWhatNobodyServes(t *testing.T) {
	t.Parallel()
	f := newTraced(t, withPassport(anyone{tokens: map[string]*passport.Identity{"Bearer good": {}}, refuse: passport.ErrUnauthenticated}))
	f.register(newFake(t, nil), "a")
	for _, c := range []struct {
		path, token string
		status      int
		fails       string
		spans       int
	}{
		{"/made-up/alice", "Authorization: Bearer good", 404, "", 2},
		{"/made-up/alice", "X: y", 401, "", 1},
		{"/made-up/", "X: y", 400, "", 1},
	} {
		resp, _ := f.get(c.path, c.token)
		require.Equal(t, c.status, resp.StatusCode)
		all := f.ended(c.spans)
		require.Equal(t, "pinboard.proxy", all[0].Name())
		require.Equal(t, strconv.Itoa(c.status), attrs(all[0])["http.response.status_code"])
		require.Equal(t, c.fails, failedAs(t, all[0]))
		require.NotContains(t, attrs(all[0]), "http.route")
		if c.status != 404 {
			require.NotContains(t, all.text(), "made-up")
		}
	}
	req := "BREW /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nAuthorization: Bearer good\r\n\r\n"
	f.ask(req).whole("GET")
	all := f.ended(3)
	require.Equal(t, "_OTHER", attrs(all[0])["http.request.method"])
	require.NotContains(t, all.text(), "BREW")
}

// A client that nobody vouches for could have all its requests recorded, or put
// them into somebody else's trace.
func TestAnAnonymousClientBeginsATraceOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newTraced(t)
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/counters/alice", "traceparent: "+clientParent, "tracestate: a=1", "baggage: user=1", "TraceState: b=2")
	all := f.ended(3)
	require.NotEqual(t, clientTrace, all[0].SpanContext().TraceID().String())
	require.False(t, all[0].Parent().IsValid())
	require.Len(t, all[0].Links(), 1)
	require.Equal(t, clientTrace, all[0].Links()[0].SpanContext.TraceID().String())
	w.only().requireParent(all[2])
	require.Empty(t, w.only().header["Tracestate"], "it is of another trace")
	require.Equal(t, []string{"user=1"}, w.only().header["Baggage"])
}

func TestTheFlagOfAnAnonymousClientRecordsNothing(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	never := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	f := newFront(t, func(s *setup) { s.opts.TracerProvider = never })
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/counters/alice", "traceparent: "+clientParent)
	require.Empty(t, spans.Started())
	parent := w.only().header.Get("Traceparent")
	require.Regexp(t, parentForm, parent)
	require.True(t, strings.HasSuffix(parent, "-00"), "it is not recorded: %s", parent)
	require.NotContains(t, parent, clientTrace)
}

func TestATraceGoesOnWhereSomebodyVouchesForTheClient(t *testing.T) {
	t.Parallel()
	behind := func(s *setup) { s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }
	known := withPassport(anyone{tokens: map[string]*passport.Identity{"Bearer good": {}}})
	for name, change := range map[string]func(*setup){"a trusted proxy": behind, "a credential": known} {
		f := newTraced(t, change)
		w := newFake(t, nil)
		f.register(w, "a")
		f.get("/counters/alice", "Authorization: Bearer good", "traceparent: "+clientParent, "tracestate: a=1", "baggage: user=1", "tracestate: b=2")
		all := f.ended(3)
		require.Equal(t, clientParent[3:35], all[0].Parent().TraceID().String(), name)
		require.Equal(t, clientParent[36:52], all[0].Parent().SpanID().String(), name)
		require.True(t, all[0].Parent().IsRemote())
		require.Empty(t, all[0].Links())
		w.only().requireParent(all[2])
		require.Equal(t, []string{"a=1,b=2"}, w.only().header["Tracestate"], name)
		require.Equal(t, []string{"user=1"}, w.only().header["Baggage"], name)
	}
}

func TestAClusterCallContinuesTheTraceOfTheInstanceThatCalls(t *testing.T) {
	t.Parallel()
	f := newTraced(t)
	w := newFake(t, nil)
	s := f.register(w, "a")
	s.place("caller")
	call := []string{
		wire.HeaderFrom + ": /counters/caller", wire.HeaderSession + ": " + s.SessionID,
		wire.HeaderDepth + ": 3", "traceparent: " + clientParent,
	}
	f.get("/counters/alice", append(call, wire.HeaderSessionSecret+": "+s.Secret.Reveal())...)
	all := f.ended(3)
	require.Equal(t, clientTrace, all[0].SpanContext().TraceID().String())
	require.Equal(t, "3", attrs(all[0])["pinboard.depth"])
	w.only().requireParent(all[2])
	require.NotContains(t, all.text(), s.Secret.Reveal())
	f.get("/counters/alice", append(call, wire.HeaderSessionSecret+": made up")...)
	all = f.ended(1)
	require.NotEqual(t, clientTrace, all[0].SpanContext().TraceID().String())
}

func TestTheHostsOwnSpanIsTheParent(t *testing.T) {
	t.Parallel()
	var host trace.Span
	f := newTraced(t, func(s *setup) {
		provider := s.opts.TracerProvider
		s.handler = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, span := provider.Tracer("host").Start(r.Context(), "host", trace.WithSpanKind(trace.SpanKindServer))
				host = span
				defer span.End()
				next.ServeHTTP(w, r.WithContext(ctx))
			})
		}
	})
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice", "traceparent: "+clientParent)
	all := f.ended(4)
	require.Equal(t, []string{"host", "pinboard.proxy /counters", "pinboard.resolve", "pinboard.attempt"}, all.names())
	require.Equal(t, host.SpanContext().SpanID(), all[1].Parent().SpanID())
	require.Equal(t, trace.SpanKindInternal, all[1].SpanKind())
	require.Empty(t, all[1].Links())
}

// What is said of a trace is untouched without a provider, and never the worse for
// anything with one.
func TestMalformedTraceContextIsHarmless(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		good  bool
	}{
		{nil, false},
		{[]string{"traceparent: " + clientParent}, true},
		{[]string{"traceparent: " + clientParent, "traceparent: " + clientParent}, false},
		{[]string{"traceparent: garbage", "tracestate: " + strings.Repeat("x", 5000)}, false},
		{[]string{"traceparent: 00-00000000000000000000000000000000-b7ad6b7169203331-01"}, false},
		{[]string{"traceparent: ff-" + clientTrace + "-b7ad6b7169203331-01"}, false},
		{[]string{"traceparent: " + strings.ToUpper(clientParent)}, false},
		{[]string{"traceparent:", "tracestate: a=1"}, false},
		{[]string{"TRACEPARENT: " + clientParent + "-extra", "tracestate: =,=,=;\x80"}, false},
		{[]string{"TRACEPARENT: " + clientParent, "tracestate: =,=,=;\x80"}, true},
	} {
		plain := newFront(t, func(s *setup) { s.opts.TracerProvider = noop.NewTracerProvider() })
		w := newFake(t, nil)
		plain.register(w, "a")
		resp, _ := plain.get("/counters/alice", c.lines...)
		require.Equal(t, 200, resp.StatusCode)
		said := http.Header{}
		for _, line := range c.lines {
			name, value, _ := strings.Cut(line, ":")
			said.Add(name, strings.TrimSpace(value))
		}
		for name, values := range said {
			require.Equal(t, values, w.only().header[name])
		}
		f := newTraced(t, func(s *setup) { s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")} })
		w = newFake(t, nil)
		f.register(w, "a")
		resp, _ = f.get("/counters/alice", c.lines...)
		require.Equal(t, 200, resp.StatusCode)
		all := f.ended(3)
		w.only().requireParent(all[2])
		require.Empty(t, w.only().header["Tracestate"])
		require.Equal(t, c.good, all[0].Parent().IsValid(), "%q", c.lines)
	}
}

func TestEachAttemptIsASpanOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newTraced(t)
	a := newFake(t, func(h *hit) { h.body(); h.refuse() })
	b := newFake(t, nil)
	sa := f.register(a, "a")
	sa.place("alice")
	f.register(b, "b")
	resp, _ := f.post("/counters/alice", "body")
	require.Equal(t, 200, resp.StatusCode)
	all := f.ended(5)
	require.Equal(t, []string{"pinboard.proxy /counters", "pinboard.resolve", "pinboard.attempt", "pinboard.resolve", "pinboard.attempt"}, all.names())
	first, second := attrs(all[2]), attrs(all[4])
	require.Equal(t, []string{"a", "503", "lease-unhealthy", "503"},
		[]string{first["pinboard.worker"], first["http.response.status_code"], first["pinboard.refusal"], failedAs(t, all[2])})
	require.NotContains(t, first, "http.request.resend_count")
	require.Equal(t, []string{"b", "200", "1", ""},
		[]string{second["pinboard.worker"], second["http.response.status_code"], second["http.request.resend_count"], failedAs(t, all[4])})
	require.Empty(t, failedAs(t, all[0]), "the client saw no error")
	a.only().requireParent(all[2])
	b.only().requireParent(all[4])
}

func TestAWaitIsASpan(t *testing.T) {
	t.Parallel()
	f := newTraced(t, func(s *setup) { s.opts.PlacementHold = 10 * time.Millisecond })
	f.register(newFake(t, nil), "a", func(r *store.Registration) { r.Draining = true })
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 503, resp.StatusCode)
	all := f.ended(4)
	require.Equal(t, []string{"pinboard.proxy", "pinboard.resolve", "pinboard.hold", "pinboard.resolve"}, all.names())
	require.Equal(t, "over", attrs(all[2])["pinboard.outcome"])
	require.Equal(t, "503", failedAs(t, all[0]))
	require.Equal(t, "no worker takes placements now", all[0].Status().Description)
	require.Equal(t, "503", failedAs(t, all[1]))
	require.Equal(t, "refused", attrs(all[1])["pinboard.outcome"])
}

func TestARequestThatWaitedIsTracedToItsWorker(t *testing.T) {
	t.Parallel()
	f := newTraced(t, func(s *setup) { s.opts.PlacementHold = patience })
	f.register(newFake(t, nil), "a", func(r *store.Registration) { r.Draining = true })
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	require.Eventually(t, func() bool { return f.pb.counters.held.Load() == 1 }, patience, time.Millisecond)
	f.register(newFake(t, nil), "b")
	require.Equal(t, 200, c.answer("GET").StatusCode)
	all := f.ended(4)
	require.Equal(t, []string{"pinboard.proxy /counters", "pinboard.resolve", "pinboard.hold", "pinboard.attempt"}, all.names())
	require.Equal(t, "found", attrs(all[2])["pinboard.outcome"])
	require.Equal(t, "b", attrs(all[3])["pinboard.worker"])
}

func TestAProbeIsTracedAndTellsTheWorker(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	n := serveRegNode(t, Options{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))})
	w := n.worker()
	var parent string
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		parent = r.Header.Get("Traceparent")
		w.answers(nil)
		w.ServeHTTP(rw, r)
	})
	w.register()
	one := spans.Ended()[0]
	require.Equal(t, "pinboard.probe", one.Name())
	require.Equal(t, trace.SpanKindClient, one.SpanKind())
	require.Contains(t, parent, one.SpanContext().SpanID().String())
	require.Empty(t, failedAs(t, one))
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) })
	w.heartbeat()
	require.Equal(t, "409", failedAs(t, spans.Ended()[1]))
	require.NotContains(t, endedOf(spans).text(), "planted")
	require.NotContains(t, endedOf(spans).text(), "challenge")
}

func endedOf(r *tracetest.SpanRecorder) spansSeen { return r.Ended() }

// In a process of its own: the provider is the process's.
func TestTheProcesssProviderCountsOnceThereIsOne(t *testing.T) {
	if os.Getenv("PINBOARD_TEST_PROVIDER") == "" {
		t.Parallel()
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheProcesssProviderCountsOnceThereIsOne$", "-test.v")
		command.Env = append(os.Environ(), "PINBOARD_TEST_PROVIDER=1")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS")
		return
	}
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/counters/alice", "traceparent: "+clientParent)
	require.Equal(t, clientParent, w.seen()[0].header.Get("Traceparent"))
	spans := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	for range 2 {
		f.get("/counters/alice", "traceparent: "+clientParent)
	}
	require.Eventually(t, func() bool { return len(spans.Ended()) == 6 }, patience, time.Millisecond)
	require.NotContains(t, w.seen()[2].header.Get("Traceparent"), clientTrace)
	f = newFront(t, func(s *setup) { s.opts.TracerProvider = noop.NewTracerProvider() })
	f.register(w, "a")
	f.get("/counters/alice", "traceparent: "+clientParent)
	require.Equal(t, clientParent, w.seen()[3].header.Get("Traceparent"), "this node is to have none")
	require.Len(t, spans.Ended(), 6)
}
