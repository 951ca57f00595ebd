package pinboard

import (
	"context"
	"sync"
)

// background counts the requests being served, and owns the goroutine that calls
// run while there may be any: it starts with the first request and ends with
// close.
type background struct {
	run func(context.Context)

	mu      sync.Mutex
	started bool
	closed  bool
	active  int
	idle    chan struct{} // closed when closed and nothing is active
	cancel  context.CancelFunc
}

// enter begins a request, which leave ends; it reports false after close. The
// first request starts run.
func (b *background) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.active++
	if !b.started {
		b.started = true
		ctx, cancel := context.WithCancel(context.Background())
		b.cancel = cancel
		b.active++
		go func() {
			defer b.leave()
			b.run(ctx)
		}()
	}
	return true
}

// stay begins something that outlives the request which it is part of, and which
// has not left. The caller must call leave for it, too.
func (b *background) stay() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active++
}

func (b *background) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active--
	b.settle()
}

// settle wakes waiters; the caller holds the lock.
func (b *background) settle() {
	if b.closed && b.active == 0 {
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
	if b.cancel != nil {
		b.cancel()
	}
	b.settle()
	return true
}

// wait returns when close was called and all requests and run have ended, or
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
