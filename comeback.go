package pinboard

import (
	"context"
	"errors"
	"slices"
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
	// answers is of all questions, and writes of those that have something written: a
	// store that answers may take no writes.
	answers, writes outage
	until           time.Time // nothing is placed before, after an outage
	begun           bool      // see begin
	started         time.Time // nothing is placed before, after this node's start
}

// outage is of one kind of questions: asked is when the latest one was put that was
// answered, and failed when the latest one since then was seen to fail, if any.
type outage struct{ asked, failed time.Time }

// long reports whether the store is away, and for how long no lease is certain to
// outlast it: a heartbeat may have been lease/5 ago when the store went, and as
// much passes until the next one. It may have been away since right after the latest
// question that it answered: those that it left open count, though they fail later. A
// failure that is two heartbeats old says nothing of now.
func (o *outage) long(lease time.Duration, now time.Time) bool {
	return !o.failed.IsZero() && now.Sub(o.asked) >= lease/2 && now.Sub(o.failed) <= lease*2/5
}

// answered ends the outage.
func (o *outage) answered(asked time.Time) {
	o.failed = time.Time{}
	if asked.After(o.asked) {
		o.asked = asked
	}
}

// heard is answered, but that it ends no outage that is going on.
func (o *outage) heard(lease time.Duration, asked time.Time) {
	if o.failed.IsZero() || time.Since(o.failed) > lease*2/5 {
		o.answered(asked)
	}
}

// maxGrace is enough for the heartbeats that workers send by default, every 3 s,
// however long the lease is.
const maxGrace = 4 * time.Second

// grace is a heartbeat, of which five fit into a lease, and a quarter of one for
// the registration.
func (c *comeback) grace() time.Duration { return min(c.lease/4, maxGrace) }

// begin is called before this node places the first id. Nobody may have been there for
// workers' heartbeats until now, a store with a memory or not: if none of its sessions is
// older than workers take to come back, others are on their way. That is judged by the clocks
// of this host and of the store's: where they differ, a node that starts may wait in vain, or
// not at all.
func (c *comeback) begin(ctx context.Context, sessions store.Sessions) error {
	c.mu.Lock()
	begun := c.begun
	c.mu.Unlock()
	if begun {
		return nil
	}
	live, err := sessions.Live(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	old := slices.ContainsFunc(live, func(s store.Session) bool { return now.Sub(s.RegisteredAt) > c.grace() })
	if !c.begun && !old {
		c.started = now.Add(c.grace())
	}
	c.begun = true
	return nil
}

// note takes in how a question to the store ended that was put at that time. The
// context is the caller's own, which ends when the caller leaves.
func (c *comeback) note(ctx context.Context, asked time.Time, err error) {
	answered := err == nil || saysNo(err)
	if !answered && ctx.Err() != nil {
		return // that says nothing of the store
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(&c.answers, asked, answered)
}

// wrote is note for what the store was asked to write.
func (c *comeback) wrote(ctx context.Context, asked time.Time, err error) {
	if err != nil && (saysNo(err) || ctx.Err() != nil) {
		return // that says nothing of writes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(&c.writes, asked, err == nil)
}

// saysNo reports whether an error is an answer of the store's.
func saysNo(err error) bool {
	_, refused := errors.AsType[*refusal](err)
	return refused || errors.Is(err, store.ErrNoSession)
}

// take takes in how a question of a kind ended; the caller holds the lock.
func (c *comeback) take(o *outage, asked time.Time, answered bool) {
	now := time.Now()
	if !answered {
		o.failed = now
		return
	}
	if o.long(c.lease, now) {
		c.until = now.Add(c.grace())
	}
	o.answered(asked)
}

// heard takes in that the store did a question of this node's own, put at that time.
// So a node that nobody asks does not take a moment's failure for the end of an outage
// since it was last asked. It tells of no end of one: what has failed may have been another
// part of the store.
func (c *comeback) heard(asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers.heard(c.lease, asked)
	c.writes.heard(c.lease, asked)
}

// left returns for how long nothing is to be placed, 0 mostly. While the store
// is away, that is all of the time that it will be: the look-up that finds it
// back must not place either. cutOff says that workers of any namespace may have been
// cut off from the store.
func (c *comeback) left() (left time.Duration, cutOff bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.answers.long(c.lease, now) || c.writes.long(c.lease, now) {
		return c.grace(), true
	}
	until := c.until
	if c.started.After(until) {
		until = c.started
	}
	return max(0, until.Sub(now)), now.Before(c.until)
}
