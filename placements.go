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

// mayPlace returns a refusal if an id must not be placed now on behalf of the
// address. Nobody, such as an instance that calls another one, always may.
func (p *placements) mayPlace(site netip.Prefix) error {
	if p.limit == 0 || site == (netip.Prefix{}) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn()
	if p.of[p.key(site)] < p.limit {
		return nil
	}
	return &refusal{
		status: http.StatusTooManyRequests, retryAfter: time.Until(p.began.Add(placementSpan)),
		message: "your address has had as many new ids as it may",
	}
}

// placed notes that an id was placed.
func (p *placements) placed(site netip.Prefix) {
	if p.limit == 0 || site == (netip.Prefix{}) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn()
	p.of[p.key(site)]++
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
