package worker

import (
	"math"
	"strconv"
	"time"
)

const (
	// maxBackoff caps the delay before jitter, so that at the cap attempts
	// still spread.
	maxBackoff = 30 * time.Second
	// maxUnreached is the cap while there is nothing to connect to: an attempt
	// costs next to nothing then, and whoever starts first, worker or pinboard,
	// should not matter.
	maxUnreached = 5 * time.Second
	minDefer     = 50 * time.Millisecond
	maxDoubled   = 16 // doublings, far past the cap
)

// backoff paces registration attempts: failures double the delay, a 503's
// Retry-After replaces its base, a success resets it. Attempts that did not even
// get a connection count apart, with a lower cap, so that a pinboard that has come
// up at last is not made to wait for them.
type backoff struct {
	interval  time.Duration
	jitter    func() float64 // uniform in [0, 1)
	failures  int
	deferred  time.Duration // 0: the last failure named none
	unreached int           // attempts without a connection since the last one with
}

func (b *backoff) failed() {
	b.failures++
	b.deferred, b.unreached = 0, 0
}

// unreachable notes an attempt that got no connection.
func (b *backoff) unreachable() { b.unreached++ }

// deferBy notes a 503 and its Retry-After header in seconds; what is not a
// number counts as 1 s.
func (b *backoff) deferBy(retryAfter string) {
	b.failures++
	b.unreached = 0
	seconds, err := strconv.ParseFloat(retryAfter, 64)
	if err != nil || math.IsNaN(seconds) {
		seconds = 1
	}
	// Bounded first: a float out of a Duration's range converts to anything.
	seconds = min(max(seconds, 0), maxBackoff.Seconds())
	b.deferred = max(time.Duration(seconds*float64(time.Second)), minDefer)
}

func (b *backoff) reset() { b.failures, b.deferred, b.unreached = 0, 0, 0 }

// delay returns how long after the last attempt the next one is due.
func (b *backoff) delay() time.Duration {
	base, doubled, most := b.interval, b.failures, maxBackoff
	switch {
	case b.unreached > 0:
		doubled, most = b.unreached, maxUnreached
	case b.failures == 0:
		return b.interval
	case b.deferred > 0:
		base, doubled = b.deferred, b.failures-1
	}
	delay := min(float64(base)*math.Exp2(float64(min(doubled, maxDoubled))), float64(most))
	// Jitter after the cap: before it, the cap would clamp the jitter away
	// and a fleet at the cap would return all at once.
	return time.Duration(delay * (0.3 + 0.7*b.jitter()))
}
