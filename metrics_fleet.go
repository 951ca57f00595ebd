package pinboard

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// fleetEvery is how long what was read of the fleet is good for: several may
	// collect at once.
	fleetEvery = 5 * time.Second
	// eventPages bounds the pages of events that are read at once; more are read
	// the next time.
	eventPages = 4
)

// workerStates are those of stateOf.
var workerStates = []string{stateReady, stateRegistering, stateDraining, stateDegraded, stateLeaving}

// eventKinds are all kinds of events.
var eventKinds = []store.Kind{
	store.EventRegistered, store.EventLapsed, store.EventDeregistered, store.EventDrained, store.EventUndrained, store.EventWindDown,
	store.EventFailover, store.EventRefused, store.EventDisplaced, store.EventSuperseded, store.EventDegraded, store.EventRecovered,
	store.EventQuarantine,
}

// fleetCollector tells of the fleet, which all nodes share, so that all tell the
// same: it asks the store when it is collected. While the store does not answer
// it tells nothing but that.
type fleetCollector struct {
	p          *Pinboard
	namespaces *namespaces

	up, workers, served, headroom, placed, lease, quarantine, events *prometheus.Desc

	mu       sync.Mutex
	stopped  bool
	read     time.Time
	reached  bool
	writable bool
	sessions []store.Session
	counts   [][]int
	left     time.Duration
	happened map[store.Kind]int64
	from     int64 // the event that was counted last
	begun    bool  // from is known
}

func newFleetCollector(p *Pinboard, n *namespaces) *fleetCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &fleetCollector{
		p: p, namespaces: n, happened: map[store.Kind]int64{},
		up:       desc("pinboard_store_up", "1 if the store has just answered, and takes writes, else 0."),
		workers:  desc("pinboard_workers", "Live workers of the fleet.", "state"),
		served:   desc("pinboard_namespace_workers", "Live workers of the fleet that serve the namespace.", "namespace", "state"),
		headroom: desc("pinboard_namespace_headroom", "What the namespace's ready workers have left for placements.", "namespace"),
		placed:   desc("pinboard_namespace_ids", "Ids of the namespace that have a live owner.", "namespace"),
		lease: desc("pinboard_namespace_lease_left_seconds",
			"The least that any of the namespace's workers has left of its lease; those that are leaving left out.", "namespace"),
		quarantine: desc("pinboard_quarantine_left_seconds", "What is left of the longest quarantine, 0 without one."),
		events:     desc("pinboard_fleet_events_total", "What has happened in the fleet since this node was first asked, on any node.", "kind"),
	}
}

// stop ends the reading, and waits for it.
func (c *fleetCollector) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.workers, c.served, c.headroom, c.placed, c.lease, c.quarantine, c.events} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(values chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped && (c.read.IsZero() || time.Since(c.read) >= fleetEvery) {
		c.refresh()
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(c.up, oneIf(c.reached && c.writable))
	for _, kind := range eventKinds {
		values <- prometheus.MustNewConstMetric(c.events, prometheus.CounterValue, float64(c.happened[kind]), string(kind))
	}
	if !c.reached {
		return
	}
	gauge(c.quarantine, c.left.Seconds())
	states := map[string]int{}
	for i := range c.sessions {
		states[stateOf(&c.sessions[i])]++
	}
	for _, state := range workerStates {
		gauge(c.workers, float64(states[state]), state)
	}
	for name, of := range c.byNamespace() {
		for _, state := range workerStates {
			gauge(c.served, float64(of.states[state]), name, state)
		}
		gauge(c.headroom, of.headroom, name)
		gauge(c.placed, float64(of.placed), name)
		if of.lease > 0 {
			gauge(c.lease, of.lease.Seconds(), name)
		}
	}
}

// namespaceFleet is what the fleet has for one namespace, under all host names.
type namespaceFleet struct {
	states   map[string]int
	headroom float64
	placed   int
	lease    time.Duration // 0 without a worker
}

// byNamespace counts; namespaces that workers have left are there with nothing.
func (c *fleetCollector) byNamespace() map[string]*namespaceFleet {
	all := map[string]*namespaceFleet{}
	for name := range c.namespaces.names() {
		all[name] = &namespaceFleet{states: map[string]int{}}
	}
	for i := range c.sessions {
		s := &c.sessions[i]
		state := stateOf(s)
		for j, name := range s.Namespaces {
			of := all[name]
			if of == nil { // there are too many
				if of = all[otherNamespace]; of == nil {
					of = &namespaceFleet{states: map[string]int{}}
					all[otherNamespace] = of
				}
			}
			of.states[state]++
			of.placed += c.counts[i][j]
			if state == stateReady {
				of.headroom += s.Headroom
			}
			if left := max(s.TTL, 0); state != stateLeaving && (of.lease == 0 || left < of.lease) {
				of.lease = left
			}
		}
	}
	return all
}

// refresh asks the store; the caller holds the lock.
func (c *fleetCollector) refresh() {
	// Nobody who collects says how long he waits.
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	pinged := make(chan error, 1)
	go func() { pinged <- c.p.ping(ctx) }()
	err := c.ask(ctx)
	c.writable = <-pinged == nil
	c.reached, c.read = err == nil, time.Now()
	c.namespaces.forget()
}

func (c *fleetCollector) ask(ctx context.Context) (err error) {
	s := c.p.store
	if c.sessions, err = s.Live(ctx); err != nil {
		return err
	}
	for i := range c.sessions {
		c.namespaces.admit(c.sessions[i].Namespaces...)
	}
	if c.counts, err = s.Counts(ctx, c.sessions); err != nil {
		return err
	}
	if c.left, err = s.Quarantine(ctx); err != nil {
		return err
	}
	return c.count(ctx)
}

// count counts the events since the last time; the first time it only finds out
// where they are.
func (c *fleetCollector) count(ctx context.Context) error {
	if !c.begun {
		events, _, err := c.p.store.Events(ctx, store.EventQuery{Limit: 1})
		if err != nil {
			return err
		}
		if len(events) > 0 {
			c.from = events[0].ID
		}
		c.begun = true
		return nil
	}
	for range eventPages {
		events, next, err := c.p.store.Events(ctx, store.EventQuery{From: c.from, Forward: true, Limit: store.MaxEvents})
		if err != nil {
			return err
		}
		for _, e := range events {
			c.happened[e.Kind] += 1 + e.Skipped
		}
		if next == c.from {
			return nil
		}
		c.from = next
	}
	return nil
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
