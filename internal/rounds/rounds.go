// Package rounds finds out what takes long among very many things that do not: it
// costs each of them a look at a counter, and no timer.
package rounds

import (
	"sync"
	"sync/atomic"
	"time"
)

// Time is how long a round is.
const Time = 50 * time.Millisecond

// Rounds asks, after a round, what has been noted in it. Its zero value is ready, and
// its methods are safe for concurrent use. It has a timer only while there is something
// to ask.
type Rounds[T interface{ Due(now uint32) }] struct {
	now atomic.Uint32

	mu         sync.Mutex
	young, old []T // noted in the present round, and in the one before
	spare      []T
	timer      *time.Timer // nil while there is nothing
}

// Now is the present round.
func (r *Rounds[T]) Now() uint32 { return r.now.Load() }

// Long reports whether what has begun in a round, and goes on, has taken all of another
// one: between one and two of Time.
func Long(since, now uint32) bool { return now-since >= 2 }

// Note has Due called of v, on another goroutine, in the round after next.
func (r *Rounds[T]) Note(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.young = append(r.young, v)
	if r.timer == nil {
		r.timer = time.AfterFunc(Time, r.tick)
	}
}

func (r *Rounds[T]) tick() {
	due := r.turn()
	now := r.Now()
	for _, v := range due {
		v.Due(now)
	}
	clear(due)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spare = due[:0]
}

// turn begins another round, and returns what is to be asked.
func (r *Rounds[T]) turn() (due []T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Add(1)
	due, r.old, r.young, r.spare = r.old, r.young, r.spare, nil
	if r.timer = nil; len(due)+len(r.old) > 0 {
		r.timer = time.AfterFunc(Time, r.tick)
	}
	return due
}
