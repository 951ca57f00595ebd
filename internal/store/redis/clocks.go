package redis

import (
	"sync"
	"time"
)

const (
	// lateness is how much later than it was sent a script may run. It is more
	// than a look-up waits for an answer, and what a step forward has to exceed
	// to be noticed.
	lateness = 2 * time.Second
	// drift is by how much Redis' clock may run faster than this node's, as one
	// that is slewed does: a thousandth.
	drift = 1000
	// maxClocks is how many buckets are known at once; then the node begins anew.
	maxClocks = 10_000
)

// clocks is what a node knows of the wall clocks of Redis, one for each bucket,
// since buckets may be on different hosts and may move. It tells a clock that
// was set forward from time that has passed by this node's monotonic clock.
//
// What may have passed unseen since a reading grows by drift with its age. So
// heartbeats are readings, too: ids may be placed in a bucket once a day.
//
// It does not notice a step by less than lateness, nor one of a bucket of which
// this node has heard nothing before. A node that was stopped together with
// its monotonic clock, as a virtual machine can be, takes that for a step.
type clocks struct {
	mu       sync.Mutex
	byBucket map[bucketKeys]reading
}

// reading is that a clock, when asked at some time, was at so many microseconds
// or came there a moment later.
type reading struct {
	asked  time.Time
	micros int64
}

// now is when something is asked. Only what has passed since is looked at, by the
// monotonic clock.
func (*clocks) now() time.Time { return time.Now() }

// limit returns the highest time that the bucket's clock can have reached when a
// script runs that is sent now; 0 if nothing is known of it.
func (c *clocks) limit(bucket bucketKeys, now time.Time) (micros int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byBucket[bucket]
	if !ok {
		return 0
	}
	passed := now.Sub(r.asked)
	return r.micros + (passed + passed/drift + lateness).Microseconds()
}

// overheard is heard for an answer that does not depend on the clock. A step that
// it shows is left for the next placement to find, which must not take it for
// known.
func (c *clocks) overheard(bucket bucketKeys, asked time.Time, micros int64) {
	if limit := c.limit(bucket, c.now()); limit == 0 || micros <= limit {
		c.heard(bucket, asked, micros)
	}
}

// heard notes what a bucket's clock was at, in answer to a script sent at asked.
func (c *clocks) heard(bucket bucketKeys, asked time.Time, micros int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.byBucket[bucket]; !known && (c.byBucket == nil || len(c.byBucket) >= maxClocks) {
		c.byBucket = map[bucketKeys]reading{}
	}
	if asked.After(c.byBucket[bucket].asked) {
		c.byBucket[bucket] = reading{asked: asked, micros: micros}
	}
}
