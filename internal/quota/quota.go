// Package quota counts what is in use of something bounded, in all and by whom.
package quota

import (
	"errors"
	"net/netip"
	"sync"
)

// Why a Quota gives nothing.
var (
	ErrFull  = errors.New("as many as there may be")
	ErrShare = errors.New("as many as one may have")
)

// Quota counts what is in use. Its methods are safe for concurrent use.
type Quota[K comparable] struct {
	most int // in all
	each int // of one, but for the zero key

	mu    sync.Mutex
	total int
	of    map[K]*share
	spare []*share // a few that are nobody's
}

// share is how much one has. Its place is kept, so that to take one more looks the
// key up once.
type share struct{ n int }

// spares is how many shares are kept for those who come next.
const spares = 64

// New returns a Quota of so many in all, of which each key may have some; the
// zero key may have all.
func New[K comparable](most, each int) *Quota[K] {
	return &Quota[K]{most: most, each: each, of: map[K]*share{}}
}

// Take returns nil if there is one more for the key, which must be given back.
// The error is ErrShare or ErrFull.
func (q *Quota[K]) Take(key K) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var nobody K
	var s *share
	if key != nobody {
		s = q.of[key]
	}
	switch {
	case key != nobody && (s != nil && s.n >= q.each || q.each <= 0):
		return ErrShare
	case q.total >= q.most:
		return ErrFull
	}
	q.total++
	if key != nobody {
		if s == nil {
			s = q.share()
			q.of[key] = s
		}
		s.n++
	}
	return nil
}

// share returns an empty one; the caller holds the lock.
func (q *Quota[K]) share() *share {
	last := len(q.spare) - 1
	if last < 0 {
		return &share{}
	}
	s := q.spare[last]
	q.spare = q.spare[:last]
	return s
}

// Give gives one back that was taken for the key.
func (q *Quota[K]) Give(key K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	s := q.of[key]
	if s == nil {
		return // nobody's
	}
	if s.n--; s.n == 0 {
		delete(q.of, key)
		if len(q.spare) < spares {
			q.spare = append(q.spare, s)
		}
	}
}

// Use returns how much is in use, and by how many keys.
func (q *Quota[K]) Use() (total, keys int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total, len(q.of)
}

// siteBits is the length of the IPv6 prefix that counts as one client: what a
// single customer gets.
const siteBits = 64

// Site returns what counts as one client of a network address: the address, or
// its /64 in IPv6. It is the zero Prefix for the zero Addr.
func Site(addr netip.Addr) netip.Prefix {
	if !addr.IsValid() {
		return netip.Prefix{}
	}
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = siteBits
	}
	site, _ := addr.Prefix(bits) // in range
	return site
}
