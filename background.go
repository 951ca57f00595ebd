package pinboard

import (
	"context"
	"sync"
)

// background counts the requests being served, and owns the goroutines that call
// run and guard: they start with the first request. What run does ends with close,
// and what guards the requests when there are none left after it.
type background struct {
	run, guard func(context.Context)

	mu       sync.Mutex
	started  bool
	closed   bool
	requests int           // being served, with what outlives them
	tasks    int           // of run and guard
	idle     chan struct{} // closed when closed and nothing is left
	endRun   context.CancelFunc
	endGuard context.CancelFunc
}

// enter begins a request, which leave ends; it reports false after close. The
// first request starts run and guard.
func (b *background) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.requests++
	if !b.started {
		b.started = true
		b.endRun = b.start(b.run)
		b.endGuard = b.start(b.guard)
	}
	return true
}

// start begins a task, which the returned function ends; the caller holds the lock.
func (b *background) start(task func(context.Context)) (end context.CancelFunc) {
	ctx, end := context.WithCancel(context.Background())
	b.tasks++
	go func() {
		task(ctx)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tasks--
		b.settle()
	}()
	return end
}

// stay begins something that outlives the request which it is part of, and which
// has not left. The caller must call leave for it, too.
func (b *background) stay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
}

func (b *background) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests--
	b.settle()
}

// settle ends what is over after close, and wakes waiters; the caller holds the lock.
func (b *background) settle() {
	if !b.closed || b.requests > 0 {
		return
	}
	if b.started {
		b.endGuard()
	}
	if b.tasks == 0 {
		close(b.idle)
	}
}

// close refuses further requests and ends run. It reports whether it was the
// first call.
func (b *background) close() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.closed, b.idle = true, make(chan struct{})
	if b.started {
		b.endRun()
	}
	b.settle()
	return true
}

// wait returns when close was called and all requests and tasks have ended, or
// with the context's error.
func (b *background) wait(ctx context.Context) error {
	b.mu.Lock()
	idle := b.idle
	b.mu.Unlock()
	select {
	case <-idle:
		return nil
	default:
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
