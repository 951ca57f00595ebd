package worker

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

// scrape reads all series as a Prometheus would: counters and gauges by their
// name and labels, of a histogram its count and sum.
func scrape(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += "," + l.GetName() + "=" + l.GetValue()
			}
			if labels != "" {
				labels = "{" + labels[1:] + "}"
			}
			name := family.GetName()
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				series[name+labels] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				series[name+labels] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				series[name+"_count"+labels] = float64(m.GetHistogram().GetSampleCount())
				series[name+"_sum"+labels] = m.GetHistogram().GetSampleSum()
			default:
				require.Fail(t, "unexpected type", family.String())
			}
		}
	}
	return series
}

// metered are options with a registry that checks what it collects.
func metered() (Options, *prometheus.Registry) {
	registry := prometheus.NewPedanticRegistry()
	return Options{Registerer: registry}, registry
}

// The Python client's metrics (pinned 0.16.0), so that one dashboard does for
// both. A histogram's labels are without le.
func TestMetricsAreThoseOfThePythonClient(t *testing.T) {
	t.Parallel()
	type metric struct {
		kind   dto.MetricType
		labels []string
	}
	want := map[string]metric{
		"pinned_instance_activations_total":   {dto.MetricType_COUNTER, nil},
		"pinned_instance_evictions_total":     {dto.MetricType_COUNTER, nil},
		"pinned_instance_aborts_total":        {dto.MetricType_COUNTER, nil},
		"pinned_active_instances":             {dto.MetricType_GAUGE, nil},
		"pinned_lease_healthy":                {dto.MetricType_GAUGE, nil},
		"pinned_registered":                   {dto.MetricType_GAUGE, nil},
		"pinned_registration_failures_total":  {dto.MetricType_COUNTER, nil},
		"pinned_duplicate_quits_total":        {dto.MetricType_COUNTER, nil},
		"pinned_request_failures_total":       {dto.MetricType_COUNTER, []string{"phase", "transport"}},
		"pinned_callback_failures_total":      {dto.MetricType_COUNTER, []string{"hook"}},
		"pinned_shutdown_failures_total":      {dto.MetricType_COUNTER, []string{"phase"}},
		"pinned_control_plane_failures_total": {dto.MetricType_COUNTER, []string{"operation", "reason"}},
		"pinned_request_duration_seconds":     {dto.MetricType_HISTOGRAM, []string{"namespace"}},
	}
	opts, registry := metered()
	inBubble(t, opts, hosting(echo), func(t *testing.T, _ *harness) {
		families, err := registry.Gather()
		require.NoError(t, err)
		got := map[string]metric{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName())
				}
				got[family.GetName()] = metric{family.GetType(), labels}
				if h := m.GetHistogram(); h != nil {
					var bounds []float64
					for _, b := range h.GetBucket() {
						bounds = append(bounds, b.GetUpperBound())
					}
					require.Equal(t, []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}, bounds)
				}
			}
		}
		require.Equal(t, want, got)

		problems, err := testutil.GatherAndLint(registry)
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}

func TestAllSeriesExistFromTheStart(t *testing.T) {
	t.Parallel()
	want := map[string]float64{}
	for _, name := range []string{
		"pinned_instance_activations_total", "pinned_instance_evictions_total", "pinned_instance_aborts_total",
		"pinned_active_instances", "pinned_lease_healthy", "pinned_registered",
		"pinned_registration_failures_total", "pinned_duplicate_quits_total",
		"pinned_request_failures_total{phase=construct,transport=http}",
		"pinned_request_failures_total{phase=construct,transport=websocket}",
		"pinned_callback_failures_total{hook=on_unhealthy}",
		"pinned_callback_failures_total{hook=on_restored}",
		"pinned_callback_failures_total{hook=on_wind_down}",
		"pinned_callback_failures_total{hook=on_idle}",
		"pinned_callback_failures_total{hook=on_close}",
		"pinned_callback_failures_total{hook=stats}",
		"pinned_callback_failures_total{hook=headroom}",
		"pinned_shutdown_failures_total{phase=directory}",
		"pinned_control_plane_failures_total{operation=register,reason=transport}",
		"pinned_control_plane_failures_total{operation=register,reason=unauthorized}",
		"pinned_control_plane_failures_total{operation=register,reason=deferred}",
		"pinned_control_plane_failures_total{operation=register,reason=rejected}",
		"pinned_control_plane_failures_total{operation=register,reason=malformed}",
		"pinned_control_plane_failures_total{operation=register,reason=malformed_duplicates}",
		"pinned_control_plane_failures_total{operation=heartbeat,reason=transport}",
		"pinned_control_plane_failures_total{operation=heartbeat,reason=unauthorized}",
		"pinned_control_plane_failures_total{operation=heartbeat,reason=rejected}",
		"pinned_control_plane_failures_total{operation=heartbeat,reason=malformed}",
		"pinned_control_plane_failures_total{operation=heartbeat,reason=superseded}",
		"pinned_control_plane_failures_total{operation=control_message,reason=malformed_batch}",
		"pinned_control_plane_failures_total{operation=control_message,reason=malformed}",
		"pinned_control_plane_failures_total{operation=control_message,reason=callback}",
		"pinned_control_plane_failures_total{operation=server_draining,reason=malformed_deadline}",
		"pinned_control_plane_failures_total{operation=release,reason=exhausted}",
		"pinned_control_plane_failures_total{operation=deregister,reason=exhausted}",
		"pinned_request_duration_seconds_count{namespace=/c}",
		"pinned_request_duration_seconds_sum{namespace=/c}",
		"pinned_request_duration_seconds_count{namespace=/d}",
		"pinned_request_duration_seconds_sum{namespace=/d}",
	} {
		want[name] = 0
	}
	opts, registry := metered()
	inBubble(t, opts, map[string]Constructor{"/c": echo, "/d": echo}, func(t *testing.T, h *harness) {
		require.Error(t, h.w.Host("/c", echo))
		require.Error(t, h.w.Host("wrong", echo), "what is not hosted has no series")
		require.Equal(t, want, scrape(t, registry))
	})
}

func TestASecondWorkerOnARegistryIsRefused(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	inBubble(t, opts, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		again := complete()
		again.Registerer = registry
		_, err := New(again)
		require.ErrorContains(t, err, "Options.Registerer")
		require.ErrorContains(t, err, "WrapRegistererWith")
		require.ErrorAs(t, err, &prometheus.AlreadyRegisteredError{})
		require.Equal(t, 1.0, scrape(t, registry)["pinned_registered"], "the first one's stay")
	})
}

func TestWorkersOfOneRegistryAreToldApartByLabels(t *testing.T) {
	t.Parallel()
	_, registry := metered()
	labelled := func(name string) Options {
		return Options{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"worker": name}, registry)}
	}
	inBubble(t, labelled("a"), hosting(echo), func(t *testing.T, a *harness) {
		b := newHarness(t, labelled("b"), hosting(echo))
		b.start()
		require.Equal(t, http.StatusOK, b.get("/c/1").Code)
		series := scrape(t, registry)
		require.Equal(t, 0.0, series["pinned_registered{worker=a}"])
		require.Equal(t, 1.0, series["pinned_registered{worker=b}"])
		require.Equal(t, 1.0, series["pinned_request_duration_seconds_count{namespace=/c,worker=b}"])
		b.stop()
		series = scrape(t, registry)
		require.Contains(t, series, "pinned_registered{worker=a}")
		require.NotContains(t, series, "pinned_registered{worker=b}")
	})
}

func TestAWorkerThatIsNotMadeRegistersNothing(t *testing.T) {
	t.Parallel()
	t.Run("other options are wrong", func(t *testing.T) {
		t.Parallel()
		opts, registry := metered()
		opts.MaxInstances = -1
		_, err := New(opts)
		require.ErrorContains(t, err, "MaxInstances")
		require.Empty(t, scrape(t, registry))
	})
	t.Run("one of the names is taken", func(t *testing.T) {
		t.Parallel()
		_, registry := metered()
		registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pinned_request_duration_seconds", Help: "The host's own.",
		}))
		opts := complete()
		opts.Registerer = registry
		_, err := New(opts)
		require.ErrorContains(t, err, "worker: Options.Registerer: ")
		require.Len(t, scrape(t, registry), 1)
	})
}

func TestShutdownFreesTheRegistryForTheNextWorker(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	var stuck chan struct{}
	construct := func(inst *Instance) (http.Handler, error) {
		inst.OnClose(func(context.Context) error { <-stuck; return nil })
		return echo(inst)
	}
	inBubble(t, opts, hosting(construct), func(t *testing.T, h *harness) {
		stuck = make(chan struct{}) // of this bubble
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		before := scrape(t, registry)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Error(t, h.w.Shutdown(ctx))
		require.Equal(t, map[string]float64{
			"pinned_shutdown_failures_total{phase=directory}": 1,
			"pinned_registered":               -1,
			"pinned_lease_healthy":            -1,
			"pinned_active_instances":         -1,
			"pinned_instance_evictions_total": 1,
			"pinned_instance_aborts_total":    1,
		}, changes(before, scrape(t, registry)), "one that failed goes on and is seen")

		close(stuck)
		h.stop()
		require.Empty(t, scrape(t, registry))
		next := newHarness(t, opts, hosting(echo))
		defer next.stop()
		h.stop() // again, which must not take the next one's away
		next.start()
		require.Equal(t, 1.0, scrape(t, registry)["pinned_registered"])
	})
}

// changes returns by how much series have moved, new and vanished ones included.
func changes(before, after map[string]float64) map[string]float64 {
	moved := map[string]float64{}
	for name, is := range after {
		if was, ok := before[name]; !ok {
			moved["new: "+name] = is
		} else if is != was {
			moved[name] = is - was
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			moved["gone: "+name] = 0
		}
	}
	return moved
}

func TestScrapesRunBesideEverythingElse(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	const clients, each = 8, 25
	inBubble(t, opts, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		var work sync.WaitGroup
		for range clients {
			work.Go(func() {
				for i := range each {
					id := string(rune('a' + i))
					h.get("/c/" + id)
					if i%5 == 0 {
						h.w.dir.abort(key{"/c", id}, errOwnAbort)
					}
				}
			})
			work.Go(func() {
				for range each {
					series := scrape(t, registry)
					live := series["pinned_active_instances"]
					if live < 0 || live > each {
						t.Errorf("%v live instances", live)
					}
				}
			})
		}
		work.Wait()
		h.after(time.Second)
		series := scrape(t, registry)
		require.Equal(t, float64(clients*each), series["pinned_request_duration_seconds_count{namespace=/c}"])
		require.Equal(t, float64(len(h.w.Stats().Instances)), series["pinned_active_instances"])
	})
}
