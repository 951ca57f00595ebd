package memory

import (
	"context"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// eventLog is what happened, to workers and to single ids, each in order.
type eventLog struct {
	last           int64
	workers, moves []store.Event
}

// append gives an event its number and keeps it. Some more than store.KeptEvents
// are kept for a while, so that not each one moves all others.
func (l *eventLog) append(e store.Event, now time.Time) {
	l.last = max(l.last+1, now.UnixMicro())
	e.ID, e.Namespaces = l.last, slices.Clone(e.Namespaces)
	of := &l.workers
	if e.Key() != "" {
		of = &l.moves
	}
	if *of = append(*of, e); len(*of) >= store.KeptEvents+store.MaxEvents {
		*of = slices.Clone((*of)[store.MaxEvents:])
	}
}

// Record appends events.
func (n *node) Record(ctx context.Context, events []store.Event) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	for _, e := range events {
		n.events.append(e, now)
	}
	return nil
}

// Events reads a page of events.
func (n *node) Events(ctx context.Context, q store.EventQuery) ([]store.Event, int64, error) {
	if _, err := n.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer n.leave()
	most := max(1, min(q.Limit, store.MaxEvents))
	all, key := n.events.beside(q, most), ""
	if q.ID != "" {
		key = store.InstanceKey(q.Binding, q.ID)
		all = around(n.events.moves, q, most)
	}
	more := len(all) >= most
	all = all[:min(len(all), most)]
	next := int64(0)
	if q.Forward {
		next = q.From
	}
	if len(all) > 0 && (more || q.Forward) {
		next = all[len(all)-1].ID
	}
	return slices.DeleteFunc(all, func(e store.Event) bool { return key != "" && e.Key() != key }), next, nil
}

// beside merges the next events of both kinds.
func (l *eventLog) beside(q store.EventQuery, most int) []store.Event {
	all := slices.Concat(around(l.workers, q, most), around(l.moves, q, most))
	slices.SortFunc(all, func(a, b store.Event) int {
		if (a.ID < b.ID) == q.Forward {
			return -1
		}
		return 1
	})
	return all
}

// around returns at most so many events on one side of q.From, the nearest first.
func around(events []store.Event, q store.EventQuery, most int) []store.Event {
	at, found := slices.BinarySearchFunc(events, q.From, func(e store.Event, id int64) int { return int(min(1, max(-1, e.ID-id))) })
	if q.Forward {
		if found {
			at++
		}
		return slices.Clone(events[at:min(len(events), at+most)])
	}
	if q.From == 0 {
		at = len(events)
	}
	older := slices.Clone(events[max(0, at-most):at])
	slices.Reverse(older)
	return older
}

// Counts returns how many rows the sessions have.
func (n *node) Counts(ctx context.Context, sessions []store.Session) ([][]int, error) {
	if _, err := n.enter(ctx); err != nil {
		return nil, err
	}
	defer n.leave()
	counts := make([][]int, len(sessions))
	for i, s := range sessions {
		counts[i] = make([]int, len(s.Namespaces))
		for j, binding := range s.Bindings() {
			for shard := range n.cfg.Shards {
				if b := n.buckets[place{binding: binding, shard: shard}]; b != nil && b.members[s.ID] != nil {
					counts[i][j] += b.members[s.ID].rows
				}
			}
		}
	}
	return counts, nil
}
