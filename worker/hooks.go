package worker

import (
	"time"

	"go.uber.org/zap"
)

// OnWindDown adds a hook that is called whenever WindingDown or EvictionDeadline
// has changed, also back, and at once if the instance winds down already. Calls
// do not overlap, and changes that come during one are one more. The hook asks
// what holds now; long work that can stop early is told so here. A panic is
// logged. Not called once the instance is closing: see Context and OnClose.
func (i *Instance) OnWindDown(hook func()) {
	d := i.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	i.hearing.hooks = append(i.hearing.hooks, hook)
	i.hearing.heard = windDownView{}
	d.announce(i)
}

// OnIdle sets a hook that is called when nothing has held the instance for the
// idle timeout, in place of ending it. The instance ends if the hook returns
// true and nothing holds it then; else it is asked again after another idle
// timeout. Instances that wind down are not asked. A panic is logged and counts
// as true.
func (i *Instance) OnIdle(hook func() (end bool)) {
	i.dir.mu.Lock()
	defer i.dir.mu.Unlock()
	i.idling.hook = hook
}

// WindDown ends the instance as soon as nothing but streams holds it, and with
// the work it has under way after within (NoDeadline: never). Called again, the
// earlier deadline counts; an operator who revokes a wind-down of his own does
// not revoke this one. It returns at once.
func (i *Instance) WindDown(within time.Duration) {
	d := i.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if i.state == stateClosing {
		return
	}
	next := drainWithin(d.clock().mono, within)
	if before := i.windDowns[ownDrain]; before.hasDeadline && (!next.hasDeadline || before.deadline < next.deadline) {
		next = before
	}
	d.order(i, ownDrain, next)
}

// SetStats sets what the stats route tells of this instance, beside what the
// worker tells itself, which wins where the names are the same (protocol §3).
// report is called for each answer of that route; it must return soon, values
// that JSON can hold, and be safe for concurrent use. A panic is logged.
func (i *Instance) SetStats(report func() map[string]any) {
	i.dir.mu.Lock()
	defer i.dir.mu.Unlock()
	i.stats = report
}

// windDownView is what an OnWindDown hook can see.
type windDownView struct {
	winding     bool
	hasDeadline bool
	deadline    time.Duration // monotonic
}

// hearing is what the OnWindDown hooks have been told. Guarded by dir.mu.
type hearing struct {
	hooks   []func()
	heard   windDownView
	calling bool
	again   bool
}

// announce calls the OnWindDown hooks if there is something new to see. Called
// with the lock held.
func (d *directory) announce(inst *Instance) {
	h := &inst.hearing
	view := windDownView{winding: d.winding(inst)}
	if view.winding {
		if deadline, ok := d.deadlineOf(inst); ok {
			view.hasDeadline, view.deadline = true, deadline
		}
	}
	if len(h.hooks) == 0 || view == h.heard || inst.state == stateClosing {
		return
	}
	h.heard, h.again = view, true
	if !h.calling {
		h.calling = true
		d.running.Go(func() { d.callWindDownHooks(inst) })
	}
}

func (d *directory) callWindDownHooks(inst *Instance) {
	h := &inst.hearing
	for {
		d.mu.Lock()
		if !h.again || inst.state == stateClosing {
			h.calling = false
			d.mu.Unlock()
			return
		}
		h.again = false
		hooks := h.hooks
		d.mu.Unlock()
		for _, hook := range hooks {
			if fault := contain(hook); fault != nil {
				d.metrics.callbackFailed("OnWindDown")
				d.log.Error("OnWindDown hook panicked", inst.field(), zap.Error(fault))
			}
		}
	}
}

// idling is the OnIdle hook and where its question stands. Guarded by dir.mu.
type idling struct {
	hook   func() bool
	asking bool
	// agreed is the idleSince for which the hook agreed to the end.
	agreed    time.Duration
	hasAgreed bool
}

// mayIdleOut reports whether an idle instance may end, and asks its hook if it
// has one that was not asked. Called with the lock held.
func (d *directory) mayIdleOut(inst *Instance) bool {
	q := &inst.idling
	if q.hook == nil || q.hasAgreed && q.agreed == inst.idleSince {
		return true
	}
	if !q.asking {
		q.asking = true
		hook, since := q.hook, inst.idleSince
		d.running.Go(func() { d.askIdle(inst, hook, since) })
	}
	return false
}

func (d *directory) askIdle(inst *Instance, hook func() bool, since time.Duration) {
	end := true
	if fault := contain(func() { end = hook() }); fault != nil {
		d.metrics.callbackFailed("OnIdle")
		d.log.Error("OnIdle hook panicked", inst.field(), zap.Error(fault))
		end = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	inst.idling.asking = false
	if end {
		inst.idling.agreed, inst.idling.hasAgreed = since, true
	} else if inst.idleSince == since {
		inst.idleSince = d.clock().mono
	}
	d.settle(inst)
}
