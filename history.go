package pinboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// eventQueue bounds the events that wait to be recorded.
	eventQueue = 1024
	// eventsPerSecond bounds what one node records of workers, and of ids: when a
	// worker dies that had very many, their moves tell nothing new each.
	eventsPerSecond = 200
	// toldAtOnce bounds the workers of which is remembered that they were told to
	// stop.
	toldAtOnce = 1000
)

// history has the store keep what happens (protocol §4). Who tells it waits for
// nothing: a node that dies, or whose store is away, loses the events that wait.
type history struct {
	store store.Store
	log   *zap.Logger
	queue chan store.Event

	mu             sync.Mutex
	workers, moves allowance
	told           map[string]bool // sessions
}

// allowance counts the events of a second.
type allowance struct {
	since   time.Time
	used    int
	skipped int64
}

func newHistory(s store.Store, log *zap.Logger) *history {
	return &history{store: s, log: log, queue: make(chan store.Event, eventQueue), told: map[string]bool{}}
}

// tell has an event recorded soon, unless there are too many.
func (r *history) tell(e store.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := &r.workers
	if e.Key() != "" {
		of = &r.moves
	}
	if now := time.Now(); now.Sub(of.since) >= time.Second {
		of.since, of.used = now, 0
	}
	of.used++
	e.Skipped = of.skipped
	if of.used <= eventsPerSecond {
		select {
		case r.queue <- e:
			of.skipped = 0
			return
		default:
		}
	}
	of.skipped++
}

// tellStopped tells that a displaced worker was told to stop, once however often
// it asks.
func (r *history) tellStopped(s *lease, by *store.Superseded) {
	r.mu.Lock()
	known := r.told[s.ID]
	if len(r.told) >= toldAtOnce {
		clear(r.told)
	}
	r.told[s.ID] = true
	r.mu.Unlock()
	if !known {
		e := about(&s.Session, store.EventSuperseded)
		e.By = by.ClientID
		r.tell(e)
	}
}

// about is an event of a worker.
func about(s *store.Session, kind store.Kind) store.Event {
	return store.Event{Kind: kind, Namespaces: s.Namespaces, Hostname: s.Hostname, ClientID: s.ClientID, SessionID: s.ID}
}

// run records what it is told, until ctx ends and the queue is empty.
func (r *history) run(ctx context.Context) {
	for {
		select {
		case e := <-r.queue:
			r.record(ctx, e)
		case <-ctx.Done():
			for {
				select {
				case e := <-r.queue:
					r.record(ctx, e)
				default:
					return
				}
			}
		}
	}
}

// record records an event and those that wait.
func (r *history) record(ctx context.Context, e store.Event) {
	events := []store.Event{e}
	for len(r.queue) > 0 && len(events) < store.MaxEvents {
		events = append(events, <-r.queue)
	}
	// What has happened is recorded also when the node shuts down.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := r.store.Record(ctx, events); err != nil && !errors.Is(err, context.Canceled) {
		r.log.Warn("events not recorded", zap.Int("events", len(events)), zap.Error(err))
	}
}

// tellPlacement tells of a placement if it moved an id, or of a quarantine that has
// begun. It runs for each look-up of the store.
func (p *placer) tellPlacement(a *ask, res *store.Result) {
	if res.Outcome == store.Placed {
		p.counters.placed.add(causeOf(res.Why), 1)
	}
	moved := res.Outcome == store.Placed && res.Why.Cause != store.New
	p.hooks.placed(a, res, p.leases.clientOf)
	if !moved && !res.Begun {
		return
	}
	hostname, namespace := store.Unbind(a.namespace)
	if res.Begun {
		e := store.Event{Kind: store.EventQuarantine, Namespaces: []string{namespace}, Hostname: hostname, Detail: "the store has no memory of placements"}
		if res.ClockSet {
			e.Detail = "the store's clock was set forward"
		}
		left := res.Left.Milliseconds()
		e.DeadlineMs = &left
		p.events.tell(e)
		return
	}
	e := store.Event{
		Kind: store.EventFailover, Namespaces: []string{namespace}, Hostname: hostname, InstanceID: a.id, Epoch: res.Epoch,
		SessionID: res.SessionID, ClientID: p.leases.clientOf(res.SessionID),
		FromSessionID: res.Former, FromClientID: p.leases.clientOf(res.Former),
	}
	if a.refused != nil && res.Why.Cause == store.AfterRefusal {
		e.Kind, e.FromClientID = store.EventRefused, a.refused.ClientID
	}
	p.events.tell(e)
}

// known returns a session's record if this node knows it, ended or not, else nil.
func (l *leases) known(sessionID string) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[sessionID]
}

// clientOf returns the clientId of a session that this node knows, or "".
func (l *leases) clientOf(sessionID string) string {
	if s := l.known(sessionID); s != nil {
		return s.ClientID
	}
	return ""
}
