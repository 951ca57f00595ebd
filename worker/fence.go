package worker

import (
	"time"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// ungrantedTTL stands in for the lease time before there was one.
const ungrantedTTL = 30 * time.Second

// fences refuse requests for placements that are over: those of a lower epoch
// than one seen for the id, and those of an epoch that was given up. A fence is
// forgotten two leases after its last use; by then no node of pinboard trusts
// a route that old (protocol §5). Not safe for concurrent use.
type fences struct {
	ttl   func() time.Duration // of the lease
	byID  map[key]*fence
	swept time.Duration // monotonic
}

type fence struct {
	epoch  int64
	over   bool
	usedAt time.Duration // monotonic
}

func newFences(ttl func() time.Duration, now time.Duration) *fences {
	return &fences{ttl: ttl, byID: map[key]*fence{}, swept: now}
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
	f.sweep(now)
	known := f.byID[k]
	if known != nil && now-known.usedAt > f.lifetime() {
		known = nil
	}
	switch {
	case known == nil || epoch > known.epoch:
		f.byID[k] = &fence{epoch: epoch, usedAt: now}
	case epoch < known.epoch:
		return refuse(wire.RefusalStaleEpoch, "stale placement epoch; retry")
	case known.over:
		return refuse(wire.RefusalReleasedEpoch, "released placement epoch; retry")
	default:
		known.usedAt = now
	}
	return nil
}

// giveUp fences off a placement that this worker released or refused.
func (f *fences) giveUp(k key, epoch int64, now time.Duration) {
	known := f.byID[k]
	if known == nil || epoch > known.epoch {
		known = &fence{epoch: epoch}
		f.byID[k] = known
	}
	if known.epoch == epoch {
		known.over, known.usedAt = true, now
	}
}

// sweep forgets old fences, once in a lifetime: it looks at all of them.
func (f *fences) sweep(now time.Duration) {
	lifetime := f.lifetime()
	if now-f.swept <= lifetime {
		return
	}
	f.swept = now
	for k, known := range f.byID {
		if now-known.usedAt > lifetime {
			delete(f.byID, k)
		}
	}
}
