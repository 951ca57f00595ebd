package pinboard

import (
	"context"
	"sync"
)

// keyed is a lock per key. The zero keyed has none held.
type keyed struct {
	mu    sync.Mutex
	locks map[string]*keyedLock
}

type keyedLock struct {
	turn  chan struct{} // full while held
	users int           // holder and waiters
}

// lock waits for the key's lock. The error is the context's, when that ends
// first; else unlock must be called.
func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		if k.locks == nil {
			k.locks = map[string]*keyedLock{}
		}
		l = &keyedLock{turn: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	select {
	case l.turn <- struct{}{}:
		return func() {
			<-l.turn
			k.leave(key, l)
		}, nil
	case <-ctx.Done():
		k.leave(key, l)
		return nil, ctx.Err()
	}
}

// leave forgets a lock that nobody uses any more.
func (k *keyed) leave(key string, l *keyedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
