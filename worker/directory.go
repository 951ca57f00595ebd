package worker

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// directory holds the instances of this worker: exactly one for each id, from
// its first request until everything of it has ended.
type directory struct {
	opts  *Options
	log   *zap.Logger
	clock clock
	lease *lease
	// release gives an id back to pinboard; set before the first request.
	release func(ctx context.Context, item released)
	// session returns the current session, "" without one; set before the
	// first request.
	session func() string
	// calls makes the instances' calls; set before the first request.
	calls   *calls
	metrics *metrics // set before the first request

	slots   chan struct{}   // a token for each constructor that runs
	life    context.Context // of everything here; ends with the worker
	endLife context.CancelFunc
	running sync.WaitGroup // activations, closings, releases, tasks

	mu        sync.Mutex
	instances map[key]*Instance
	lastEpoch int64         // minted here, in local mode
	answered  bool          // some request has ended
	answerEnd time.Duration // monotonic: when the last one did
	fences    *fences
	timetable timetable
	drains    [2]drain
	drainEnd  *time.Timer // aborts everything at the drains' deadline
	refusing  bool        // nothing is activated any more: superseded or shut down
	changed   chan struct{}
	counts    map[string]*NamespaceStats
}

func newDirectory(opts *Options, now clock, l *lease) *directory {
	d := &directory{
		opts: opts, log: opts.Logger, clock: now, lease: l,
		slots:     make(chan struct{}, opts.MaxConcurrentActivations),
		instances: map[key]*Instance{},
		fences:    newFences(l.longestTTL),
		changed:   make(chan struct{}),
		counts:    map[string]*NamespaceStats{},
	}
	d.life, d.endLife = context.WithCancel(context.Background())
	d.timetable.expired = d.lookAtDue
	return d
}

// enter lets a request for an instance in, and activates the instance if need
// be. What is refused was never seen by the instance. now is when the clocks were
// read, nil if anything was waited for since.
func (d *directory) enter(f *flight, to *visit, now *instant) *refusal {
	ctx := f.Context
	for ; ; now = nil {
		inst, ref := d.find(f, to, now)
		if ref == nil && f.inst == nil {
			ref = d.board(f, inst, d.await(ctx, inst))
		}
		// An id that stays placed here is activated anew.
		if ref != refuseClosing || !d.awaitRelease(ctx, inst) || !d.isKept(inst) && !d.awaitNext(ctx, inst) {
			return ref
		}
	}
}

func (d *directory) isKept(inst *Instance) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return inst.kept
}

// find returns the instance, or why not: with the request in it, or counted as
// waited for. With refuseClosing it returns the instance as well.
func (d *directory) find(f *flight, to *visit, read *instant) (*Instance, *refusal) {
	k, epoch, h := to.key, to.epoch, to.host
	if read == nil || !d.mu.TryLock() {
		d.mu.Lock()
		moment := d.clock() // not before: to get the lock may have taken its time
		read = &moment
	}
	defer d.mu.Unlock()
	state, now := d.lease.stateNow(*read), read.mono
	if state == leaseExpired {
		return nil, d.expired()
	}
	inst := d.instances[k]
	if inst != nil && inst.state == stateClosing && !inst.givenUp {
		return inst, refuseClosing
	}
	if epoch > 0 {
		if ref := d.admit(inst, k, epoch, now); ref != nil {
			return nil, ref
		}
	}
	if inst == nil {
		// Asked with the lock held, like what a registration claims (held): an
		// instance that it does not claim would live beside the next owner's.
		if session := to.by.Audience; session != d.session() || session == "" && !d.opts.local() {
			return nil, refuseSession
		}
		if ref := d.mayActivate(h, state); ref != nil {
			// Pinboard frees the placement: fenced off, lest another of its
			// nodes sends a request for it that would be let in later.
			if epoch > 0 {
				d.fences.giveUp(k, epoch, now)
			}
			return nil, ref
		}
		inst = d.add(k, h)
	}
	if inst.state == stateClosing || d.pastDeadline(inst, now) {
		return inst, refuseClosing
	}
	if epoch > inst.epoch.Load() {
		inst.epoch.Store(epoch)
	}
	if inst.built { // nearly always
		d.letIn(f, inst)
	} else {
		inst.waiting++
	}
	return inst, nil
}

// admit asks the fences about a placement. inst is nil where there is none yet.
func (d *directory) admit(inst *Instance, k key, epoch int64, now time.Duration) (ref *refusal) {
	if inst == nil {
		return d.fences.admit(k, epoch, now)
	}
	inst.fence, ref = d.fences.admitBy(inst.fence, k, epoch, now)
	return ref
}

// letIn counts a request as one that the handler may see.
func (d *directory) letIn(f *flight, inst *Instance) {
	f.inst = inst
	inst.flights.add(f)
	inst.plain++
}

// mayActivate says why a new id is refused: reasons that give it up.
func (d *directory) mayActivate(h *host, lease leaseState) *refusal {
	switch {
	case lease != leaseHealthy:
		return refuseUnhealthy
	case d.refusing || d.draining():
		return refuseDraining
	case len(d.instances) >= d.opts.MaxInstances, h.opts.MaxInstances > 0 && h.live >= h.opts.MaxInstances:
		return refuseCapacity
	}
	return nil
}

func (d *directory) add(k key, h *host) *Instance {
	now := d.clock().mono
	k.id = strings.Clone(k.id) // else a whole request would stay
	inst := &Instance{
		key: k, dir: d, host: h,
		ready: make(chan struct{}), closing: make(chan struct{}), released: make(chan struct{}),
		idleSince: now, connectedAt: now, index: -1,
	}
	inst.ctx, inst.cancel = context.WithCancelCause(d.life)
	d.instances[k] = inst
	h.live++
	if d.opts.local() {
		d.lastEpoch = max(d.lastEpoch+1, d.clock().wall.UnixMicro())
		inst.epoch.Store(d.lastEpoch)
	}
	d.running.Go(func() { d.activate(inst) })
	return inst
}

// remove forgets an instance of which nothing is left.
func (d *directory) remove(inst *Instance) {
	delete(d.instances, inst.key)
	inst.host.live--
	d.broadcast()
}

// board turns a request that has waited into one that the handler may see. It
// decides anew: the lease may have ended, and the instance begun to close,
// while the request waited.
func (d *directory) board(f *flight, inst *Instance, waited *refusal) *refusal {
	d.mu.Lock()
	defer d.mu.Unlock()
	inst.waiting--
	ref := waited
	switch {
	case ref != nil:
	case inst.state == stateClosing:
		ref = inst.refusal
	case d.pastDeadline(inst, d.clock().mono):
		ref = refuseClosing
	case d.lease.state() == leaseExpired:
		ref = d.expired()
	}
	if ref != nil {
		d.settle(inst)
		return ref
	}
	d.letIn(f, inst)
	return nil
}

// settle looks at an instance after something about it changed, closes it if
// it is time, and else notes when to look again.
func (d *directory) settle(inst *Instance) { d.settleAt(inst, d.clock().mono) }

func (d *directory) settleAt(inst *Instance, now time.Duration) {
	if inst.changed != nil {
		close(inst.changed)
		inst.changed = nil
	}
	if inst.state == stateClosing {
		inst.kept = inst.kept && !d.winding(inst)
		return
	}
	due := never
	if deadline, ok := earliest(inst.windDowns); ok {
		if now >= deadline {
			d.beginClose(inst, errDeadline)
			return
		}
		due = deadline
	}
	if inst.state == stateLive {
		at, cause := d.endOf(inst)
		if now >= at && cause == errIdle && !d.mayIdleOut(inst) {
			at = never // its OnIdle hook is asked
		}
		if now >= at {
			d.beginClose(inst, cause)
			return
		}
		due = min(due, at)
	}
	d.timetable.put(inst, due)
}

// endOf returns when a live instance ends if nothing changes, and why.
func (d *directory) endOf(inst *Instance) (time.Duration, error) {
	winding := d.winding(inst)
	connected := inst.waiting + inst.plain
	held := connected + inst.tasks
	if !winding {
		held += inst.streams
	}
	switch {
	case held == 0 && winding:
		// Not later than by idling: that one nobody asks for.
		return min(d.turnOf(inst), later(inst.idleSince, inst.host.opts.IdleTimeout)), errWoundDown
	case held == 0:
		return later(inst.idleSince, inst.host.opts.IdleTimeout), errIdle
	case connected+inst.streams == 0: // only tasks hold it
		return later(inst.connectedAt, inst.host.opts.DetachedTimeout), errDetached
	}
	return never, nil
}

func (d *directory) lookAtDue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.clock().mono
	for inst := d.timetable.pop(now); inst != nil; inst = d.timetable.pop(now) {
		d.settleAt(inst, now)
	}
	d.timetable.arm(now)
}

func (d *directory) taskEnded(inst *Instance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inst.tasks--
	inst.idleSince = d.clock().mono
	d.settle(inst)
}

// held returns the ids that a registration claims: all whose state may still
// be here.
func (d *directory) held() map[string][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := map[string][]string{}
	for k, inst := range d.instances {
		if !inst.givenUp {
			ids[k.namespace] = append(ids[k.namespace], k.id)
		}
	}
	return ids
}

// broadcast wakes those who wait for the directory to change.
func (d *directory) broadcast() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// waitEmpty waits until there is no instance. stop, if it is not nil, is asked
// after every change whether to give up.
func (d *directory) waitEmpty(ctx context.Context, stop func() error) error {
	for {
		d.mu.Lock()
		left, changed := len(d.instances), d.changed
		var err error
		if stop != nil {
			err = stop()
		}
		d.mu.Unlock()
		if left == 0 || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// remaining returns the number of instances.
func (d *directory) remaining() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.instances)
}
