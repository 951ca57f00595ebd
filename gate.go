package pinboard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// gateEvery is how often a store that does not answer is tried again.
const gateEvery = 250 * time.Millisecond

// gate bounds look-ups in the store, and spares requests the wait for a store
// that has stopped answering: after one look-up has timed out, only one in a
// while is let through until one is answered. The zero gate is open.
type gate struct {
	shut  atomic.Bool // changed under mu
	mu    sync.Mutex
	retry time.Time
}

// do calls f with a bounded context. It returns an errStoreAway where the store
// is known not to answer, or has not in time.
func (g *gate) do(ctx context.Context, f func(context.Context) error) error {
	if !g.enter() {
		return errStoreAway
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := f(bounded)
	if ctx.Err() != nil {
		return err // the caller left: that says nothing of the store
	}
	silent := err != nil && bounded.Err() != nil
	g.leave(silent)
	if silent {
		return errors.Join(errStoreAway, err)
	}
	return err
}

// glance is do for what mostly is answered without the store: it is left out while
// the store is known not to answer, and what is answered says nothing of that.
func (g *gate) glance(ctx context.Context, f func(context.Context) error) error {
	if g.isShut() {
		return errStoreAway
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		g.leave(true)
	}
	return err
}

// isShut reports whether the store is known not to answer.
func (g *gate) isShut() bool { return g.shut.Load() }

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isShut() {
		return true
	}
	if time.Now().Before(g.retry) {
		return false
	}
	g.retry = time.Now().Add(gateEvery + storeTimeout) // one trial at a time
	return true
}

func (g *gate) leave(silent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut.Store(silent)
	if silent {
		g.retry = time.Now().Add(gateEvery)
	}
}
