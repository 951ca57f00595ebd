package worker

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a worker counts, under the names and labels of the Python
// client, so that one dashboard shows a mixed fleet. Every worker has them; they
// are seen once they are registered. All of them are one collector: a registry
// takes it whole or not at all. Safe for concurrent use.
type metrics struct {
	collectors []prometheus.Collector

	aborts               prometheus.Counter
	registrationFailures prometheus.Counter
	duplicateQuits       prometheus.Counter
	requestFailures      *prometheus.CounterVec
	callbackFailures     *prometheus.CounterVec
	shutdownFailures     *prometheus.CounterVec
	controlFailures      *prometheus.CounterVec
	requestDuration      *prometheus.HistogramVec
}

// The label values of the counters. All series exist from the start: a rate
// over a series that appears with its first event misses that event.
var (
	// setupPhases are those of a request before its handler runs. The Python
	// client has more of them.
	setupPhases = []string{"construct"}
	transports  = []string{"http", "websocket"}
	// hookLabels holds the label of each callback by its name.
	hookLabels = map[string]string{
		"OnUnhealthy": "on_unhealthy",
		"OnRestored":  "on_restored",
		"OnWindDown":  "on_wind_down",
		"OnIdle":      "on_idle",
		"OnClose":     "on_close",
		"Headroom":    "headroom",
		"SetStats":    "stats",
	}
	// shutdownPhases: in "directory" the instances end.
	shutdownPhases  = []string{"directory"}
	controlFailures = map[string][]string{ // reasons by operation
		"register":        {"transport", "unauthorized", "deferred", "rejected", "malformed", "malformed_duplicates"},
		"heartbeat":       {"transport", "unauthorized", "rejected", "malformed", "superseded"},
		"control_message": {"malformed_batch", "malformed", "callback"},
		"server_draining": {"malformed_deadline"},
		"release":         {"exhausted"},
		"deregister":      {"exhausted"},
	}
)

// durationBuckets are the Python client's, in seconds.
var durationBuckets = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// newMetrics returns the metrics of w, which is read whenever they are
// collected: what is true at one moment only is never kept.
func newMetrics(w *Worker) *metrics {
	m := &metrics{}
	m.addState(w)
	m.aborts = m.counter("pinned_instance_aborts_total",
		"Closed instances that had work under way, which was cancelled.")
	m.registrationFailures = m.counter("pinned_registration_failures_total",
		"Attempts to register with pinboard that failed.")
	m.duplicateQuits = m.counter("pinned_duplicate_quits_total",
		"Instances that quit because a registration found their ids placed elsewhere.")
	m.requestFailures = m.counters("pinned_request_failures_total",
		"Requests that failed before their handler ran, by phase and transport.", "phase", "transport")
	m.callbackFailures = m.counters("pinned_callback_failures_total",
		"Callbacks of the application that failed, by hook.", "hook")
	m.shutdownFailures = m.counters("pinned_shutdown_failures_total",
		"Shutdowns that failed, by phase.", "phase")
	m.controlFailures = m.counters("pinned_control_plane_failures_total",
		"Failures between worker and pinboard, by operation and reason.", "operation", "reason")
	m.requestDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pinned_request_duration_seconds",
		Help:    "Time from a request's arrival until its handler returned or its response became a stream.",
		Buckets: durationBuckets,
	}, []string{"namespace"})
	m.collectors = append(m.collectors, m.requestDuration)
	m.addSeries()
	return m
}

// addState adds what the worker's parts know already.
func (m *metrics) addState(w *Worker) {
	gauge := func(name, help string, read func() float64) {
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	count := func(name, help string, read func() float64) {
		m.collectors = append(m.collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
	}
	count("pinned_instance_activations_total", "Activated instances.", func() float64 {
		activations, _ := w.dir.totals()
		return float64(activations)
	})
	count("pinned_instance_evictions_total", "Closed instances, for whatever cause.", func() float64 {
		_, evictions := w.dir.totals()
		return float64(evictions)
	})
	gauge("pinned_active_instances", "Live instances.", func() float64 {
		activations, evictions := w.dir.totals()
		return float64(activations - evictions)
	})
	gauge("pinned_lease_healthy", "1 while heartbeats are accepted in time, else 0.", func() float64 {
		return oneIf(w.lease.beats())
	})
	gauge("pinned_registered", "1 while registered with pinboard, else 0.", func() float64 {
		// Local mode only seems so to the rest of the worker. A shutdown that
		// did not succeed leaves the session to its lease.
		return oneIf(w.reg.isRegistered() && !w.opts.local() && w.dir.life.Err() == nil)
	})
}

func (m *metrics) addSeries() {
	for _, phase := range setupPhases {
		for _, transport := range transports {
			m.requestFailures.WithLabelValues(phase, transport)
		}
	}
	for _, hook := range hookLabels {
		m.callbackFailures.WithLabelValues(hook)
	}
	for _, phase := range shutdownPhases {
		m.shutdownFailures.WithLabelValues(phase)
	}
	for operation, reasons := range controlFailures {
		for _, reason := range reasons {
			m.controlFailures.WithLabelValues(operation, reason)
		}
	}
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.collectors = append(m.collectors, c)
	return c
}

func (m *metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.collectors = append(m.collectors, c)
	return c
}

// Describe is for the registry (prometheus.Collector).
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(descs)
	}
}

// Collect is for the registry (prometheus.Collector).
func (m *metrics) Collect(values chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(values)
	}
}

// register shows the metrics, if there is somebody to show them to.
func (m *metrics) register(to prometheus.Registerer) error {
	if to == nil {
		return nil
	}
	if err := to.Register(m); err != nil {
		return fmt.Errorf("worker: Options.Registerer: %w "+
			"(workers that share a registry each need labels of their own: prometheus.WrapRegistererWith)", err)
	}
	return nil
}

func (m *metrics) unregister(from prometheus.Registerer) {
	if from != nil {
		from.Unregister(m)
	}
}

// refused counts a refusal that the instance's constructor is to blame for.
func (m *metrics) refused(ref *refusal, r *http.Request) {
	if ref == refuseFailed || ref == refusePanicked {
		m.requestFailures.WithLabelValues("construct", transportOf(r)).Inc()
	}
}

func transportOf(r *http.Request) string {
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return "websocket"
	}
	return "http"
}

// callbackFailed counts a failure of an application's callback, which is one of
// hookLabels.
func (m *metrics) callbackFailed(name string) {
	m.callbackFailures.WithLabelValues(hookLabels[name]).Inc()
}

func (m *metrics) registrationFailed(reason string) {
	m.registrationFailures.Inc()
	m.controlFailed("register", reason)
}

// controlFailed counts a failure, which is one of controlFailures.
func (m *metrics) controlFailed(operation, reason string) {
	m.controlFailures.WithLabelValues(operation, reason).Inc()
}

func (m *metrics) shutdownFailed(phase string) {
	m.shutdownFailures.WithLabelValues(phase).Inc()
}

// host adds the series of a namespace and returns where its requests are
// observed: they look nothing up.
func (m *metrics) host(namespace string) prometheus.Observer {
	return m.requestDuration.WithLabelValues(namespace)
}

// stopwatch measures one request, once. Safe for concurrent use: a middleware
// may return before the handler that it called in another goroutine.
type stopwatch struct {
	clock   clock
	began   time.Duration // monotonic
	into    prometheus.Observer
	stopped atomic.Bool
}

// stop observes the time so far, unless that was done before.
func (s *stopwatch) stop() {
	if !s.stopped.Load() {
		s.stopAt(s.clock().mono)
	}
}

func (s *stopwatch) stopAt(now time.Duration) {
	if !s.stopped.Swap(true) {
		s.into.Observe((now - s.began).Seconds())
	}
}

// totals returns how many instances of all namespaces were activated, and how
// many of those were closed since: the others are live.
func (d *directory) totals() (activations, evictions int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, counts := range d.counts {
		activations += counts.Activations
		evictions += counts.Evictions
	}
	return activations, evictions
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
