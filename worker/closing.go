package worker

import (
	"errors"
	"time"

	"go.uber.org/zap"
)

const (
	// releaseWait is how long open streams are kept from ending until
	// pinboard has answered the release.
	releaseWait = 5 * time.Second
	// interruptGrace is how long cancelled requests have before their
	// connections are cut: a context does not wake a handler that is stuck in
	// a write.
	interruptGrace = time.Second
	// lateWarning is how often the log says that a closing does not get on.
	lateWarning = 10 * time.Second
)

// beginClose makes the instance refuse requests and starts to close it. If it
// is closing already, all that may change is that its id is released after all.
// Called with the lock held.
func (d *directory) beginClose(inst *Instance, cause error) {
	if errors.Is(cause, errDuplicate) {
		inst.lost.Store(true) // also of one that closes already
	}
	keeps := cause == errIdle && inst.host.opts.KeepPlacementOnIdle
	if inst.state == stateClosing {
		inst.kept = inst.kept && keeps
		return
	}
	inst.kept = keeps
	if inst.state == stateLive {
		d.stats(inst.namespace).Evictions++
		if errors.Is(cause, ErrAborted) {
			d.metrics.aborts.Inc()
		}
	}
	inst.state, inst.refusal = stateClosing, refuseClosing
	d.timetable.remove(inst)
	close(inst.closing)
	d.log.Debug("closing instance", inst.field(), zap.Error(cause))
	d.running.Go(func() { d.close(inst, cause) })
}

// close ends an instance in the order that the package comment gives.
func (d *directory) close(inst *Instance, cause error) {
	inst.cancel(cause)
	d.waitFor(inst, false, inst.isConstructed)
	d.interrupt(inst, cause, false)
	d.waitFor(inst, false, func() bool { return inst.plain+inst.tasks == 0 })
	d.runHooks(inst)
	inst.muted.Store(true)

	d.mu.Lock()
	if inst.kept { // nothing held it: there are no streams to end
		d.remove(inst)
		close(inst.released)
		d.mu.Unlock()
		return
	}
	item := d.giveUp(inst)
	d.mu.Unlock()
	d.releaseWithin(inst, item)
	d.mu.Lock()
	inst.givenUp = true
	d.mu.Unlock()
	close(inst.released)

	// Streams end only now: a client that connects again must not meet a
	// placement that is over (protocol §5).
	d.interrupt(inst, cause, true)
	d.waitFor(inst, true, func() bool { return inst.streams == 0 })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(inst)
}

// releaseWithin releases the instance's id, and returns when pinboard has answered or
// after releaseWait; the release then goes on by itself.
func (d *directory) releaseWithin(inst *Instance, item released) {
	answered := make(chan struct{})
	d.running.Go(func() {
		defer close(answered)
		d.release(d.life, item)
	})
	timer := time.NewTimer(releaseWait)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
		d.log.Warn("release not answered in time", inst.field())
	}
}

// interrupt cancels the contexts of the instance's requests: of the plain ones,
// or of the streams as well.
func (d *directory) interrupt(inst *Instance, cause error, streams bool) {
	for _, f := range d.flightsOf(inst, streams) {
		f.cancel(cause)
		if streams {
			f.closeDeferred()
		}
	}
}

func (d *directory) flightsOf(inst *Instance, streams bool) []*flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*flight
	for f := inst.flights.first; f != nil; f = f.next {
		if streams || !f.stream {
			list = append(list, f)
		}
	}
	return list
}

// waitFor waits until done says so, which is asked with the lock held. Plain
// requests, and streams if they were interrupted too, have their connections
// cut if they do not end by themselves within interruptGrace. An
// application that ignores even that keeps its id, and the log says so: to
// release it would be to have two of it.
func (d *directory) waitFor(inst *Instance, streams bool, done func() bool) {
	timer := time.NewTimer(interruptGrace)
	defer timer.Stop()
	for cut := false; ; {
		d.mu.Lock()
		if done() {
			d.mu.Unlock()
			return
		}
		if inst.changed == nil {
			inst.changed = make(chan struct{})
		}
		changed := inst.changed
		d.mu.Unlock()
		select {
		case <-changed:
			continue
		case <-timer.C:
		}
		if cut {
			d.log.Warn("instance does not end: something of it ignores its context", inst.field())
		}
		for _, f := range d.flightsOf(inst, streams) {
			f.cut()
		}
		cut = true
		timer.Reset(lateWarning)
	}
}
