package pinboard

import (
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// placementSpan is what Limits.PlacementsPerAddress counts over.
	placementSpan = time.Minute
	// maxSites bounds the addresses that are told apart within one span; those
	// beyond it count as one.
	maxSites = 100_000
)

// placements counts which addresses had ids placed, span by span.
type placements struct {
	limit int // 0: none

	mu    sync.Mutex
	began time.Time
	of    map[netip.Prefix]int
}

// overPlaced is the refusal for an address that has had its share. It is not for
// others who wait for the same look-up.
type overPlaced struct {
	*refusal
	site netip.Prefix
}

func (o *overPlaced) Unwrap() error { return o.refusal }

// counts reports whether ids that are placed on behalf of the address are
// counted. Those of nobody, such as an instance that calls another one, are not.
func (p *placements) counts(site netip.Prefix) bool {
	return p.limit > 0 && site != (netip.Prefix{})
}

// may reports whether an id may be placed now on behalf of the address.
func (p *placements) may(site netip.Prefix) bool {
	if !p.counts(site) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn()
	return p.of[p.key(site)] < p.limit
}

// take counts an id that is about to be placed, if it may be, on behalf of an
// address that counts; the error is an overPlaced. If it is not placed after
// all, giveBack must be called.
func (p *placements) take(site netip.Prefix) (giveBack func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn()
	key, span := p.key(site), p.began
	if p.of[key] >= p.limit {
		return nil, &overPlaced{site: site, refusal: &refusal{
			status: http.StatusTooManyRequests, retryAfter: time.Until(p.began.Add(placementSpan)), limit: limitPlacements,
			message: "your address has had as many new ids as it may",
		}}
	}
	p.of[key]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.began != span {
			return
		}
		if p.of[key]--; p.of[key] == 0 {
			delete(p.of, key)
		}
	}, nil
}

// turn begins the next span if it is time; the caller holds the lock.
func (p *placements) turn() {
	if now := time.Now(); p.of == nil || now.Sub(p.began) >= placementSpan {
		p.began, p.of = now, map[netip.Prefix]int{}
	}
}

// key is what an address counts as; the caller holds the lock.
func (p *placements) key(site netip.Prefix) netip.Prefix {
	if _, known := p.of[site]; !known && len(p.of) >= maxSites {
		return netip.Prefix{}
	}
	return site
}
