package main

import (
	"iter"
	"net/netip"
	"sync"
	"time"
)

const (
	// networkBits4 and networkBits6 are how much of an address is its network: about
	// what one attacker can have many addresses of.
	networkBits4 = 24
	networkBits6 = 48
	// lookAtMost is among how many connections one without a request is looked for. All
	// of a full node took up to 5 ms, in which nobody is accepted.
	lookAtMost = 128
	// lately is how long what was cut for a network counts as if it still had it.
	lately = 10 * time.Second
)

// networkOf returns the network of what counts as one client; the zero Prefix for
// the zero Prefix.
func networkOf(site netip.Prefix) netip.Prefix {
	bits := networkBits4
	if site.Addr().Is6() {
		bits = networkBits6
	}
	network, _ := site.Addr().Prefix(min(bits, max(0, site.Bits()))) // in range
	return network
}

// crowd knows which networks have how many connections. Its methods are safe for
// concurrent use; each takes the same time however many there are.
type crowd struct {
	mu     sync.Mutex
	of     map[netip.Prefix]members
	bySize map[int]map[netip.Prefix]bool
	most   int // that one network has

	cutFor map[netip.Prefix]int // how many were, since then
	since  time.Time
}

type members map[*counted]bool

func newCrowd() *crowd {
	return &crowd{of: map[netip.Prefix]members{}, bySize: map[int]map[netip.Prefix]bool{}, cutFor: map[netip.Prefix]int{}}
}

func (c *crowd) join(conn *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.of[conn.network]
	if all == nil {
		all = members{}
		c.of[conn.network] = all
	}
	was := len(all)
	all[conn] = true
	c.resized(conn.network, was, len(all))
}

func (c *crowd) leave(conn *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.of[conn.network]
	was := len(all)
	if delete(all, conn); len(all) == 0 {
		delete(c.of, conn.network)
	}
	c.resized(conn.network, was, len(all))
}

func (c *crowd) resized(network netip.Prefix, was, is int) {
	if delete(c.bySize[was], network); len(c.bySize[was]) == 0 {
		delete(c.bySize, was)
	}
	if is > 0 {
		if c.bySize[is] == nil {
			c.bySize[is] = map[netip.Prefix]bool{}
		}
		c.bySize[is][network] = true
	}
	switch { // a size changes by one
	case is > c.most:
		c.most = is
	case c.bySize[c.most] == nil:
		c.most = is
	}
}

// excess returns a connection, to be cut, of a network that has the most of all, and has
// more than the given one would have with one more: one without a request if that is soon
// found. It is nil if no network has so many. Who closes what it got and comes again, at
// the cost of others each time, gets no more that way than by keeping it.
func (c *crowd) excess(network netip.Prefix) *counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.since) >= lately {
		clear(c.cutFor)
		c.since = now
	}
	if c.most <= max(len(c.of[network]), c.cutFor[network])+1 {
		return nil
	}
	c.cutFor[network]++
	var one *counted
	for one = range c.some() {
		if one.idle.Load() {
			break
		}
	}
	return one
}

// some returns connections of the networks that have the most, lookAtMost at most.
func (c *crowd) some() iter.Seq[*counted] {
	return func(yield func(*counted) bool) {
		left := lookAtMost
		for largest := range c.bySize[c.most] {
			for one := range c.of[largest] {
				if left--; !yield(one) || left == 0 {
					return
				}
			}
		}
	}
}
