package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// sweepTurn is how long a node that sweeps keeps the others from it, at
	// most: one that dies in the middle must not stop them for long.
	sweepTurn = 10 * time.Second
	// sweepRows is about how many rows one script looks at, and
	sweepRows = 250
	// sweepSteps how many such scripts, or rounds of them, one Sweep runs.
	sweepSteps = 4
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

// Sweep looks at all buckets, or at as many as have sweepRows rows to look at, a
// few times over, and forgets bindings that nobody has used for long.
func (d *directory) Sweep(ctx context.Context) (removed int, more bool, err error) {
	if err := d.agree(ctx); err != nil {
		return 0, false, err
	}
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
	s := d.sweeping()
	buckets := d.keys.buckets(bindings)
	more = a.err == nil
	for step := 0; step < sweepSteps && more && err == nil; step++ {
		var n int
		n, more, err = s.sweep(ctx, buckets)
		removed += n
		if s.all {
			buckets = s.busy
		}
	}
	if a.err == nil && err == nil {
		err = s.forget(ctx, bindings)
	}
	return removed, more, errors.Join(a.err, err, d.run(ctx, unlockScript.with([]string{fleet.sweep()}, token)).err)
}

// sweeping is one Sweep.
type sweeping struct {
	*directory
	// memories are the last epochs of buckets of which nothing else is left.
	memories map[bucketKeys]int64
	// all says that the last round came to all buckets, and busy which of them
	// have more to sweep.
	all  bool
	busy []bucketKeys
}

func (d *directory) sweeping() *sweeping {
	return &sweeping{directory: d, memories: map[bucketKeys]int64{}}
}

func (s *sweeping) sweep(ctx context.Context, buckets []bucketKeys) (removed int, more bool, err error) {
	s.all, s.busy = false, nil
	look := int64(sweepRows)
	for done := 0; done < len(buckets); {
		start := int(s.sweeps.at.Load() % uint64(len(buckets)))
		some := buckets[start:min(start+sweepTogether, start+len(buckets)-done, len(buckets))]
		calls := make([]call, len(some))
		for i, b := range some {
			calls[i] = sweepScript.with(
				[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves(), b.none()},
				string(b), max(1, look/int64(len(some))), sweepSessions, entryMemory.Milliseconds(),
			)
		}
		answers := s.runAll(ctx, calls)
		for i, a := range answers {
			removed += int(a.int())
			look -= a.int()
			if a.flag() {
				more, s.busy = true, append(s.busy, some[i])
			}
			if last := a.int(); last >= 0 && a.err == nil {
				s.memories[some[i]] = last
			}
		}
		if err := firstError(answers); err != nil {
			return removed, more, err
		}
		done += len(some)
		s.sweeps.at.Add(uint64(len(some)))
		if look <= 0 && done < len(buckets) {
			return removed, true, nil
		}
	}
	s.all = true
	return removed, more, nil
}

// abandoned is a binding of which no bucket has more than its memory.
type abandoned struct {
	binding string
	epoch   int64 // the highest that was given out
}

// forget forgets the abandoned bindings that no client that is remembered has
// registered. The order matters where the node dies in between, or a worker
// registers: the epochs are remembered, then the buckets are removed, then the
// bindings are taken off the list; and forget.lua spares what a registration has
// begun with.
func (s *sweeping) forget(ctx context.Context, bindings []string) error {
	var all []abandoned
	for _, binding := range bindings {
		if epoch, ok := s.last(binding); ok {
			all = append(all, abandoned{binding: binding, epoch: epoch})
		}
	}
	for some := range slices.Chunk(all, batch) {
		going, err := s.unlist(ctx, some, false)
		if err != nil {
			return err
		}
		if err := s.vacate(ctx, going); err != nil {
			return err
		}
		if len(going) == 0 {
			continue
		}
		if _, err := s.unlist(ctx, going, true); err != nil {
			return err
		}
	}
	return nil
}

// unlist remembers the epochs of those that can go, which it returns, and takes
// them off the list or leaves that for later.
func (s *sweeping) unlist(ctx context.Context, some []abandoned, remove bool) (going []abandoned, err error) {
	fleet := s.keys.fleet()
	args := []any{string(fleet), remove}
	for _, one := range some {
		args = append(args, one.binding, escape(one.binding), one.epoch)
	}
	a := s.run(ctx, forgetScript.with([]string{fleet.namespaces(), fleet.floor()}, args...))
	for a.more() {
		n := a.int()
		if n < 0 || n >= int64(len(some)) {
			a.fail(errForm)
			break
		}
		going = append(going, some[n])
	}
	return going, a.err
}

// vacate removes what is left of their buckets.
func (s *sweeping) vacate(ctx context.Context, going []abandoned) error {
	var calls []call
	for _, one := range going {
		for _, b := range s.keys.buckets([]string{one.binding}) {
			keys := []string{b.meta(), b.sessions(), b.clients(), b.leaves(), b.candidates(), b.generation()}
			calls = append(calls, vacantScript.with(keys, one.epoch))
		}
	}
	for _, some := range inParts(calls) {
		if err := firstError(s.runAll(ctx, some)); err != nil {
			return err
		}
	}
	return nil
}

// last returns the highest epoch of a binding of which nothing else is left.
func (s *sweeping) last(binding string) (epoch int64, abandoned bool) {
	for _, b := range s.keys.buckets([]string{binding}) {
		last, idle := s.memories[b]
		if !idle {
			return 0, false
		}
		epoch = max(epoch, last)
	}
	return epoch, true
}
