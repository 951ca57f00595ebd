package pinboard

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// hits is the series of one limit that was reached so often.
func hits(limit string, n float64) map[string]float64 {
	return map[string]float64{"pinboard_limit_hits_total{limit=" + limit + "}": n}
}

func TestEachLimitThatARequestReachesIsCounted(t *testing.T) {
	t.Parallel()
	get := "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"
	silent := func(h *hit) { h.gone() }
	hinting := func(h *hit) {
		h.send(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 3))
		h.gone()
	}
	for limit, c := range map[string]struct {
		opts   Options
		worker func(*hit)
		do     func(b *limited)
	}{
		"url": {Options{Limits: Limits{URLBytes: 50}}, silent, func(b *limited) {
			b.ask("GET /counters/" + strings.Repeat("x", 50) + " HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET")
		}},
		"header": {Options{Limits: Limits{HeaderLines: 1}}, silent, func(b *limited) {
			b.ask("GET /counters/x HTTP/1.1\r\nHost: p\r\nA: 1\r\nB: 1\r\n\r\n").answer("GET")
		}},
		"body": {Options{Limits: Limits{BodyBytes: 1}}, silent, func(b *limited) {
			b.ask("POST /counters/x HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\nxx").answer("POST")
		}},
		"body_pause": {Options{}, func(h *hit) { h.body(); h.gone() }, func(b *limited) {
			b.ask("POST /counters/x HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\nx").answer("POST")
		}},
		"requests":        {Options{Limits: Limits{Requests: 1}}, silent, func(b *limited) { b.ask(get); synctest.Wait(); b.ask(get).answer("GET") }},
		"requests_per_id": {Options{Limits: Limits{RequestsPerID: 1}}, silent, func(b *limited) { b.ask(get); synctest.Wait(); b.ask(get).answer("GET") }},
		"replay": {Options{Limits: Limits{ReplayBytes: 1}}, silent, func(b *limited) {
			b.ask("POST /counters/x HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody")
			synctest.Wait()
		}},
		"answer_timeout":  {Options{Limits: Limits{AnswerTimeout: time.Second}}, silent, func(b *limited) { b.ask(get).answer("GET") }},
		"upgrade_timeout": {Options{}, silent, func(b *limited) { b.ask(upgradeRequest("/counters/x")).answer("GET") }},
		"informational":   {Options{Limits: Limits{Informational: 2}}, hinting, func(b *limited) { b.ask(get); time.Sleep(time.Second) }},
		"held": {Options{PlacementHold: time.Minute, MaxHeld: 1}, silent, func(b *limited) {
			_, err := b.store.Drain(b.t.Context(), "worker", nil)
			require.NoError(b.t, err)
			b.ask(get)
			synctest.Wait()
			b.ask(get).answer("GET")
		}},
	} {
		registry := prometheus.NewPedanticRegistry()
		c.opts.Metrics = registry
		inBubble(t, c.opts, c.worker, func(t *testing.T, b *limited) {
			seen := watch(t, registry)
			c.do(b)
			synctest.Wait()
			require.Equal(t, hits(limit, 1), seen.gained("pinboard_limit_hits_total"), limit)
		})
	}
}

func TestRequestsTooManyOfAnAddressAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry), func(s *setup) { s.opts.Limits.RequestsPerAddress = 1 })
	there := make(chan struct{})
	f.register(newFake(t, func(h *hit) { close(there); h.gone() }), "a")
	seen := watch(t, registry)
	f.waiting("/counters/alice")
	<-there
	resp, _ := f.get("/counters/alice")
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Equal(t, hits("requests_per_address", 1), seen.gained("pinboard_limit_hits_total"))
}

func TestNewIDsTooManyForAnAddressAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry), func(s *setup) { s.opts.Limits.PlacementsPerAddress = 1 })
	f.register(newFake(t, nil), "a")
	seen := watch(t, registry)
	f.get("/counters/alice")
	f.get("/counters/bob")
	f.get("/counters/carol")
	require.Equal(t, hits("placements_per_address", 2), seen.gained("pinboard_limit_hits_total"))
	require.InDelta(t, 2, scrape(t, registry)["pinboard_resolves_total{outcome=limited}"], 0)
}

func TestEachLimitThatAWorkersCallReachesIsCounted(t *testing.T) {
	t.Parallel()
	who := &passport.Identity{Provider: "pinboard", Subject: "worker"}
	for limit, c := range map[string]struct {
		limits Limits
		do     func(n *regNode)
	}{
		"registrations": {Limits{Registrations: 1}, func(n *regNode) {
			done, err := n.pb.limiter.register(n.t.Context(), who)
			require.NoError(n.t, err)
			defer done()
			n.post("/registry/register", tokenWorker, fields{}).requireRefusal(n.t, http.StatusServiceUnavailable, "too many")
		}},
		"registry_bytes": {Limits{}, func(n *regNode) {
			require.True(n.t, n.pb.limiter.bodies.TryAcquire(n.pb.opts.Limits.RegistryBytes))
			defer n.pb.limiter.bodies.Release(n.pb.opts.Limits.RegistryBytes)
			n.post("/registry/release", tokenWorker, strings.Repeat(" ", smallBody+1)).requireRefusal(n.t, http.StatusServiceUnavailable, "too many")
		}},
		"probes": {Limits{Probes: 1}, func(n *regNode) {
			done, ok := n.pb.limiter.probe(who)
			require.True(n.t, ok)
			defer done()
			w := n.workerAt("http://127.0.0.1:1")
			w.record("/a")
			require.Equal(n.t, http.StatusOK, w.heartbeat().status)
		}},
		"instances": {Limits{Instances: 1}, func(n *regNode) {
			w := n.workerAt("http://127.0.0.1:1")
			n.post("/registry/register", tokenWorker, w.registration(fields{"instances": map[string][]string{"/a": {"x", "y"}}})).
				requireRefusal(n.t, http.StatusBadRequest, "instances")
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			registry := prometheus.NewPedanticRegistry()
			n := newRegNode(t, Options{Limits: c.limits, Metrics: registry}, nil)
			seen := watch(t, registry)
			c.do(n)
			require.Equal(t, hits(limit, 1), seen.gained("pinboard_limit_hits_total"), limit)
		})
	}
}
