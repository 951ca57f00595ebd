// Package quota counts what is in use of something bounded, in all and by whom.
package quota

import (
	"errors"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
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

	mu     sync.Mutex
	total  int
	nobody Share // of the zero key
	// of has the shares that are in use, and some that are not: who comes again most
	// often finds a place, and whoever goes needs none to be looked up.
	of   map[K]*Share
	used int // shares in use, of of
}

// Share is what one key has of a Quota. It is its Quota's.
type Share struct {
	n atomic.Int64 // changed under the Quota's lock
}

// Use returns how much the key has in use.
func (s *Share) Use() int { return int(s.n.Load()) }

// spares is how many shares are kept that nobody uses, at least, before all such are
// forgotten. There may be as many as are in use besides.
const spares = 1024

// New returns a Quota of so many in all, of which each key may have some; the
// zero key may have all. Keys are kept for a while when nothing is in use.
func New[K comparable](most, each int) *Quota[K] {
	return &Quota[K]{most: most, each: each, of: map[K]*Share{}}
}

// Take counts one more for the key, and returns what must be given back. The error is
// ErrShare or ErrFull.
func (q *Quota[K]) Take(key K) (*Share, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.nobody
	var nobody K
	if key != nobody {
		s = q.of[key]
		if q.each <= 0 || s != nil && s.Use() >= q.each {
			return nil, ErrShare
		}
	}
	if q.total >= q.most {
		return nil, ErrFull
	}
	if s == nil {
		s = q.join(key)
	}
	if s.n.Add(1) == 1 && s != &q.nobody {
		q.used++
	}
	q.total++
	return s, nil
}

// join makes a place for a key; the caller holds the lock.
func (q *Quota[K]) join(key K) *Share {
	if len(q.of) >= 2*q.used+spares {
		maps.DeleteFunc(q.of, func(_ K, s *Share) bool { return s.Use() == 0 })
	}
	s := &Share{}
	q.of[key] = s
	return s
}

// Give gives back one that was taken.
func (q *Quota[K]) Give(s *Share) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.total--
	if s.n.Add(-1) == 0 && s != &q.nobody {
		q.used--
	}
}

// Use returns how much is in use, and by how many keys.
func (q *Quota[K]) Use() (total, keys int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total, q.used
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
