package pinboard

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
)

// inMeteredBubble runs f in virtual time on a node with metrics, whose namespace /a
// has its quarantine behind it.
func inMeteredBubble(t *testing.T, f func(t *testing.T, n *regNode, seen *watched)) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	inPlacingBubble(t, Options{Metrics: registry}, func(t *testing.T, n *regNode) {
		n.get("/healthz", "") // from here on it works in the background
		f(t, n, watch(t, registry))
	})
}

func TestTheFleetIsToldOfByState(t *testing.T) {
	t.Parallel()
	inMeteredBubble(t, func(t *testing.T, n *regNode, seen *watched) {
		ready := n.ready(10, "/a", "/b")
		n.ready(5, "/a")
		n.workerAt("http://127.0.0.1:3").record("/b")
		degraded := n.ready(7, "/b")
		require.NoError(t, n.store.SetDegraded(t.Context(), degraded.session, true))
		drained := n.ready(7, "/b")
		_, err := n.store.Drain(t.Context(), drained.client, nil)
		require.NoError(t, err)
		for _, id := range []string{"x", "y", "z"} {
			n.owner("/a", id)
		}
		time.Sleep(fleetEvery)
		require.Equal(t, map[string]float64{
			"pinboard_workers{state=ready}": 2, "pinboard_workers{state=registering}": 1,
			"pinboard_workers{state=degraded}": 1, "pinboard_workers{state=draining}": 1,
			"pinboard_namespace_workers{namespace=/a,state=ready}":       2,
			"pinboard_namespace_workers{namespace=/b,state=ready}":       1,
			"pinboard_namespace_workers{namespace=/b,state=registering}": 1,
			"pinboard_namespace_workers{namespace=/b,state=degraded}":    1,
			"pinboard_namespace_workers{namespace=/b,state=draining}":    1,
			"pinboard_namespace_ids{namespace=/a}":                       3,
			"pinboard_store_up":                                          1,
			"pinboard_namespace_lease_left_seconds{namespace=/a}":        10,
			"pinboard_namespace_lease_left_seconds{namespace=/b}":        10,
			"pinboard_lease_ttl_seconds":                                 15,
		}, only(scrape(t, seen.from), "pinboard_workers", "pinboard_namespace_workers", "pinboard_namespace_ids", "pinboard_store_up",
			"pinboard_namespace_lease", "pinboard_lease_ttl", "pinboard_quarantine"))
		headroom := only(scrape(t, seen.from), "pinboard_namespace_headroom")
		require.InDelta(t, 15-3, headroom["pinboard_namespace_headroom{namespace=/a}"], 0)

		ready.report(10)
		time.Sleep(fleetEvery)
		got := scrape(t, seen.from)
		require.InDelta(t, 5, got["pinboard_namespace_lease_left_seconds{namespace=/a}"], 0, "the least")
		time.Sleep(fleetEvery)
		got = scrape(t, seen.from)
		require.InDelta(t, 1, got["pinboard_namespace_workers{namespace=/a,state=ready}"], 0)
		time.Sleep(time.Minute)
		got = scrape(t, seen.from)
		require.Contains(t, got, "pinboard_namespace_workers{namespace=/a,state=ready}")
		require.Empty(t, only(got, "pinboard_workers", "pinboard_namespace_workers", "pinboard_namespace_ids", "pinboard_namespace_lease"))
		require.NotContains(t, got, "pinboard_namespace_lease_left_seconds{namespace=/a}", "nobody has one")
	})
}

func TestTheLeaseOfAWorkerThatIsLeavingIsNotMinded(t *testing.T) {
	t.Parallel()
	inMeteredBubble(t, func(t *testing.T, n *regNode, seen *watched) {
		replaced := n.ready(10, "/a")
		time.Sleep(fleetEvery)
		n.workerAt(replaced.url).record("/a")
		require.Equal(t, map[string]float64{
			"pinboard_namespace_workers{namespace=/a,state=leaving}": 1, "pinboard_namespace_workers{namespace=/a,state=registering}": 1,
			"pinboard_namespace_lease_left_seconds{namespace=/a}": 15,
		}, only(scrape(t, seen.from), "pinboard_namespace_workers", "pinboard_namespace_lease_left"))
	})
}

func TestWhatHappensInTheFleetIsCountedOnEveryNode(t *testing.T) {
	t.Parallel()
	inMeteredBubble(t, func(t *testing.T, n *regNode, seen *watched) {
		w := n.ready(10, "/a")
		n.owner("/a", "x")
		n.ready(10, "/a")
		other := prometheus.NewPedanticRegistry()
		second := newRegNode(t, Options{Store: &Store{backend: regBackend{n.pb.opts.Store.backend.(regBackend).Backend, &regStore{}}}, Metrics: other}, nil)
		second.get("/healthz", "")
		scrape(t, other)
		require.NoError(t, n.store.Deregister(t.Context(), w.session)) // past the registry, which would tell
		n.told(
			store.Event{Kind: store.EventDegraded, Namespaces: []string{"/a"}},
			store.Event{Kind: store.EventFailover, Namespaces: []string{"/a"}, InstanceID: "x", Skipped: 4},
		)
		time.Sleep(20 * time.Second)
		want := map[string]float64{
			"pinboard_fleet_events_total{kind=lapsed}": 1, "pinboard_fleet_events_total{kind=degraded}": 1,
			"pinboard_fleet_events_total{kind=failover}": 5,
		}
		require.Equal(t, want, seen.gained("pinboard_fleet_events_total"))
		require.Equal(t, want, only(scrape(t, other), "pinboard_fleet_events_total"))
		time.Sleep(fleetEvery)
		require.Empty(t, seen.gained("pinboard_fleet_events_total"), "once")
		for range 3 * store.MaxEvents {
			n.told(store.Event{Kind: store.EventRegistered, Namespaces: []string{"/a"}})
		}
		time.Sleep(fleetEvery)
		require.Equal(t, map[string]float64{"pinboard_fleet_events_total{kind=registered}": 3 * store.MaxEvents}, seen.gained("pinboard_fleet_events_total"))
	})
}

func TestAQuarantineIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		n := newRegNode(t, Options{Metrics: registry}, nil)
		n.ready(10, "/a")
		require.InDelta(t, 0, scrape(t, registry)["pinboard_quarantine_left_seconds"], 0)
		_, err := n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(fleetEvery)
		got := scrape(t, registry)
		require.InDelta(t, 10, got["pinboard_quarantine_left_seconds"], 0.01)
		require.InDelta(t, 1, got["pinboard_resolves_total{outcome=quarantined}"], 0)
	})
}

func TestWhatTheStoreDoesIsMeasuredByOperation(t *testing.T) {
	t.Parallel()
	inMeteredBubble(t, func(t *testing.T, n *regNode, seen *watched) {
		w := n.ready(10, "/a")
		_, err := n.resolve("x", nil)
		require.NoError(t, err)
		got := seen.gained("pinboard_store_seconds_count{operation=resolve", "pinboard_store_seconds_count{operation=session", "pinboard_store_errors")
		require.Equal(t, map[string]float64{
			"pinboard_store_seconds_count{operation=resolve}": got["pinboard_store_seconds_count{operation=resolve}"],
			"pinboard_store_seconds_count{operation=session}": 1,
		}, got)
		require.Positive(t, got["pinboard_store_seconds_count{operation=resolve}"])

		// What is an answer is no failure.
		require.ErrorIs(t, n.pb.store.SetDegraded(t.Context(), "nobody", true), store.ErrNoSession)
		_, err = n.pb.store.Lookup(t.Context(), "/a", "nobody")
		require.ErrorIs(t, err, store.ErrNotPlaced)
		require.Empty(t, seen.gained("pinboard_store_errors"))

		n.store.freeze()
		_, err = n.resolve("y", nil)
		require.ErrorIs(t, err, errStoreAway)
		require.Equal(t, map[string]float64{
			"pinboard_store_errors_total{operation=resolve}": 1, "pinboard_resolves_total{outcome=store_failed}": 1,
		}, only(seen.gained("pinboard_store_errors", "pinboard_resolves"), "pinboard_store_errors_total{operation=resolve", "pinboard_resolves"))
		_, err = n.resolve("x", nil)
		require.NoError(t, err, "its owner's lease runs")
		require.Equal(t, map[string]float64{"pinboard_resolves_total{outcome=outage}": 1}, seen.gained("pinboard_resolves"))
		time.Sleep(fleetEvery)
		begun := time.Now()
		down := scrape(t, seen.from)
		require.LessOrEqual(t, time.Since(begun), storeTimeout, "who collects is not kept waiting for long")
		require.Contains(t, down, "pinboard_store_up")
		require.Zero(t, down["pinboard_store_up"])
		for _, name := range []string{"pinboard_workers", "pinboard_namespace_workers", "pinboard_quarantine"} {
			for series := range down {
				require.NotContains(t, series, name, "nothing is known of it")
			}
		}
		n.store.fail(nil)
		w.report(10)
		time.Sleep(fleetEvery)
		require.InDelta(t, 1, scrape(t, seen.from)["pinboard_store_up"], 0)
	})
}

func TestAFleetInRedisIsToldOfAsWell(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	client := redistest.New(t, redistest.Options{}).Client(t)
	f := newFront(t, metered(registry), func(s *setup) { s.opts.Store = &Store{backend: redis.New(client)} })
	s := f.register(newFake(t, nil), "a")
	s.place("alice")
	for range 3 {
		resp, _ := f.get("/counters/alice")
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	got := scrape(t, registry)
	for name, want := range map[string]float64{
		"pinboard_store_up": 1, "pinboard_workers{state=ready}": 1, "pinboard_namespace_workers{namespace=/counters,state=ready}": 1,
		"pinboard_namespace_ids{namespace=/counters}": 1, "pinboard_requests_total{code=2xx,kind=http,namespace=/counters}": 3,
	} {
		require.InDelta(t, want, got[name], 0, name)
	}
	require.Positive(t, got["pinboard_namespace_lease_left_seconds{namespace=/counters}"])
	require.Positive(t, got["pinboard_store_seconds_count{operation=resolve}"])
	require.Positive(t, got["pinboard_resolves_total{outcome=memory}"], "the store tells of changes through the layer that measures it")
}

// Several Prometheus servers may collect from one node.
func TestTheStoreIsNotAskedByEachCollection(t *testing.T) {
	t.Parallel()
	inMeteredBubble(t, func(t *testing.T, _ *regNode, seen *watched) {
		time.Sleep(fleetEvery)
		for range 10 {
			scrape(t, seen.from)
		}
		require.Equal(t, map[string]float64{"pinboard_store_seconds_count{operation=live}": 1}, seen.gained("pinboard_store_seconds_count{operation=live"))
	})
}

func TestCallsOfTheRegistryHeartbeatsAndProbesAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	n := newRegNode(t, Options{Metrics: registry}, nil)
	seen := watch(t, registry)
	series := []string{"pinboard_registry_calls_total", "pinboard_heartbeats_total", "pinboard_probe_seconds"}
	w := n.worker()
	w.register()
	require.Equal(t, map[string]float64{
		"pinboard_registry_calls_total{call=register,code=200}": 1, "pinboard_probe_seconds_count{outcome=passed}": 1,
	}, seen.gained(series...))
	w.heartbeat()
	require.Equal(t, map[string]float64{
		"pinboard_registry_calls_total{call=heartbeat,code=200}": 1, "pinboard_heartbeats_total{outcome=renewed}": 1,
		"pinboard_probe_seconds_count{outcome=passed}": 1,
	}, seen.gained(series...))
	for outcome, answer := range map[string]http.HandlerFunc{
		"other_process": func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) },
		"bad_answer":    func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTeapot) },
		"unreachable":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		w.answers(answer)
		w.heartbeat()
		require.Equal(t, map[string]float64{"pinboard_probe_seconds_count{outcome=" + outcome + "}": 1}, seen.gained("pinboard_probe_seconds"))
	}
	seen.gained()
	n.store.fail(errors.New("out"), "Heartbeat")
	w.heartbeat()
	n.store.fail(nil)
	require.NoError(t, n.store.Deregister(t.Context(), w.session))
	n.pb.leases.end(w.session)
	w.heartbeat()
	n.post("/registry/heartbeat", tokenUnknown, fields{})
	n.get("/registry/unheard-of", tokenOperator)
	n.get("/registry/health", tokenOperator)
	n.get("/registry/health", tokenWorker)
	require.Equal(t, map[string]float64{
		"pinboard_registry_calls_total{call=heartbeat,code=503}": 1, "pinboard_heartbeats_total{outcome=failed}": 1,
		"pinboard_registry_calls_total{call=heartbeat,code=409}": 1, "pinboard_heartbeats_total{outcome=reregister}": 1,
		"pinboard_registry_calls_total{call=heartbeat,code=401}": 1, "pinboard_heartbeats_total{outcome=refused}": 1,
		"pinboard_registry_calls_total{call=unknown,code=404}": 1,
		"pinboard_registry_calls_total{call=health,code=200}":  1, "pinboard_registry_calls_total{call=health,code=403}": 1,
	}, seen.gained(series...))
}
