package worker

import (
	"context"
	"errors"
	"math"
	"time"
)

// NoDeadline, for Worker.Drain and Instance.WindDown, aborts nothing.
const NoDeadline time.Duration = math.MaxInt64

// ErrDrainRevoked is returned by Worker.Drain when Worker.Undrain ended it.
var ErrDrainRevoked = errors.New("worker: the drain was revoked")

// Who drains the worker, or winds an instance down. Both may at once; then the
// earlier deadline counts.
const (
	ownDrain = iota
	operatorsDrain
)

// drain is one order to end all instances.
type drain struct {
	on          bool
	hasDeadline bool
	deadline    time.Duration // monotonic
}

// drainWithin is a drain from now on, with that much time.
func drainWithin(now, within time.Duration) drain {
	if within == NoDeadline {
		return drain{on: true}
	}
	return drain{on: true, hasDeadline: true, deadline: later(now, max(within, 0))}
}

// setDrain refuses new ids from now on, closes what nothing holds, and aborts the
// rest at the deadline; or takes that back. Called again, it moves the deadline.
func (d *directory) setDrain(who int, next drain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drains[who] = next
	if d.drainEnd != nil {
		d.drainEnd.Stop()
		d.drainEnd = nil
	}
	if deadline, ok := d.drainDeadline(); ok {
		// The lease ends with the drain: a worker that hangs in its last
		// moments serves nobody past the deadline.
		d.lease.limit(deadline)
		d.drainEnd = time.AfterFunc(deadline-d.clock().mono, d.drainOver)
	} else {
		d.lease.unlimit()
	}
	d.paceTurns()
	for _, inst := range d.instances {
		d.announce(inst)
		d.settle(inst)
	}
	d.broadcast()
}

func (d *directory) drainOver() {
	d.mu.Lock()
	defer d.mu.Unlock()
	// The drain may have been moved or revoked while the timer fired.
	if deadline, ok := d.drainDeadline(); ok && d.clock().mono >= deadline {
		d.closeAll(errDeadline)
	}
}

func (d *directory) draining() bool {
	return d.drains[ownDrain].on || d.drains[operatorsDrain].on
}

// isDraining is draining for callers without the lock.
func (d *directory) isDraining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.draining()
}

func (d *directory) drainDeadline() (time.Duration, bool) { return earliest(d.drains) }

// earliest returns the deadline that comes first, never and false without one.
func earliest(drains [2]drain) (first time.Duration, ok bool) {
	first = never
	for _, one := range drains {
		if one.hasDeadline {
			first, ok = min(first, one.deadline), true
		}
	}
	return first, ok
}

// waitDrained waits until a drain of this worker's own has ended everything.
func (d *directory) waitDrained(ctx context.Context) error {
	return d.waitEmpty(ctx, func() error {
		if !d.drains[ownDrain].on {
			return ErrDrainRevoked
		}
		return nil
	})
}

// windDown gives one instance a deadline. An id without one is fine: there is
// nothing to do (protocol §4).
func (d *directory) windDown(k key, left time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inst := d.instances[k]
	if inst == nil || inst.state == stateClosing {
		return
	}
	d.order(inst, operatorsDrain, drain{on: true, hasDeadline: true, deadline: d.clock().mono + left})
}

// resume takes a windDown back.
func (d *directory) resume(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if inst := d.instances[k]; inst != nil {
		d.order(inst, operatorsDrain, drain{})
	}
}

// order notes who winds one instance down, and how. Called with the lock held.
func (d *directory) order(inst *Instance, who int, next drain) {
	inst.windDowns[who] = next
	d.announce(inst)
	d.settle(inst)
}

func (d *directory) winding(inst *Instance) bool {
	return d.draining() || inst.windDowns[ownDrain].on || inst.windDowns[operatorsDrain].on
}

func (d *directory) deadlineOf(inst *Instance) (time.Duration, bool) {
	ofAll, one := d.drainDeadline()
	ofThis, two := earliest(inst.windDowns)
	return min(ofAll, ofThis), one || two
}

func (d *directory) pastDeadline(inst *Instance, now time.Duration) bool {
	deadline, ok := d.deadlineOf(inst)
	return ok && now >= deadline
}

// abort ends one instance, if there is one.
func (d *directory) abort(k key, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if inst := d.instances[k]; inst != nil {
		d.beginClose(inst, cause)
	}
}

func (d *directory) closeAll(cause error) {
	for _, inst := range d.instances {
		d.beginClose(inst, cause)
	}
}

// refuseAll ends all instances and lets no new one begin, for good.
func (d *directory) refuseAll(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusing = true
	d.closeAll(cause)
}

// answerTime is how long the server may take to write out what is left of an
// answer when its handler has returned.
const answerTime = 250 * time.Millisecond

// awaitAnswers waits until the answers of the last requests are out, as far as
// one can tell: pinboard cuts what is still open to a session that has ended, and
// its client would not take the answer for whole.
func (d *directory) awaitAnswers(ctx context.Context) {
	d.mu.Lock()
	left := d.answerEnd + answerTime - d.clock().mono
	wait := d.answered && left > 0
	d.mu.Unlock()
	if wait {
		pause(ctx, left)
	}
}

// stop ends the timers and the life of everything. Goroutines that obey their
// contexts end; wait waits for them.
func (d *directory) stop() {
	d.mu.Lock()
	d.timetable.stop()
	if d.drainEnd != nil {
		d.drainEnd.Stop()
	}
	d.mu.Unlock()
	d.endLife()
}
