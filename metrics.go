package pinboard

import (
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// metrics are a node's, on the host's registerer (Options.Metrics). All of them are
// one collector: a registry takes it whole or not at all. What counters have is
// read from there when it is collected. The methods of a nil *metrics do nothing;
// they are safe for concurrent use.
//
// No series is for an id, a session, an address or anything else that clients make
// up: labels are of kinds that kinds.go lists, and of namespaces that workers serve
// (see namespaces).
type metrics struct {
	registerer prometheus.Registerer // nil until registered
	once       sync.Once             // unregister
	collectors []prometheus.Collector

	namespaces *namespaces
	fleet      *fleetCollector
	resolving  prometheus.Histogram
	probes     []prometheus.Observer // by probeOutcome
	operations map[string]operation
	calls      *prometheus.CounterVec // by call and code
	callTime   *prometheus.HistogramVec
	beats      *prometheus.CounterVec // by outcome
}

// Buckets of histograms, in seconds.
var (
	// firstByteBuckets are for what an application answers.
	firstByteBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	// stepBuckets are for pinboard's own steps, none of which may take long.
	stepBuckets = []float64{.0005, .001, .0025, .005, .01, .05, .1, .5, 1, 2}
)

func newMetrics(p *Pinboard) *metrics {
	m := &metrics{namespaces: newNamespaces(), operations: map[string]operation{}}
	m.fleet = newFleetCollector(p, m.namespaces) // first: it finds out which namespaces there are
	m.collectors = append([]prometheus.Collector{m.fleet}, m.namespaces.collectors()...)
	m.addNode(p)
	m.addSteps()
	m.addRegistry()
	m.addBuildInfo()
	return m
}

// Heartbeats end in one of these; degraded ones are renewed.
const (
	beatRenewed    = "renewed"
	beatReregister = "reregister"
	beatSuperseded = "superseded"
	beatRefused    = "refused"
	beatFailed     = "failed"
)

// addNode adds what counters have.
func (m *metrics) addNode(p *Pinboard) {
	c := &p.counters
	m.count("pinboard_resolves_total", "Look-ups of an id's owner that have ended, by how.",
		prometheus.Labels{"outcome": "memory"}, func() int64 { return c.cacheHits.Load() - c.outages.Load() })
	m.count("pinboard_resolves_total", "Look-ups of an id's owner that have ended, by how.",
		prometheus.Labels{"outcome": "outage"}, c.outages.Load)
	addTally(m, prometheus.CounterValue, "pinboard_resolves_total", "Look-ups of an id's owner that have ended, by how.", "outcome", founds, &c.resolved)
	addTally(m, prometheus.CounterValue, "pinboard_placements_total", "Ids that look-ups of this node had placed, by why.", "cause", causes, &c.placed)
	addTally(m, prometheus.CounterValue, "pinboard_retries_total",
		"Requests that were sent to a second worker because the first one refused the id, by what it said.", "refusal", markers, &c.retries)
	addTally(m, prometheus.CounterValue, "pinboard_limit_hits_total", "How often a limit was reached.", "limit", limitNames, &c.limits)
	addTally(m, prometheus.GaugeValue, "pinboard_open_requests", "Requests, streams and WebSockets that are open to workers.", "kind", requestKinds, &c.proxying)
	m.gauge("pinboard_held_requests", "Requests that wait while their ids move.", func() float64 { return float64(c.held.Load()) })
	m.count("pinboard_holds_total", "Requests that had to wait while their ids moved.", nil, c.holds.Load)
	m.count("pinboard_holds_given_up_total", "Requests that waited while their ids moved, in vain.", nil, c.holdsGivenUp.Load)
	m.count("pinboard_hooks_dropped_total", "Calls of Options.Hooks that were dropped.", nil, p.HooksDropped)
	m.gauge("pinboard_lease_ttl_seconds", "Options.LeaseTTL: how long a worker's lease runs without a heartbeat.", p.opts.LeaseTTL.Seconds)
}

// addTally adds a series for each kind that has a name.
func addTally[K ~uint8](m *metrics, kind prometheus.ValueType, name, help, label string, names []string, t *tally[K]) {
	for i, value := range names {
		if value == "" {
			continue
		}
		labels := prometheus.Labels{label: value}
		if kind == prometheus.GaugeValue {
			m.collectors = append(m.collectors, prometheus.NewGaugeFunc(
				prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(t.get(K(i))) }))
			continue
		}
		m.count(name, help, labels, func() int64 { return t.get(K(i)) })
	}
}

func (m *metrics) count(name, help string, labels prometheus.Labels, read func() int64) {
	m.collectors = append(m.collectors, prometheus.NewCounterFunc(
		prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 { return float64(read()) }))
}

func (m *metrics) gauge(name, help string, read func() float64) {
	m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
}

// addSteps adds what a node's own steps took.
func (m *metrics) addSteps() {
	m.resolving = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "pinboard_resolve_seconds", Help: "What look-ups of an id's owner took that asked the store.", Buckets: stepBuckets,
	})
	probes := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinboard_probe_seconds", Help: "What asking a worker at its advertise URL took, by what came of it.", Buckets: stepBuckets,
	}, []string{"outcome"})
	for _, name := range probeOutcomes {
		m.probes = append(m.probes, probes.WithLabelValues(name))
	}
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinboard_store_seconds", Help: "What the store took, by operation.", Buckets: stepBuckets,
	}, []string{"operation"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinboard_store_errors_total", Help: "Operations that the store could not be asked for, or did not answer in time.",
	}, []string{"operation"})
	for _, name := range operations {
		op := operation{failed: failed.WithLabelValues(name)}
		if name != opKnown { // which is mostly answered without the store
			op.took = took.WithLabelValues(name)
		}
		m.operations[name] = op
	}
	m.collectors = append(m.collectors, m.resolving, probes, took, failed)
}

// addRegistry adds what workers and operators call.
func (m *metrics) addRegistry() {
	m.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinboard_registry_calls_total", Help: "Calls of the registry by workers and operators, by status code.",
	}, []string{"call", "code"})
	m.callTime = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinboard_registry_call_seconds", Help: "What calls of the registry took; streams of events left out.", Buckets: stepBuckets,
	}, []string{"call"})
	m.beats = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinboard_heartbeats_total", Help: "Heartbeats of workers, by what came of them.",
	}, []string{"outcome"})
	for _, name := range []string{beatRenewed, beatReregister, beatSuperseded, beatRefused, beatFailed} {
		m.beats.WithLabelValues(name)
	}
	m.collectors = append(m.collectors, m.calls, m.callTime, m.beats)
}

// addBuildInfo says what was built.
func (m *metrics) addBuildInfo() {
	version := buildVersion()
	m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pinboard_build_info", Help: "1; its labels are pinboard's version and that of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
}

// buildVersion is the version of this module in the program, "unknown" if that was
// not built from modules.
func buildVersion() string {
	const module = "github.com/pinboard-go/pinboard"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "" {
			return m.Version
		}
	}
	return "unknown"
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

// meter registers the metrics, if there is somebody to show them to.
func (p *Pinboard) meter() error {
	if p.metrics == nil {
		return nil
	}
	for path := range p.registry.endpoints {
		p.metrics.calls.WithLabelValues(callName(path), strconv.Itoa(http.StatusOK))
		if path != pathEvents {
			p.metrics.callTime.WithLabelValues(callName(path))
		}
	}
	if err := p.opts.Metrics.Register(p.metrics); err != nil {
		return fmt.Errorf("pinboard: Options.Metrics: %w "+
			"(pinboards that share a registry each need labels of their own: prometheus.WrapRegistererWith)", err)
	}
	p.metrics.registerer = p.opts.Metrics
	return nil
}

// unregister takes the metrics off the registerer, once: later it may have those
// of another Pinboard. What is being collected is waited for.
func (m *metrics) unregister() {
	if m == nil || m.registerer == nil {
		return
	}
	m.once.Do(func() {
		m.registerer.Unregister(m)
		m.fleet.stop()
	})
}

// observe takes in a request of the data plane that has ended.
func (m *metrics) observe(o *observed) {
	if m == nil {
		return
	}
	s := m.namespaces.of(o)
	s.requests[o.kind][codeClass(o.status)].Inc()
	switch {
	case o.reason != reasonNone:
		s.refusals[o.reason].Inc()
	case o.attempts > 0:
		s.firstByte.Observe(o.first.Seconds())
	}
	if o.cut != cutNone {
		s.cuts[o.cut].Inc()
	}
}

// codeClasses are the classes of status codes, from 1xx.
var codeClasses = []string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// codeClass is which of codeClasses a status belongs to.
func codeClass(status int) int { return min(max(status/100, 1), len(codeClasses)) - 1 }

func (m *metrics) lookedUp(began time.Time) {
	if m != nil {
		m.resolving.Observe(time.Since(began).Seconds())
	}
}

func (m *metrics) probed(began time.Time, err error) {
	if m != nil {
		m.probes[probeOutcomeOf(err)].Observe(time.Since(began).Seconds())
	}
}

// observe takes in a call of the registry; err is what it has refused.
func (g *registry) observe(path string, began time.Time, err error) {
	m := g.metrics
	if m == nil {
		return
	}
	call := "unknown"
	if _, known := g.endpoints[path]; known {
		call = callName(path)
	}
	status := http.StatusOK
	if err != nil {
		status = asRefusal(err).status
	}
	m.calls.WithLabelValues(call, strconv.Itoa(status)).Inc()
	if path != pathEvents {
		m.callTime.WithLabelValues(call).Observe(time.Since(began).Seconds())
	}
	if path == wire.PathHeartbeat {
		m.beats.WithLabelValues(beatOutcome(err)).Inc()
	}
}

// pathEvents is that of a call that may last as long as it likes.
const pathEvents = "/registry/events"

// callName is what one of the registry's own paths is in labels.
func callName(path string) string { return strings.TrimPrefix(path, "/registry/") }

func beatOutcome(err error) string {
	if err == nil {
		return beatRenewed
	}
	switch ref := asRefusal(err); {
	case ref.superseded:
		return beatSuperseded
	case ref.reregister:
		return beatReregister
	case ref.status >= http.StatusInternalServerError:
		return beatFailed
	}
	return beatRefused
}
