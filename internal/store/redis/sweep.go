package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// sweepTurn is how long a node that sweeps keeps the others from it, at
	// most: one that dies in the middle must not stop them for long.
	sweepTurn = 10 * time.Second
	// sweepRows is about how many rows one Sweep looks at,
	sweepRows = 1000
	// sweepTogether how many buckets it asks at the same time, and
	sweepTogether = 8
	// sweepSessions how many lapsed sessions it looks at in each.
	sweepSessions = 64
	// entryMemory is how long a bucket remembers a client without a session
	// there, so that a registration that is late by less is kept out.
	entryMemory = time.Hour
)

// rotation is where the next Sweep begins, so that a bucket with much to sweep
// does not keep the others waiting.
type rotation struct{ at atomic.Uint64 }

// Sweep looks at all buckets, or at as many as have sweepRows rows to look at.
func (d *directory) Sweep(ctx context.Context) (removed int, more bool, err error) {
	fleet, token := d.keys.fleet(), rand.Text()
	a := d.run(ctx, lockScript.with(
		[]string{fleet.sweep(), fleet.live(), fleet.namespaces()},
		string(fleet), token, sweepTurn.Milliseconds(), sweepSessions,
	))
	if a.err != nil || !a.more() {
		return 0, false, a.err
	}
	var bindings []string
	for list := a.list(); list.more(); a.fail(list.err) {
		bindings = append(bindings, list.text())
	}
	if a.err == nil {
		removed, more, err = d.sweep(ctx, d.keys.buckets(bindings))
		if err == nil {
			err = d.forget(ctx, bindings)
		}
	}
	return removed, more, errors.Join(a.err, err, d.run(ctx, unlockScript.with([]string{fleet.sweep()}, token)).err)
}

func (d *directory) sweep(ctx context.Context, buckets []bucketKeys) (removed int, more bool, err error) {
	look := int64(sweepRows)
	for done := 0; done < len(buckets); {
		start := int(d.sweeps.at.Load() % uint64(len(buckets)))
		some := buckets[start:min(start+sweepTogether, start+len(buckets)-done, len(buckets))]
		calls := make([]call, len(some))
		for i, b := range some {
			calls[i] = sweepScript.with(
				[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves()},
				string(b), max(1, look/int64(len(some))), sweepSessions, entryMemory.Milliseconds(),
			)
		}
		answers := d.runAll(ctx, calls)
		for _, a := range answers {
			removed += int(a.int())
			look -= a.int()
			more = a.flag() || more
		}
		if err := firstError(answers); err != nil {
			return removed, more, err
		}
		done += len(some)
		d.sweeps.at.Add(uint64(len(some)))
		if look <= 0 && done < len(buckets) {
			return removed, true, nil
		}
	}
	return removed, more, nil
}
