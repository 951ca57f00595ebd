package pinboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// comeback notices that the store was away for so long that leases have ended
// meanwhile of workers that live. They find that out with their next heartbeat
// and register anew, with their instances; who asks for one of these just
// before would have it placed elsewhere, and lost. So this node lets nothing be
// placed until each worker had time for that: a heartbeat, and a little more.
//
// It guards instances against being lost, not against being there twice: a node
// that has not noticed the outage, since nobody asked it for anything, may place
// ids at once. A restarted node has noticed nothing.
type comeback struct {
	lease time.Duration

	mu sync.Mutex
	// from and last are the first and the latest failure in a row.
	from, last time.Time
	until      time.Time
}

// long reports whether the store is away, and for how long no lease is certain to
// outlast it: a heartbeat may have been lease/5 ago when the store went, and as
// much passes until the next one. Failures are of one outage if no more than two
// heartbeats lie between them.
func (c *comeback) long(now time.Time) bool {
	return !c.from.IsZero() && now.Sub(c.from) >= c.lease/2 && now.Sub(c.last) <= c.lease*2/5
}

// maxGrace is enough for the heartbeats that workers send by default, every 3 s,
// however long the lease is.
const maxGrace = 4 * time.Second

// grace is a heartbeat, of which five fit into a lease, and a quarter of one for
// the registration.
func (c *comeback) grace() time.Duration { return min(c.lease/4, maxGrace) }

// note takes in how a question to the store ended that was put at that time. The
// context is the caller's own, which ends when the caller leaves.
func (c *comeback) note(ctx context.Context, asked time.Time, err error) {
	_, decided := errors.AsType[*refusal](err)
	answered := err == nil || decided || errors.Is(err, store.ErrNoSession)
	if !answered && ctx.Err() != nil {
		return // that says nothing of the store
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case answered && c.long(now):
		c.until = now.Add(c.grace())
		fallthrough
	case answered:
		c.from = time.Time{}
	case c.from.IsZero() || now.Sub(c.last) > c.lease*2/5:
		c.from = asked
		fallthrough
	default:
		c.last = now
	}
}

// left returns for how long nothing is to be placed, 0 mostly. While the store
// is away, that is all of the time that it will be: the look-up that finds it
// back must not place either.
func (c *comeback) left() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.long(now) {
		return c.grace()
	}
	return max(0, c.until.Sub(now))
}
