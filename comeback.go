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
// ids at once.
type comeback struct {
	lease time.Duration

	mu sync.Mutex
	// asked is when the latest question was put that was answered, and failed when the
	// latest one since then was seen to fail, if any: see note and heard.
	asked, failed time.Time
	until         time.Time
}

// long reports whether the store is away, and for how long no lease is certain to
// outlast it: a heartbeat may have been lease/5 ago when the store went, and as
// much passes until the next one. It may have been away since right after the latest
// question that it answered: those that it left open count, though they fail later. A
// failure that is two heartbeats old says nothing of now.
func (c *comeback) long(now time.Time) bool {
	return !c.failed.IsZero() && now.Sub(c.asked) >= c.lease/2 && now.Sub(c.failed) <= c.lease*2/5
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
	case !answered:
		c.failed = now
		return
	case c.long(now):
		c.until = now.Add(c.grace())
	}
	c.failed = time.Time{}
	if asked.After(c.asked) {
		c.asked = asked
	}
}

// heard takes in that the store answered a question of this node's own, put at that time.
// So a node that nobody asks does not take a moment's failure for the end of an outage
// since it was last asked. It tells of no end of one: what has failed may have been another
// part of the store.
func (c *comeback) heard(asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failed.IsZero() && time.Since(c.failed) <= c.lease*2/5 {
		return
	}
	c.failed = time.Time{}
	if asked.After(c.asked) {
		c.asked = asked
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
