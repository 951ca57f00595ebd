package pinboard

import (
	"context"
	"iter"
	"sync"
	"time"
)

// flow is one request or tunnel that is open to a worker. It is the context of
// what is done for it: it ends with the client's, whose values and deadline it
// has, or when it is cancelled. Unlike those of package context it costs no more
// than itself, for there is one for every request. Most are over before it would
// be worth to have the client's context tell of its end: that is for follow.
type flow struct {
	context.Context
	leases *leases
	lease  *lease
	opened time.Time
	// end, if set, ends a stream in an orderly way when the node shuts down;
	// without one the request runs to its end. Guarded by leases.mu.
	end func()
	// before and after it in the lease's flows, guarded by leases.mu.
	prev, next *flow
	open       bool

	mu     sync.Mutex
	forget func() bool   // ends the following of the client; nil while there is none
	reason error         // why it has ended; nil while it has not
	done   chan struct{} // nil until somebody asks for it
	// What is to be called when it ends. Most requests have no more than two.
	after [2]func()
	more  []func()
	asked int // how often AfterFunc was called
}

// follow has the flow end with its client from now on, and not only when somebody
// asks Err.
func (f *flow) follow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forget == nil && f.reason == nil {
		f.forget = context.AfterFunc(f.Context, func() { f.cancel(context.Cause(f.Context)) })
	}
}

// cancel ends the flow, for a reason, and does not wait for anything. Only the
// first reason counts.
func (f *flow) cancel(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finish(reason)
}

// finish is cancel; the caller holds the lock.
func (f *flow) finish(reason error) {
	if f.reason != nil {
		return
	}
	f.reason = reason
	if f.done != nil {
		close(f.done)
	}
	for _, fns := range [...][]func(){f.after[:], f.more} {
		for _, fn := range fns {
			if fn != nil {
				go fn()
			}
		}
	}
	f.after, f.more = [2]func(){}, nil
}

// close ends a flow that is over: nothing is called any more. It may be called
// twice.
func (f *flow) close() {
	f.leases.shut(f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.forget != nil {
		f.forget()
	}
	f.after, f.more = [2]func(){}, nil
	f.finish(context.Canceled)
}

// cause returns why the flow has ended, nil while it has not.
func (f *flow) cause() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason == nil && f.Context.Err() != nil {
		return context.Cause(f.Context)
	}
	return f.reason
}

// Done implements context.Context.
func (f *flow) Done() <-chan struct{} {
	f.follow()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.reason != nil {
			close(f.done)
		}
	}
	return f.done
}

// Err implements context.Context. It may know of the client's leaving a moment
// before Done does.
func (f *flow) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.Context.Err(); err != nil || f.reason == nil {
		return err
	}
	return context.Canceled
}

// AfterFunc has fn called, on a goroutine of its own, when the flow ends: with its
// client, once that is followed. stop
// takes that back, and reports whether it was in time. It is what
// context.AfterFunc uses.
func (f *flow) AfterFunc(fn func()) (stop func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason != nil {
		go fn()
		return func() bool { return false }
	}
	at := f.asked
	if f.asked++; at < len(f.after) {
		f.after[at] = fn
	} else {
		f.more = append(f.more, fn)
	}
	return func() bool { return f.take(at) }
}

// take forgets what AfterFunc was to call.
func (f *flow) take(at int) (inTime bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason != nil {
		return false
	}
	fn := &f.after[min(at, len(f.after)-1)]
	if at >= len(f.after) {
		fn = &f.more[at-len(f.after)]
	}
	inTime = *fn != nil
	*fn = nil
	return inTime
}

// flows are those that are open to one session, guarded by leases.mu. Its zero value
// has none.
type flows struct {
	first *flow
	count int
}

func (l *flows) add(f *flow) {
	if f.open {
		return
	}
	f.open, f.prev, f.next = true, nil, l.first
	if l.first != nil {
		l.first.prev = f
	}
	l.first = f
	l.count++
}

// remove may be called twice.
func (l *flows) remove(f *flow) {
	if !f.open {
		return
	}
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		l.first = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.open, f.prev, f.next = false, nil, nil
	l.count--
}

// all is over the flows, none of which may be added or removed meanwhile.
func (l *flows) all() iter.Seq[*flow] {
	return func(yield func(*flow) bool) {
		for f := l.first; f != nil; f = f.next {
			if !yield(f) {
				return
			}
		}
	}
}
