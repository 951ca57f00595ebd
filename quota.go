package pinboard

import (
	"errors"
	"sync"
)

// Why a quota gives nothing.
var (
	errFull  = errors.New("as many as there may be")
	errShare = errors.New("as many as one may have")
)

// quota counts what is in use, in all and by whom.
type quota[K comparable] struct {
	max  int // in all
	each int // of one, but for the zero key

	mu    sync.Mutex
	total int
	of    map[K]int
}

func newQuota[K comparable](most, each int) *quota[K] {
	return &quota[K]{max: most, each: each, of: map[K]int{}}
}

// take returns nil if there is one more for the key, which must be given back.
// The error is errShare or errFull.
func (q *quota[K]) take(key K) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var nobody K
	switch {
	case key != nobody && q.of[key] >= q.each:
		return errShare
	case q.total >= q.max:
		return errFull
	}
	q.total++
	if key != nobody {
		q.of[key]++
	}
	return nil
}

func (q *quota[K]) give(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if n := q.of[key]; n > 1 {
		q.of[key] = n - 1
	} else {
		delete(q.of, key)
	}
}
