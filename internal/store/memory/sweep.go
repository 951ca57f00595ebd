package memory

import (
	"context"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// maxSweep bounds what one Sweep removes, and
	maxSweep = 1000
	// maxForget how many buckets it looks at to forget them.
	maxForget = 64
)

// Sweep removes dead rows, and clients whose memory is over.
func (n *node) Sweep(ctx context.Context) (removed int, more bool, err error) {
	if !n.sweeping.TryLock() {
		return 0, false, nil
	}
	defer n.sweeping.Unlock()
	now, err := n.enter(ctx)
	if err != nil {
		return 0, false, err
	}
	defer n.leave()
	for removed < maxSweep && n.sweepRow() {
		removed++
	}
	for removed < maxSweep && n.sweepClient(now) {
		removed++
	}
	n.forgetBuckets(now)
	n.pass(now)
	// Whether the clients left over are due is for the next call to see.
	return removed, removed == maxSweep, nil
}

// forgetBuckets forgets buckets that nobody has served for as long as a client is
// remembered: a fleet may have bound many host names in its life. Which ones it
// looks at is up to chance.
func (d *directory) forgetBuckets(now time.Time) {
	look := maxForget
	for at, b := range d.buckets {
		if look--; look < 0 {
			return
		}
		if len(b.members) == 0 && len(b.rows) == 0 && now.Sub(b.vacatedAt) >= store.ClientMemory {
			d.floor = max(d.floor, b.lastEpoch)
			delete(d.buckets, at)
		}
	}
}

// sweepRow removes one dead row; false if there is none.
func (d *directory) sweepRow() bool {
	for len(d.dead) > 0 {
		if e := d.dead[0].rows.Front(); e != nil {
			r := e.Value.(*row) // nothing else is put there
			r.bucket.drop(r)
			return true
		}
		d.dead[0] = nil // the backing array must not keep it
		d.dead = d.dead[1:]
	}
	return false
}

// sweepClient forgets one client that is due; false if there is none.
func (d *directory) sweepClient(now time.Time) bool {
	for len(d.forgetting) > 0 && !now.Before(d.forgetting[0].at) {
		c := d.forgetting[0].client
		d.forgetting[0] = leaving{}
		d.forgetting = d.forgetting[1:]
		// It may have come back meanwhile, and even have left again: then it
		// is further down the list, too.
		if c.forgotten(now) && d.clients[c.id] == c {
			delete(d.clients, c.id)
			return true
		}
	}
	return false
}
