package pinboard

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

func TestRequestsAreCountedByNamespaceKindAndCode(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry))
	w := newFake(t, func(h *hit) {
		switch h.target {
		case "/counters/alice/sse":
			h.ok("data: 1\n\n", "Content-Type: text/event-stream")
		case "/counters/alice/ws":
			h.echo()
		case "/counters/alice/none":
			h.reply(404, "no")
		case "/counters/alice/breaks":
			h.reply(500, "no")
		default:
			h.body()
			h.ok("")
		}
	})
	s := f.register(w, "a")
	s.place("alice")
	seen := watch(t, registry)
	for path, kindAndCode := range map[string]string{
		"/counters/alice": "kind=http,namespace=/counters", "/counters/alice/sse": "kind=sse,namespace=/counters",
		"/counters/alice/none": "kind=http,namespace=/counters", "/counters/alice/breaks": "kind=http,namespace=/counters",
	} {
		resp, _ := f.get(path)
		seen.becomes(map[string]float64{
			"pinboard_requests_total{code=" + string(resp.Status[0]) + "xx," + kindAndCode + "}": 1,
			"pinboard_first_byte_seconds_count{namespace=/counters}":                             1,
		}, ends...)
	}
	f.get("/counters/alice", caller("/counters/alice", s)...)
	seen.becomes(map[string]float64{
		"pinboard_requests_total{code=2xx,kind=cluster,namespace=/counters}": 1,
		"pinboard_first_byte_seconds_count{namespace=/counters}":             1,
	}, ends...)

	ws := f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(t, 101, ws.answer("GET").StatusCode)
	require.Equal(t, map[string]float64{"pinboard_open_requests{kind=websocket}": 1}, seen.gained("pinboard_open_requests"))
	require.NoError(t, ws.Conn.(interface{ CloseWrite() error }).CloseWrite())
	_, _ = ws.rest()
	seen.becomes(map[string]float64{
		"pinboard_requests_total{code=1xx,kind=websocket,namespace=/counters}": 1,
		"pinboard_first_byte_seconds_count{namespace=/counters}":               1,
	}, ends...)
	require.Zero(t, scrape(t, registry)["pinboard_open_requests{kind=websocket}"])
}

func TestAStreamIsOpenAsWhatItIs(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry))
	let := make(chan struct{})
	w := newFake(t, func(h *hit) {
		<-let
		h.send("HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nContent-Length: 1\r\n\r\n")
		h.gone()
	})
	f.register(w, "a")
	seen := watch(t, registry)
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	seen.becomes(map[string]float64{"pinboard_open_requests{kind=http}": 1}, "pinboard_open_requests")
	close(let)
	c.answer("GET")
	seen.becomes(map[string]float64{"pinboard_open_requests{kind=sse}": 1, "pinboard_open_requests{kind=http}": -1}, "pinboard_open_requests")
	require.NoError(t, c.Close())
	seen.becomes(map[string]float64{"pinboard_cuts_total{namespace=/counters,reason=client_left}": 1}, "pinboard_cuts_total")
	require.Empty(t, only(scrape(t, registry), "pinboard_open_requests"))
}

func TestRefusalsAreCountedByReason(t *testing.T) {
	t.Parallel()
	for reason, c := range map[string]struct {
		setup func(*setup)
		do    func(f *front)
		// other: nothing tells that the namespace is served.
		other bool
	}{
		"unknown_namespace": {do: func(f *front) { f.get("/nobody/x") }, other: true},
		"bad_request":       {do: func(f *front) { f.get("/counters/") }, other: true},
		"unauthenticated":   {setup: withPassport(anyone{refuse: passport.ErrUnauthenticated}), do: func(f *front) { f.get("/counters/x") }, other: true},
		"forbidden":         {setup: withPassport(anyone{refuse: passport.ErrForbidden}), do: func(f *front) { f.get("/counters/x") }, other: true},
		"identity_unchecked": {
			setup: withPassport(anyone{fail: errPlanted}), do: func(f *front) { f.get("/counters/x") }, other: true,
		},
		"limit": {
			setup: func(s *setup) { s.opts.Limits.URLBytes = 100 },
			do:    func(f *front) { f.get("/counters/" + strings.Repeat("x", 100)) }, other: true,
		},
		"quarantine": {do: func(f *front) {
			f.register(newFake(f.t, nil), "a", func(r *store.Registration) { r.Namespaces = []string{"/fresh"} })
			f.get("/fresh/x")
		}},
		"no_worker": {do: func(f *front) {
			f.register(newFake(f.t, nil), "a", func(r *store.Registration) { r.Draining = true })
			f.get("/counters/x")
		}},
		"owner_down": {do: func(f *front) {
			w := newFake(f.t, nil)
			f.register(w, "a")
			w.stop()
			f.get("/counters/x")
		}},
		"owner_lost": {do: func(f *front) {
			f.register(newFake(f.t, func(h *hit) { h.last = true }), "a")
			f.post("/counters/x", "body")
		}},
		"owner_late": {
			setup: func(s *setup) { s.opts.Limits.AnswerTimeout = 50 * time.Millisecond },
			do:    func(f *front) { f.register(newFake(f.t, (*hit).gone), "a"); f.get("/counters/x") },
		},
		"owner_refused": {do: func(f *front) { f.register(newFake(f.t, (*hit).refuse), "a"); f.get("/counters/x") }},
		"owner_not_ready": {do: func(f *front) {
			f.register(newFake(f.t, func(h *hit) {
				h.reply(403, `{"detail":"invalid attestation"}`, "Content-Type: application/json")
			}), "a")
			f.get("/counters/x")
		}},
		"store": {
			setup: func(s *setup) {
				s.store = func(s store.Store) store.Store { return &stuck{Store: s, err: errPlanted} }
			},
			do: func(f *front) { f.get("/counters/x") }, other: true,
		},
		"stopping": {do: func(f *front) { _ = f.pb.Close(); f.get("/counters/x") }, other: true},
		"client_gone": {do: func(f *front) {
			there := make(chan struct{})
			f.register(newFake(f.t, func(h *hit) { close(there); h.gone() }), "a")
			c := f.ask("GET /counters/x HTTP/1.1\r\nHost: p\r\n\r\n")
			<-there
			c.reset()
		}},
	} {
		registry := prometheus.NewPedanticRegistry()
		changes := []func(*setup){metered(registry)}
		if c.setup != nil {
			changes = append(changes, c.setup)
		}
		f := newFront(t, changes...)
		seen := watch(t, registry)
		c.do(f)
		namespace := "/counters"
		switch {
		case c.other:
			namespace = "other"
		case reason == "quarantine":
			namespace = "/fresh"
		}
		seen.becomes(map[string]float64{"pinboard_refusals_total{namespace=" + namespace + ",reason=" + reason + "}": 1},
			"pinboard_refusals_total", "pinboard_first_byte_seconds", "pinboard_cuts_total")
	}
}

func TestCutsAreCountedByReason(t *testing.T) {
	t.Parallel()
	begun := func(h *hit) { h.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx"); h.gone() }
	for _, c := range []struct {
		reason  string
		upgrade bool
		worker  func(*hit)
		then    func(f *front, s *session, c *client)
	}{
		{"worker", false, func(h *hit) { h.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx"); h.last = true }, nil},
		{"client_left", false, begun, func(_ *front, _ *session, c *client) { c.reset() }},
		{"client_left", true, (*hit).echo, func(_ *front, _ *session, c *client) { c.reset() }},
		{"owner_ended", false, begun, func(f *front, s *session, _ *client) { f.pb.leases.cutNow(s.SessionID) }},
		{"owner_ended", true, (*hit).echo, func(f *front, s *session, _ *client) { f.pb.leases.cutNow(s.SessionID) }},
		{"stopping", false, begun, func(f *front, _ *session, _ *client) { f.pb.leases.cutAll() }},
		{"stopping", true, (*hit).echo, func(f *front, _ *session, _ *client) { f.pb.leases.cutAll() }},
		{"", true, (*hit).echo, func(_ *front, _ *session, c *client) {
			require.NoError(t, c.Conn.(interface{ CloseWrite() error }).CloseWrite())
		}},
	} {
		registry := prometheus.NewPedanticRegistry()
		f := newFront(t, metered(registry))
		s := f.register(newFake(t, c.worker), "a")
		seen := watch(t, registry)
		request := "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"
		if c.upgrade {
			request = upgradeRequest("/counters/alice")
		}
		client := f.ask(request)
		client.answer("GET")
		if c.then != nil {
			c.then(f, s, client)
		}
		want := map[string]float64{}
		if c.reason != "" {
			want["pinboard_cuts_total{namespace=/counters,reason="+c.reason+"}"] = 1
		}
		kind, code := "http", "2xx"
		if c.upgrade {
			kind, code = "websocket", "1xx"
		}
		want["pinboard_requests_total{code="+code+",kind="+kind+",namespace=/counters}"] = 1
		seen.becomes(want, "pinboard_cuts_total", "pinboard_requests_total")
	}
}

// cutNow ends a session whose lease is over.
func (l *leases) cutNow(sessionID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byID[sessionID].until = time.Now()
	l.cut(l.byID[sessionID])
}

func TestCutsByLimitsAreCounted(t *testing.T) {
	t.Parallel()
	inLimitsMetered := func(limits Limits, handler func(*hit), f func(b *limited, seen *watched)) {
		for _, detached := range []bool{false, true} {
			registry := prometheus.NewPedanticRegistry()
			inBubble(t, Options{Limits: limits, Metrics: registry, DetachStreams: detached}, or(handler), func(t *testing.T, b *limited) {
				f(b, watch(t, registry))
			})
		}
	}
	cutBy := func(reason, limit string) map[string]float64 {
		return map[string]float64{
			"pinboard_cuts_total{namespace=/counters,reason=" + reason + "}": 1, "pinboard_limit_hits_total{limit=" + limit + "}": 1,
		}
	}
	series := []string{"pinboard_cuts_total", "pinboard_limit_hits_total"}
	head := "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"
	inLimitsMetered(Limits{}, func(h *hit) {
		h.send(head)
		for _, err := io.WriteString(h.conn, flood); err == nil; {
			_, err = io.WriteString(h.conn, flood)
		}
		h.last = true
	}, func(b *limited, seen *watched) {
		b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("unread", "write_pause"), seen.gained(series...))
	})
	inLimitsMetered(Limits{Silence: time.Minute}, func(h *hit) { h.send(head); h.gone() }, func(b *limited, seen *watched) {
		b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("silence", "silence"), seen.gained(series...))
	})
	stream := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
	inLimitsMetered(Limits{Silence: time.Minute}, func(h *hit) { h.send(stream); h.gone() }, func(b *limited, seen *watched) {
		b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("silence", "silence"), seen.gained(series...))
	})
	inLimitsMetered(Limits{}, func(h *hit) {
		h.send(stream)
		for _, err := io.WriteString(h.conn, "5\r\nhello\r\n"); err == nil; {
			_, err = io.WriteString(h.conn, "5\r\nhello\r\n")
		}
		h.last = true
	}, func(b *limited, seen *watched) {
		b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("unread", "write_pause"), seen.gained(series...))
	})
	inLimitsMetered(Limits{Silence: time.Minute}, (*hit).echo, func(b *limited, seen *watched) {
		b.ask(upgradeRequest("/counters/alice")).answer("GET")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("silence", "silence"), seen.gained(series...))
	})
	inLimitsMetered(Limits{}, func(h *hit) {
		h.accept()
		_, _ = io.WriteString(h.conn, flood)
		h.last = true
	}, func(b *limited, seen *watched) {
		b.ask(upgradeRequest("/counters/alice")).answer("GET")
		time.Sleep(2 * time.Minute)
		require.Equal(t, cutBy("unread", "write_pause"), seen.gained(series...))
	})
}

func TestRetriesAndPlacementsAreCountedByCause(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f, _, _, sa, sb := pair(t, (*hit).refuse, nil, metered(registry))
	seen := watch(t, registry)
	series := []string{"pinboard_retries_total", "pinboard_placements_total", "pinboard_resolves_total"}
	f.get("/counters/alice")
	seen.becomes(map[string]float64{
		"pinboard_retries_total{refusal=lease-unhealthy}": 1, "pinboard_placements_total{cause=refused}": 1,
		"pinboard_resolves_total{outcome=owned}": 1, "pinboard_resolves_total{outcome=placed}": 1,
	}, series...)
	require.NoError(t, f.store.Deregister(t.Context(), sa.SessionID))
	f.get("/counters/bob")
	seen.becomes(map[string]float64{"pinboard_placements_total{cause=new}": 1, "pinboard_resolves_total{outcome=placed}": 1}, series...)
	f.get("/counters/bob") // the first one was placed before anything was known of the namespace
	f.get("/counters/bob")
	seen.becomes(map[string]float64{"pinboard_resolves_total{outcome=owned}": 1, "pinboard_resolves_total{outcome=memory}": 1}, series...)
	f.register(newFake(t, nil), "c")
	require.NoError(t, f.store.Deregister(t.Context(), sb.SessionID))
	f.get("/counters/bob")
	seen.becomes(map[string]float64{"pinboard_placements_total{cause=failover}": 1, "pinboard_resolves_total{outcome=placed}": 1}, series...)
	require.InDelta(t, 5, scrape(t, registry)["pinboard_resolve_seconds_count"], 0, "of those that asked the store")
}

// One way of counting: what operators are told is what is measured.
func TestHealthAndMetricsSayTheSame(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f, _, _, _, _ := pair(t, (*hit).refuse, nil, metered(registry), func(s *setup) { s.opts.Limits.Requests = 1 })
	f.get("/counters/alice")
	c := &f.pb.counters
	c.limits.add(limitRequests, 2)
	c.limits.add(limitAddress, 3)
	c.limits.add(limitID, 4)
	got := scrape(t, registry)
	sum := func(prefix string) (n float64) {
		for _, value := range only(got, prefix) {
			n += value
		}
		return n
	}
	require.InDelta(t, c.resolves.Load(), sum("pinboard_resolves_total"), 0)
	require.InDelta(t, c.retries.Load(), sum("pinboard_retries_total"), 0)
	require.EqualValues(t, 1, c.retries.Load())
	require.EqualValues(t, 9, c.turnedAway())
	require.InDelta(t, 9, sum("pinboard_limit_hits_total{limit=requests"), 0)
}

func TestTwoPinboardsOnOneRegistererAreAnErrorUnlessTheirLabelsDiffer(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	options := func(to prometheus.Registerer) Options {
		return Options{Passport: anyone{}, Store: MemoryStore(), Metrics: to}
	}
	first, err := New(options(registry))
	require.NoError(t, err)
	none, err := New(options(registry))
	require.ErrorContains(t, err, "Options.Metrics")
	require.ErrorContains(t, err, "WrapRegistererWith")
	require.Nil(t, none)

	shared := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} {
		labelled, err := New(options(prometheus.WrapRegistererWith(prometheus.Labels{"pinboard": name}, shared)))
		require.NoError(t, err)
		defer func() { require.NoError(t, labelled.Shutdown(t.Context())) }()
	}
	require.Len(t, only(scrape(t, shared), "pinboard_store_up"), 2)

	require.NoError(t, first.Close())
	require.Contains(t, scrape(t, registry), "pinboard_store_up", "what it has open can still be seen")
	require.NoError(t, first.Shutdown(t.Context()))
	require.Empty(t, scrape(t, registry))
	second, err := New(options(registry))
	require.NoError(t, err)
	require.NoError(t, first.Shutdown(t.Context()), "a second time")
	require.NotEmpty(t, scrape(t, registry), "those of another are left alone")
	require.NoError(t, second.Shutdown(t.Context()))
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry))
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice")
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
	for name := range scrape(t, registry) {
		require.True(t, strings.HasPrefix(name, "pinboard_"), name)
	}
}

// What nobody looks at is not made.
func TestWithoutMetricsAndAccessLogNothingIsObserved(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	require.Nil(t, f.pb.metrics)
	require.Nil(t, f.pb.access)
	require.Nil(t, f.pb.observe(&http.Request{}))
	_, metered := f.pb.store.(*meteredStore)
	require.False(t, metered)
	f.register(newFake(t, nil), "a")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, f.pb.Shutdown(context.Background()))
}

func TestNoSecretIsInTheMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	n := newRegNode(t, Options{Metrics: registry}, nil)
	w := n.worker()
	w.register()
	w.heartbeat()
	n.get("/registry/workers", tokenOperator)
	n.get("/registry/workers?access_token="+tokenUnknown, tokenUnknown)
	families, err := registry.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, family := range families {
		text.WriteString(family.String())
	}
	for _, secret := range append(n.secrets, w.client, w.session, w.url, wire.HeaderSessionSecret) {
		require.NotContains(t, text.String(), secret)
	}
}
