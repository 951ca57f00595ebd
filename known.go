package pinboard

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// A request to an id that this node has had before costs no trip to the store:
// its owner is recalled. Invariants 1, 2 and 7 hold all the same, and this is why.
//
// Recalled is a route that all of the following say is good, at some time now:
//
//	row      the store's handle has the row (session S, epoch e), and a time
//	         AsOf, at or after which the row was that; now - AsOf is at most a
//	         third of a lease (trust);
//	session  S was live and not stopped, in the row's bucket, at some time after
//	         the bucket had a generation which it has still, or had at AsOf: no
//	         session was ended or stopped there in between;
//	host     likewise, where the request's host name goes before the binding: it
//	         was not bound, and none was bound since;
//	lease    S's lease, as this node knows it, has not ended.
//
// (1) Nothing is placed here. Where any of them fails, the store's one atomic step
// decides, as it does for an id that nobody has had; what is recalled can send a
// request to a worker, but gives nothing to one.
//
// (2) When a row moves, the connection that it was read by is told as soon as the
// store has run the command, and from then on it is not recalled: half a round
// trip. Only on a connection that is silent it is, for a trust at most.
//
// (3) A request that was sent to (S, e) all the same, after the row has moved, is
// not served by S. If the row moved because S gave it up, S refuses the epoch e,
// which it has released, for two leases from then on; but the row was (S, e) at
// AsOf, and nothing is sent later than a lease after it (route.until, by the
// monotonic clock, which goes on while this process is stopped; it is looked at
// last before sending). So one lease is left for the request to arrive in. If it
// moved because the lease of S ended, S itself refuses, as it does without any
// pinboard (invariant 5). If S's process registered anew, it is the owner under its
// new session. If it has restarted, it knows no session S, nor that secret.
//
// What (3) does not cover is a row that a node gave up on behalf of S, because S
// had refused it in-band. A Python worker knows no fence for that: if it recovers, it
// takes the id in again, for a request that was on its way to it. That was so of
// requests between look-up and worker already, and is so of recalled ones for half
// a round trip, or a trust where the connection is silent. The epoch is for that.
//
// (4) A refusal as in (3) is no answer for a client: exchange.lookAgain asks the
// store, and the request goes where the row has moved to. So it does when the
// worker can't be reached. Only if the row has not moved, the refusal counts.
//
// (5) A store that loses what it has acknowledged, in a failover or by a flush,
// tells nodes so or ends their connections. What they recall in spite of that is
// what they would have been told by the store they were connected to, a trust
// earlier, and is bounded by the lease in the same way.
//
// Without the store's telling (store.ErrNotTracked) nothing is recalled, and each
// request asks the store once.

const (
	// trusts is how many times a trust fits in a lease.
	trusts = 3
	// maxUnbound bounds the host names remembered of one bucket. Clients make
	// them up.
	maxUnbound = 1000
)

// recall returns the id's owner without a trip to the store, as a rule. It does so
// only for ids that this node has had before: others have to be placed, most
// likely.
func (p *placer) recall(ctx context.Context, a ask) (route, bool) {
	if a.fresh || a.refused != nil {
		return route{}, false
	}
	had := p.routes.get(a.instance)
	if had == nil {
		return route{}, false
	}
	known, err := p.known(ctx, a.instance)
	now := time.Now()
	if err != nil || known.SessionID == "" || now.Sub(known.AsOf) > p.lease/trusts {
		return route{}, false
	}
	by, unbound := had.by, a.unless()
	if !had.vouches(known, unbound) {
		if by = p.vouched.vouches(p.bucket(a.instance), known, unbound); by == nil {
			return route{}, false
		}
	}
	s, until := p.leases.use(known.SessionID, had.lease)
	if latest := known.AsOf.Add(p.lease); latest.Before(until) {
		until = latest
	}
	if s == nil || !now.Before(until) { // it is asked again before anything is sent
		return route{}, false
	}
	rt := route{lease: s, epoch: known.Epoch, until: until, recalled: true}
	p.routes.renew(a.instance, had, remembered{route: rt, by: by, unbound: unbound})
	return rt, true
}

// livesOn reports whether the instance is known to be placed on the session, and
// that to be live. It may not be known of one that is.
func (p *placer) livesOn(ctx context.Context, i instance, s *lease) bool {
	known, err := p.known(ctx, i)
	return err == nil && known.SessionID == s.ID && time.Since(known.AsOf) <= p.lease/trusts &&
		p.vouched.vouches(p.bucket(i), known, "") != nil && p.leases.left(s) > 0
}

// released has ids looked up anew that were released through this node, which may
// be told of it a moment after the worker has its answer.
func (p *placer) released(releases []wire.Release) {
	for _, r := range releases {
		p.routes.drop(instance{r.Namespace, r.ID})
	}
}

// known reads what the store's handle knows.
func (p *placer) known(ctx context.Context, i instance) (known store.Known, err error) {
	if p.gate.isShut() {
		return store.Known{}, errStoreAway
	}
	if known, err = p.store.Known(store.AtHand, i.namespace, i.id); err == nil {
		return known, nil
	}
	err = p.gate.glance(ctx, func(ctx context.Context) error {
		known, err = p.store.Known(ctx, i.namespace, i.id)
		return err
	})
	return known, err
}

// vouched is what this node was told of buckets by the store's atomic steps, as
// long as their generation is the same. The zero vouched is empty.
type vouched struct {
	mu       sync.Mutex
	byBucket map[bucket]*voucher
}

// voucher is what was told of one bucket after its generation was known.
type voucher struct {
	generation string
	live       map[string]struct{} // sessions
	unbound    map[string]struct{} // host names
	// late: the bucket has got another generation since. What was told stays true of
	// the former one, but a store that has lost the latter might tell of that again.
	late atomic.Bool
}

// vouches reports whether what this node was told when it last went by the route, it
// was told of what is known now.
func (m *remembered) vouches(known store.Known, unbound string) bool {
	return m.by != nil && !m.by.late.Load() && m.by.generation == known.Generation &&
		m.lease.ID == known.SessionID && m.unbound == unbound
}

// at returns what was told of the bucket since it has had the generation. One
// that is late only costs what was told since. The caller holds the lock.
func (v *vouched) at(b bucket, generation string) *voucher {
	known := v.byBucket[b]
	if known != nil && known.generation == generation {
		return known
	}
	if known != nil {
		known.late.Store(true)
	}
	if v.byBucket == nil || len(v.byBucket) >= maxBound {
		v.byBucket = map[bucket]*voucher{}
	}
	known = &voucher{generation: generation, live: map[string]struct{}{}, unbound: map[string]struct{}{}}
	v.byBucket[b] = known
	return known
}

// note takes in the bucket's generation.
func (v *vouched) note(b bucket, generation string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at(b, generation)
}

// generation returns the bucket's, as last noted; "" if there is none.
func (v *vouched) generation(b bucket) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.byBucket[b]; known != nil {
		return known.generation
	}
	return ""
}

// vouch notes that a session was live, and that a host name was not bound unless
// it is "", when the store was asked after it had told the generation.
func (v *vouched) vouch(b bucket, generation, sessionID, unbound string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := v.byBucket[b]
	if known == nil || generation == "" || known.generation != generation {
		return
	}
	known.live[sessionID] = struct{}{}
	if len(known.unbound) >= maxUnbound {
		clear(known.unbound)
	}
	if unbound != "" {
		known.unbound[strings.Clone(unbound)] = struct{}{} // it may be part of a long request target
	}
}

// vouches takes in the bucket's generation, and returns who says that the owner of
// what is known is live, and the host name, if it is not "", not bound; nil if nobody
// does.
func (v *vouched) vouches(b bucket, known store.Known, unbound string) *voucher {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.at(b, known.Generation)
	_, live := now.live[known.SessionID]
	_, free := now.unbound[unbound]
	if known.Generation == "" || !live || unbound != "" && !free {
		return nil
	}
	return now
}
