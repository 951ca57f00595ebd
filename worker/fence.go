package worker

import (
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// ungrantedTTL stands in for the lease time before there was one.
const ungrantedTTL = 30 * time.Second

// sweepStep is how many old fences each use forgets: more than it can add.
const sweepStep = 2

// fences refuse requests for placements that are over: those of a lower epoch
// than one seen for the id, and those of an epoch that was given up. A fence is
// forgotten two leases after its last use; by then no node of pinboard trusts
// a route that old (protocol §5). They are in the order of their last use, so
// that to forget is to look at the first ones. Not safe for concurrent use.
type fences struct {
	ttl  func() time.Duration // of the lease
	byID map[key]*fence
	ring fence // its next is the one that was used first, its prev the last one
}

type fence struct {
	key
	epoch      int64
	over       bool
	usedAt     time.Duration // monotonic
	prev, next *fence
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
	lifetime := f.lifetime()
	f.sweep(now, lifetime)
	known := f.byID[k]
	if known != nil && now-known.usedAt > lifetime {
		f.forget(known)
		known = nil
	}
	switch {
	case known == nil:
		known = f.add(k, epoch)
	case epoch > known.epoch:
		known.epoch, known.over = epoch, false
	case epoch < known.epoch:
		return refuse(wire.RefusalStaleEpoch, "stale placement epoch; retry")
	case known.over:
		return refuse(wire.RefusalReleasedEpoch, "released placement epoch; retry")
	}
	f.used(known, now)
	return nil
}

// giveUp fences off a placement that this worker released or refused.
func (f *fences) giveUp(k key, epoch int64, now time.Duration) {
	f.sweep(now, f.lifetime())
	known := f.byID[k]
	if known == nil {
		known = f.add(k, epoch)
	}
	if known.epoch <= epoch {
		known.epoch, known.over = epoch, true
		f.used(known, now)
	}
}

func (f *fences) add(k key, epoch int64) *fence {
	k.id = strings.Clone(k.id) // else a whole request would stay
	known := &fence{key: k, epoch: epoch}
	known.prev, known.next = known, known
	f.byID[k] = known
	return known
}

// used makes a fence the one that was used last.
func (f *fences) used(known *fence, now time.Duration) {
	known.usedAt = now
	last := f.ring.prev
	if last == known {
		return
	}
	known.prev.next, known.next.prev = known.next, known.prev
	last = f.ring.prev
	known.prev, known.next = last, &f.ring
	last.next, f.ring.prev = known, known
}

func (f *fences) forget(known *fence) {
	known.prev.next, known.next.prev = known.next, known.prev
	delete(f.byID, known.key)
}

// sweep forgets old fences, a few at a time.
func (f *fences) sweep(now, lifetime time.Duration) {
	for range sweepStep {
		first := f.ring.next
		if first == &f.ring || now-first.usedAt <= lifetime {
			return
		}
		f.forget(first)
	}
}
