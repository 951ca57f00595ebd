package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// ErrLeaseLost is why a LeaseContext ends when no heartbeat was accepted for so
// long that pinboard may have placed the ids elsewhere.
var ErrLeaseLost = errors.New("worker: the lease was lost")

// Lease is the worker's lease as it is at one moment (protocol §8).
type Lease struct {
	// Healthy: new ids are activated. Not so shortly before the end.
	Healthy bool
	// Expired: nothing is served. True before the first registration, too.
	Expired bool
	// ExpiresAt is when the lease ends unless it is renewed, by the wall clock;
	// zero before the first registration and in local mode.
	ExpiresAt time.Time
}

// leaseState says what a worker may do.
type leaseState int

const (
	// leaseExpired: nothing was granted yet, or what was granted is over.
	// Pinboard may place the ids elsewhere, so nothing is served.
	leaseExpired leaseState = iota
	// leaseUnhealthy: within the buffer before the end. Live instances are
	// served, nothing is activated.
	leaseUnhealthy
	// leaseHealthy: heartbeats are accepted in time.
	leaseHealthy
)

// lease is how long this worker may serve (protocol §8), as far as it knows.
//
// Why its view ends first: pinboard's record lives for the granted time from
// when it was written. The worker counts the same time from before it sent the
// request that made pinboard write it. So the worker's deadline lies before
// pinboard's by at least the time that the request took to get there, if the
// clocks run equally fast; see instant for clocks that do not run at all.
//
// A state is always computed from the clocks when it is asked for; the timer
// only serves the callbacks and the context.
type lease struct {
	clock       clock
	buffer      time.Duration
	onUnhealthy func()
	onRestored  func()
	log         *zap.Logger
	metrics     *metrics // set before the first request

	callbacks sync.WaitGroup // armed and running timers

	// healthyUntil spares requests the lock while nothing is amiss: before it the
	// lease is healthy. nil where that is to be found out with the lock.
	healthyUntil atomic.Pointer[instant]
	longest      atomic.Int64 // of all grants, a time.Duration

	mu        sync.Mutex
	granted   bool
	deadline  instant
	uncut     instant // the deadline without the ceiling
	cut       bool    // the ceiling made the difference
	seenOver  bool    // since the last grant
	capped    bool
	ceiling   time.Duration // monotonic, while capped
	unhealthy bool          // what was announced last
	flapCount int
	timer     *time.Timer
	closed    bool
	endless   bool // in local mode

	held    context.Context // ends when what is granted now is over; nil before a grant
	endHeld context.CancelCauseFunc
	over    error // why there will be no other one, nil while there may
}

func newLease(now clock, opts *Options) *lease {
	return &lease{
		clock: now, buffer: opts.LeaseBuffer, log: opts.Logger,
		onUnhealthy: opts.OnUnhealthy, onRestored: opts.OnRestored,
	}
}

// state returns what the worker may do now.
func (l *lease) state() leaseState { return l.stateNow(l.clock()) }

// stateNow is state for callers that have just read the clocks.
func (l *lease) stateNow(now instant) leaseState {
	if until := l.healthyUntil.Load(); until != nil && !now.reached(*until) {
		return leaseHealthy
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stateAt(now)
}

// stateAt is state for callers with the lock. What was once seen to be over
// stays so: a wall clock that is set back behind a suspend must not revive it, nor a
// request that has read the clocks before the suspend.
func (l *lease) stateAt(now instant) leaseState {
	switch {
	case l.endless:
		return leaseHealthy
	case !l.granted:
		return leaseExpired
	case l.seenOver || now.reached(l.deadline):
		l.seenOver = true
		l.deadline.mono = min(l.deadline.mono, now.mono)
		l.healthyUntil.Store(nil)
		return leaseExpired
	case now.reached(l.deadline.add(-l.buffer)):
		return leaseUnhealthy
	}
	return leaseHealthy
}

// missing reports whether heartbeats are missing: that is what is announced. A draining
// worker's lease ends without that. Called with the lock held, of what was granted.
func (l *lease) missing(now instant) bool {
	if l.cut {
		return now.reached(l.uncut.add(-l.buffer))
	}
	return l.stateAt(now) != leaseHealthy
}

// renewed records that pinboard granted ttl in answer to a request that was
// sent at sent.
func (l *lease) renewed(sent instant, ttl time.Duration) {
	now := l.clock()
	l.mu.Lock()
	if l.closed { // the answer came with the end
		l.mu.Unlock()
		return
	}
	// A suspended machine's timer has not fired: the flap is seen here.
	missed := l.granted && !l.unhealthy && l.missing(now)
	if missed {
		l.turnUnhealthy()
	}
	if l.stateAt(now) == leaseExpired {
		l.lose(ErrLeaseLost)
	}
	l.granted, l.seenOver = true, false
	l.longest.Store(max(l.longest.Load(), int64(ttl)))
	l.deadline = sent.add(ttl)
	l.uncut, l.cut = l.deadline, l.capped && l.ceiling < l.deadline.mono
	if l.cut {
		l.deadline.mono = l.ceiling
	}
	until := l.deadline.add(-l.buffer)
	l.healthyUntil.Store(&until)
	if l.stateAt(now) == leaseExpired { // the answer came too late, and no timer will tell
		if !l.unhealthy && l.missing(now) {
			l.turnUnhealthy()
			missed = true
		}
		l.lose(ErrLeaseLost)
	}
	l.hold(now)
	restored := l.unhealthy && l.stateAt(now) == leaseHealthy
	if restored {
		l.unhealthy = false
	}
	l.arm(now)
	l.mu.Unlock()

	if missed {
		l.call("OnUnhealthy", l.onUnhealthy)
	}
	if restored {
		l.log.Info("lease restored")
		l.call("OnRestored", l.onRestored)
	}
}

// beats reports whether heartbeats are accepted in time.
func (l *lease) beats() bool {
	now := l.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endless || l.granted && !l.missing(now)
}

// limit keeps later renewals from reaching past a moment of the monotonic
// clock: a draining worker ends by itself at its deadline.
func (l *lease) limit(deadline time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.capped, l.ceiling = true, deadline
}

// unlimit lifts the limit; the next renewal has its full length again.
func (l *lease) unlimit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.capped = false
}

// longestTTL returns the length of the longest grant, 0 before the first. A
// registration that was answered late grants only what is left of its lease,
// which says nothing of how long a node of pinboard may trust a route.
func (l *lease) longestTTL() time.Duration { return time.Duration(l.longest.Load()) }

// flaps returns how often the lease turned unhealthy.
func (l *lease) flaps() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flapCount
}

// close ends the context for good and begins no callback any more; callbacks
// waits for those that run. Nothing is granted from now on, and what was granted
// runs out.
func (l *lease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.disarm()
	l.give(ErrClosed)
}

// end is close, and takes back what was granted. Nothing is served afterwards.
func (l *lease) end() {
	l.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted, l.endless = false, false
	l.healthyUntil.Store(nil)
}

// arm sets the timer to when the lease turns unhealthy, or after that to when
// it ends.
func (l *lease) arm(now instant) {
	l.disarm()
	if l.closed || l.endless || l.stateAt(now) == leaseExpired {
		return
	}
	due := l.deadline.mono
	if !l.unhealthy {
		due = min(due, l.uncut.mono-l.buffer)
	}
	l.callbacks.Add(1)
	l.timer = time.AfterFunc(due-now.mono, l.watch)
}

func (l *lease) disarm() {
	if l.timer != nil && l.timer.Stop() {
		l.callbacks.Done()
	}
	l.timer = nil
}

func (l *lease) watch() {
	defer l.callbacks.Done()
	now := l.clock()
	l.mu.Lock()
	// A renewal may have come in between: then there is only a timer to set.
	turned := !l.closed && !l.unhealthy && l.missing(now)
	if turned {
		l.turnUnhealthy()
	}
	if l.stateAt(now) == leaseExpired {
		l.lose(ErrLeaseLost)
	}
	l.arm(now)
	l.mu.Unlock()
	if turned {
		l.call("OnUnhealthy", l.onUnhealthy)
	}
}

func (l *lease) turnUnhealthy() {
	l.unhealthy = true
	l.flapCount++
	l.log.Warn("lease unhealthy: no heartbeat was accepted in time", zap.Int("flaps", l.flapCount))
}

func (l *lease) call(name string, callback func()) {
	if callback == nil {
		return
	}
	if fault := contain(callback); fault != nil {
		l.metrics.callbackFailed(name)
		l.log.Error("callback panicked", zap.String("callback", name), zap.Error(fault))
	}
}
