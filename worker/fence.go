package worker

import (
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// ungrantedTTL stands in for the lease time before there was one.
const ungrantedTTL = 30 * time.Second

// sweepStep is how many fences each use looks at whose turn has come: more than it
// can add, and more than it can send back to the end of the queue, which takes a use
// as well.
const sweepStep = 2

// fences refuse requests for placements that are over: those of a lower epoch
// than one seen for the id, and those of an epoch that was given up. A fence is
// forgotten two leases after its last use; by then no node of pinboard trusts
// a route that old (protocol §5). They stand in a queue, so that to forget is to
// look at the first ones. One that was used since goes back to its end when its
// turn comes: to use one is to touch no other. Not safe for concurrent use.
type fences struct {
	ttl  func() time.Duration // of the lease
	byID map[key]*fence
	ring fence // the queue: its next is the first one, its prev the last one
}

type fence struct {
	epoch     int64
	usedAt    time.Duration // monotonic
	over      bool
	forgotten bool // no longer there; all that a use looks at is up to here

	queuedAt   time.Duration // monotonic
	prev, next *fence
	key
}

func newFences(ttl func() time.Duration) *fences {
	f := &fences{ttl: ttl, byID: map[key]*fence{}}
	f.ring.prev, f.ring.next = &f.ring, &f.ring
	return f
}

func (f *fences) lifetime() time.Duration {
	ttl := f.ttl()
	if ttl <= 0 {
		ttl = ungrantedTTL
	}
	return 2 * ttl
}

// admit returns nil for a placement that may be served.
func (f *fences) admit(k key, epoch int64, now time.Duration) *refusal {
	_, ref := f.admitBy(nil, k, epoch, now)
	return ref
}

// admitBy is admit for a caller that keeps what it returned for the id the last
// time, which saves the look-up.
func (f *fences) admitBy(known *fence, k key, epoch int64, now time.Duration) (*fence, *refusal) {
	lifetime := f.lifetime()
	f.sweep(now, lifetime)
	if known == nil || known.forgotten {
		known = f.byID[k]
	}
	if known != nil && now-known.usedAt > lifetime {
		f.forget(known)
		known = nil
	}
	switch {
	case known == nil:
		known = f.add(k, epoch, now)
	case epoch > known.epoch:
		known.epoch, known.over = epoch, false
	case epoch < known.epoch:
		return known, refuse(wire.RefusalStaleEpoch, "stale placement epoch; retry")
	case known.over:
		return known, refuse(wire.RefusalReleasedEpoch, "released placement epoch; retry")
	}
	known.usedAt = now
	return known, nil
}

// giveUp fences off a placement that this worker released or refused.
func (f *fences) giveUp(k key, epoch int64, now time.Duration) {
	f.sweep(now, f.lifetime())
	known := f.byID[k]
	if known == nil {
		known = f.add(k, epoch, now)
	}
	if known.epoch <= epoch {
		known.epoch, known.over, known.usedAt = epoch, true, now
	}
}

func (f *fences) add(k key, epoch int64, now time.Duration) *fence {
	k.id = strings.Clone(k.id) // else a whole request would stay
	known := &fence{key: k, epoch: epoch, usedAt: now}
	f.byID[k] = known
	f.queue(known, now)
	return known
}

// queue puts a fence that is nowhere at the end.
func (f *fences) queue(known *fence, now time.Duration) {
	known.queuedAt = now
	last := f.ring.prev
	known.prev, known.next = last, &f.ring
	last.next, f.ring.prev = known, known
}

// unqueue takes a fence out. It must not point to its neighbours any more: an
// instance may keep it for long when it is forgotten, and all that are forgotten later
// would hang on it, one on the other.
func (f *fences) unqueue(known *fence) {
	known.prev.next, known.next.prev = known.next, known.prev
	known.prev, known.next = nil, nil
}

func (f *fences) forget(known *fence) {
	f.unqueue(known)
	known.forgotten = true
	delete(f.byID, known.key)
}

// sweep forgets old fences, a few at a time.
func (f *fences) sweep(now, lifetime time.Duration) {
	for range sweepStep {
		first := f.ring.next
		switch {
		case first == &f.ring || now-first.queuedAt <= lifetime:
			return
		case now-first.usedAt > lifetime:
			f.forget(first)
		default:
			f.unqueue(first)
			f.queue(first, now)
		}
	}
}
