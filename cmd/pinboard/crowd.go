package main

import (
	"net/netip"
	"sync"
)

const (
	// networkBits4 and networkBits6 are how much of an address is its network: about
	// what one attacker can have many addresses of.
	networkBits4 = 24
	networkBits6 = 48
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
// concurrent use; each takes the same time however many networks there are.
type crowd struct {
	mu     sync.Mutex
	of     map[netip.Prefix]members
	bySize map[int]map[netip.Prefix]bool
	most   int // that one network has
}

type members map[*counted]bool

func newCrowd() *crowd {
	return &crowd{of: map[netip.Prefix]members{}, bySize: map[int]map[netip.Prefix]bool{}}
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

// excess returns a connection of a network that has the most of all, and has more than
// the given one would have with one more: one without a request if there is. It is nil
// if no network has so many.
func (c *crowd) excess(network netip.Prefix) *counted {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most <= len(c.of[network])+1 {
		return nil
	}
	var one *counted
	for largest := range c.bySize[c.most] {
		for one = range c.of[largest] {
			if one.idle.Load() {
				return one
			}
		}
	}
	return one
}
