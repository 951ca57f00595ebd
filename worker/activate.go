package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"
)

// await waits on behalf of one request until the instance's constructor is over
// or the instance closes. It returns why the request is to be refused whatever
// became of the instance.
func (d *directory) await(ctx context.Context, inst *Instance) *refusal {
	select {
	case <-inst.ready: // nearly always
		return inst.failure
	default:
	}
	timer := time.NewTimer(d.opts.ActivationQueueTimeout)
	defer timer.Stop()
	for {
		select {
		case <-inst.ready:
			return inst.failure
		case <-inst.closing:
			return nil
		case <-timer.C:
			d.abandon(inst) // but what has begun may take as long as it takes
		case <-ctx.Done():
			return refuseGone
		}
	}
}

// abandon ends an instance whose constructor has not begun: pinboard may find
// a worker that is less busy.
func (d *directory) abandon(inst *Instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if inst.state == stateQueued {
		d.beginClose(inst, errAbandoned)
		inst.refusal = refuseQueue
	}
}

// giveUp fences off the placement that the instance was serving, and returns it
// to be released.
func (d *directory) giveUp(inst *Instance) released {
	inst.releasing = true
	item := released{key: inst.key, epoch: max(inst.epoch.Load(), inst.claimed)}
	if item.epoch > 0 {
		d.fences.giveUp(item.key, item.epoch, d.clock().mono)
	}
	return item
}

// awaitRelease waits a little for a closing instance to be released, so that
// pinboard, told to look again, finds the id free. It reports whether it is.
func (d *directory) awaitRelease(ctx context.Context, inst *Instance) bool {
	timer := time.NewTimer(d.opts.ActivationQueueTimeout)
	defer timer.Stop()
	select {
	case <-inst.released:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// awaitNext waits a little until nothing is left of a released instance, in
// local mode: there is no pinboard that would send the request again. It reports
// whether the id is free.
func (d *directory) awaitNext(ctx context.Context, inst *Instance) bool {
	if !d.opts.local() {
		return false
	}
	timer := time.NewTimer(d.opts.ActivationQueueTimeout)
	defer timer.Stop()
	for {
		d.mu.Lock()
		free, changed := d.instances[inst.key] != inst, d.changed
		d.mu.Unlock()
		if free {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// activate runs the constructor once there is a slot for it.
func (d *directory) activate(inst *Instance) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-inst.closing:
	}
	defer d.constructed(inst)
	d.mu.Lock()
	if inst.state == stateClosing { // never begun
		d.mu.Unlock()
		return
	}
	inst.state = stateActivating
	d.mu.Unlock()

	handler, failure := d.runConstructor(inst)
	d.mu.Lock()
	aborted := inst.state == stateClosing
	switch {
	case aborted: // the closing goroutine goes on from here
	case failure != nil:
		inst.state, inst.refusal = stateClosing, refuseClosing
		d.timetable.remove(inst)
	default:
		inst.state, inst.activatedAt = stateLive, d.clock().wall
		d.stats(inst.namespace).Activations++
	}
	d.mu.Unlock()
	inst.handler = handler
	if failure != nil && !aborted {
		inst.failure = failure
		d.undo(inst)
	}
}

// constructed wakes those who wait for the constructor to be over.
func (d *directory) constructed(inst *Instance) {
	close(inst.ready)
	d.mu.Lock()
	defer d.mu.Unlock()
	inst.built = inst.handler != nil && inst.failure == nil
	d.settle(inst)
}

// undo removes every trace of an instance whose constructor failed. Its
// placement stays: the next request tries again.
func (d *directory) undo(inst *Instance) {
	inst.cancel(ErrActivation)
	d.waitFor(inst, false, func() bool { return inst.tasks == 0 })
	d.runHooks(inst)
	inst.muted.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(inst)
	close(inst.released)
}

var errNoHandler = errors.New("the constructor returned no handler")

// runConstructor contains whatever the application's constructor does.
func (d *directory) runConstructor(inst *Instance) (handler http.Handler, failure *refusal) {
	var err error
	if fault := contain(func() { handler, err = inst.host.construct(inst) }); fault != nil {
		d.log.Error("constructor panicked", inst.field(), zap.Error(fault))
		return nil, refusePanicked
	}
	if err == nil && handler == nil {
		err = errNoHandler
	}
	if err != nil {
		d.log.Error("constructor failed", inst.field(), zap.Error(err))
		return nil, refuseFailed
	}
	return handler, nil
}

// contain calls f and returns an error if it did not return by itself. In a
// goroutine of its own, because nothing else survives a runtime.Goexit, which a
// failed test calls.
func contain(f func()) (fault error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		returned := false
		defer func() {
			if v := recover(); !returned {
				fault = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
		returned = true
	}()
	<-done
	return fault
}

// runHooks runs the OnClose hooks, the last one added first.
func (d *directory) runHooks(inst *Instance) {
	d.mu.Lock()
	hooks := inst.hooks
	d.mu.Unlock()
	if len(hooks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(d.life, d.opts.CloseTimeout)
	defer cancel()
	overdue := context.AfterFunc(ctx, func() {
		d.log.Warn("OnClose hooks are late: the id stays until they return", inst.field())
	})
	defer overdue()
	for _, hook := range slices.Backward(hooks) {
		var err error
		if fault := contain(func() { err = hook(ctx) }); fault != nil {
			err = fault
		}
		if err != nil {
			d.metrics.callbackFailed("OnClose")
			d.log.Error("OnClose hook failed", inst.field(), zap.Error(err))
		}
	}
}
