package worker

import "context"

// Lease returns the lease as it is now.
func (w *Worker) Lease() Lease { return w.lease.look() }

// Lease returns the worker's lease as it is now.
func (i *Instance) Lease() Lease { return i.dir.lease.look() }

// LeaseContext returns a context for work that only the owner of its ids may
// do. It ends, with the cause ErrLeaseLost, when the lease is over; with
// ErrSuperseded or ErrClosed when the worker is. It does not come back: once the
// lease is restored, LeaseContext returns another one. Without a lease it
// returns one that has ended.
//
// A context tells late of a machine that was suspended. What must not happen
// twice asks Lease just before, or is fenced by Instance.Epoch.
func (w *Worker) LeaseContext() context.Context { return w.lease.context() }

// LeaseContext is Worker.LeaseContext for an instance: it ends with Context,
// too, and then has its cause.
func (i *Instance) LeaseContext() context.Context {
	d := i.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if i.leased == nil || i.leased.Err() != nil {
		i.leased = while(i.ctx, d.lease.context())
	}
	return i.leased
}

// while returns a context that ends with either of two, with its cause.
func while(first, second context.Context) context.Context {
	both, cancel := context.WithCancelCause(first)
	stop := context.AfterFunc(second, func() { cancel(context.Cause(second)) })
	context.AfterFunc(both, func() { stop() })
	if second.Err() != nil {
		cancel(context.Cause(second))
	}
	return both
}

func (l *lease) look() Lease {
	now := l.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.stateAt(now)
	view := Lease{Healthy: state == leaseHealthy, Expired: state == leaseExpired}
	if l.granted {
		left := min(l.deadline.mono-now.mono, l.deadline.wall.Sub(now.wall))
		view.ExpiresAt = now.wall.Add(left)
	}
	return view
}

// context returns what ends when the lease does.
func (l *lease) context() context.Context {
	now := l.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stateAt(now) == leaseExpired {
		l.lose(ErrLeaseLost)
	}
	if l.held == nil {
		l.held, l.endHeld = context.WithCancelCause(context.Background())
		l.lose(ErrLeaseLost)
	}
	return l.held
}

// hold makes a context for what was granted, unless the last one still runs.
// Called with the lock held.
func (l *lease) hold(now instant) {
	if l.over != nil || l.stateAt(now) == leaseExpired || l.held != nil && l.held.Err() == nil {
		return
	}
	l.held, l.endHeld = context.WithCancelCause(context.Background())
}

// lose ends the context, if there is one. Called with the lock held.
func (l *lease) lose(cause error) {
	if l.over != nil {
		cause = l.over
	}
	if l.held != nil {
		l.endHeld(cause)
	}
}

// give says that there will be no lease any more. Called with the lock held.
func (l *lease) give(cause error) {
	if l.over == nil {
		l.over = cause
	}
	l.lose(l.over)
}

// giveUp ends the context for good. What is granted still runs: the ids stay
// this worker's until it has released them.
func (l *lease) giveUp(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.give(cause)
}

// grantForever is for local mode: a lease that nobody could take away.
func (l *lease) grantForever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endless = true
	l.hold(l.clock())
}
