package worker

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// paceTurns gives every instance its turn to close in a drain of the whole
// worker: at most Options.DrainRate of them a second, so that what their next
// requests activate elsewhere comes at that pace. Those without clients come
// first, then those that have been idle for longest. Where the time until the
// deadline does not do at that rate, the pace is faster: the last turn comes
// with a tenth of the time left, for closing.
//
// A turn is the earliest moment, and no more: what something holds then closes
// when that ends, or at the deadline. Called with the lock held, when a drain
// begins, moves or ends.
func (d *directory) paceTurns() {
	if !d.draining() {
		for inst := range maps.Values(d.instances) {
			inst.paced = false
		}
		return
	}
	if d.opts.DrainRate == 0 {
		return
	}
	now := d.clock().mono
	var waiting []*Instance
	pending, moved := never, false // the next turn of those given before
	for inst := range maps.Values(d.instances) {
		moved = moved || inst.paced
		if inst.state == stateClosing || inst.paced && inst.turn <= now {
			continue // it has had its turn
		}
		if inst.paced {
			pending = min(pending, inst.turn)
		}
		waiting = append(waiting, inst)
	}
	if len(waiting) == 0 {
		return
	}
	interval := time.Duration(float64(time.Second) / d.opts.DrainRate)
	if deadline, ok := d.drainDeadline(); ok {
		left := max(deadline-now, 0)
		interval = min(interval, (left-left/10)/time.Duration(len(waiting)))
	}
	first := now
	if moved { // a drain that is ordered again and again gets no faster by that
		first = min(pending, now+interval)
	}
	slices.SortFunc(waiting, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.holding(), b.holding()), cmp.Compare(a.idleSince, b.idleSince),
			cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.id, b.id))
	})
	for i, inst := range waiting {
		inst.paced, inst.turn = true, later(first, time.Duration(i)*interval)
	}
}

// holding says how much an instance has to do: nothing, streams, or work that a
// wind-down waits for. Called with the lock held.
func (i *Instance) holding() int {
	switch {
	case i.waiting+i.plain+i.tasks > 0 || i.state != stateLive:
		return 2
	case i.streams > 0:
		return 1
	}
	return 0
}

// turnOf returns when an instance that winds down may close: at once, unless it
// only does so because the worker drains. Called with the lock held.
func (d *directory) turnOf(inst *Instance) time.Duration {
	if !inst.paced || inst.windDowns[ownDrain].on || inst.windDowns[operatorsDrain].on {
		return already
	}
	return inst.turn
}
