package pinboard

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxNamespaces bounds the namespaces of which there are series: workers whose
	// claims allow any may make them up.
	maxNamespaces = 250
	// namespaceMemory is how long a namespace that no worker serves any more keeps
	// its series: as long as the store remembers it, so that somebody can be told.
	namespaceMemory = 24 * time.Hour
	// otherNamespace is the label of all that have no series of their own. It is
	// none's name, for those begin with a slash.
	otherNamespace = "other"
)

// namespaces are the series of single namespaces. A namespace gets them once this
// node knows that workers serve it, by the store's word: a name that only a client
// has said never does.
type namespaces struct {
	requests, refusals, cuts *prometheus.CounterVec
	firstByte                *prometheus.HistogramVec

	known atomic.Pointer[map[string]*namespaceSeries] // never changed, but replaced
	other *namespaceSeries

	mu   sync.Mutex           // for replacing known
	seen map[string]time.Time // when workers were last known to serve it
}

// namespaceSeries are those of one namespace, so that requests look no labels up.
type namespaceSeries struct {
	requests  [][]prometheus.Counter // by kind, and class of the status code
	refusals  []prometheus.Counter   // by reason
	cuts      []prometheus.Counter   // by cut
	firstByte prometheus.Observer
}

func newNamespaces() *namespaces {
	n := &namespaces{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinboard_requests_total", Help: "Requests of the data plane that have ended, by kind and class of the status code.",
		}, []string{"namespace", "kind", "code"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinboard_refusals_total", Help: "Requests that pinboard answered in place of a worker, by why.",
		}, []string{"namespace", "reason"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pinboard_cuts_total", Help: "Answers and WebSockets that ended before their end, by why.",
		}, []string{"namespace", "reason"}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pinboard_first_byte_seconds", Help: "Time from a request's coming to the head of a worker's answer.",
			Buckets: firstByteBuckets,
		}, []string{"namespace"}),
		seen: map[string]time.Time{},
	}
	n.other = n.series(otherNamespace)
	n.known.Store(&map[string]*namespaceSeries{})
	return n
}

func (n *namespaces) collectors() []prometheus.Collector {
	return []prometheus.Collector{n.requests, n.refusals, n.cuts, n.firstByte}
}

// series makes all series of a namespace: a rate over one that comes with its
// first event would miss that event.
func (n *namespaces) series(name string) *namespaceSeries {
	s := &namespaceSeries{firstByte: n.firstByte.WithLabelValues(name)}
	for _, kind := range requestKinds {
		var classes []prometheus.Counter
		for _, class := range codeClasses {
			classes = append(classes, n.requests.WithLabelValues(name, kind, class))
		}
		s.requests = append(s.requests, classes)
	}
	each := func(vec *prometheus.CounterVec, values []string) []prometheus.Counter {
		counters := make([]prometheus.Counter, len(values))
		for i, value := range values {
			if value != "" {
				counters[i] = vec.WithLabelValues(name, value)
			}
		}
		return counters
	}
	s.refusals, s.cuts = each(n.refusals, reasonNames), each(n.cuts, cuts)
	return s
}

// of returns the series for a request.
func (n *namespaces) of(o *observed) *namespaceSeries {
	name := o.instance.namespace
	if s := (*n.known.Load())[name]; s != nil {
		return s
	}
	if !o.served() {
		return n.other
	}
	n.admit(name)
	if s := (*n.known.Load())[name]; s != nil {
		return s
	}
	return n.other
}

// served reports whether the request has shown that workers serve its namespace.
func (o *observed) served() bool {
	switch o.reason {
	case reasonQuarantine, reasonNoWorker, reasonOwnerDown:
		return true
	}
	return o.owner != nil
}

// admit notes that workers serve these namespaces now, and makes their series
// while there is room.
func (n *namespaces) admit(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, known := time.Now(), *n.known.Load()
	changed := false
	for _, name := range names {
		if known[name] == nil {
			if len(known) >= maxNamespaces || !utf8.ValidString(name) {
				continue
			}
			if !changed {
				known, changed = maps.Clone(known), true
			}
			known[name] = n.series(name)
		}
		n.seen[name] = now
	}
	if changed {
		n.known.Store(&known)
	}
}

// forget takes the series of namespaces away that nobody has served for long.
func (n *namespaces) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	var kept map[string]*namespaceSeries
	for name, last := range n.seen {
		if time.Since(last) < namespaceMemory {
			continue
		}
		if kept == nil {
			kept = maps.Clone(*n.known.Load())
		}
		delete(kept, name)
		delete(n.seen, name)
		label := prometheus.Labels{"namespace": name}
		for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{n.requests, n.refusals, n.cuts, n.firstByte} {
			vec.DeletePartialMatch(label)
		}
	}
	if kept != nil {
		n.known.Store(&kept)
	}
}

// names returns the namespaces that have series of their own.
func (n *namespaces) names() map[string]*namespaceSeries { return *n.known.Load() }
