package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func (n *node) CheckRegister(ctx context.Context, r store.Registration) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	_, err = n.examine(r, now)
	return err
}

// examine returns what the registration does to other clients' sessions, or why
// it is refused.
func (n *node) examine(r store.Registration, now time.Time) (rivals, error) {
	c := n.client(r.ClientID, now)
	if err := c.admits(r.Secret); err != nil {
		return rivals{}, err
	}
	return n.rivals(c, r)
}

// admits returns ErrOtherSecret if the client, which may be nil, has a live
// session with another secret.
func (c *client) admits(secret wire.Secret) error {
	if c != nil && c.session != nil && !c.lineage.secret.Equal(secret) {
		return store.ErrOtherSecret
	}
	return nil
}

// Register is one step under the lock, so that a registration is never
// overtaken: the later one replaces the earlier.
func (n *node) Register(ctx context.Context, r store.Registration) (store.Registered, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.Registered{}, err
	}
	defer n.leave()
	others, err := n.examine(r, now)
	if err != nil {
		return store.Registered{}, err
	}
	c := n.client(r.ClientID, now)
	switch {
	case c == nil:
		c = &client{id: r.ClientID, lineage: &lineage{secret: r.Secret}}
		n.clients[c.id] = c
	case !c.lineage.secret.Equal(r.Secret):
		c.lineage = &lineage{secret: r.Secret}
	}
	drained := n.makeWay(others, r, now)
	if other := n.urls[r.AdvertiseURL]; other != nil && other.client != c {
		other.stop(now)
	}
	s := n.admit(c, r, now)
	former := c.succeed(s)
	duplicates, epochs := n.reclaim(s, r.Instances, now)
	if former != nil {
		n.end(former, now)
	}
	return store.Registered{
		TTL: s.left(now), Drain: c.drain.seen(now), Duplicates: duplicates, Epochs: epochs,
		Displaced: sessionIDs(others.lower), Drained: sessionIDs(drained),
	}, nil
}

// admit records the session in the directory and in its buckets.
func (n *node) admit(c *client, r store.Registration, now time.Time) *session {
	s := &session{
		id:           r.SessionID,
		client:       c,
		lineage:      c.lineage,
		registration: kept(r),
		registeredAt: now,
		draining:     r.Draining,
		reported:     r.Headroom,
	}
	n.renew(s, now, n.cfg.LeaseTTL)
	n.sessions[s.id] = s
	n.urls[r.AdvertiseURL] = s
	for i, binding := range r.Bindings() {
		for shard := range n.cfg.Shards {
			at := place{binding: binding, shard: shard}
			plain := n.buckets[place{binding: r.Namespaces[i], shard: shard}]
			if r.Hostname != "" && plain != nil && n.buckets[at].bound(now, n.cfg.LeaseTTL) == 0 {
				plain.turn(now) // it gives way to a host name from now on
			}
			if n.buckets[at] == nil {
				n.buckets[at] = newBucket(binding, n.floor, now)
			}
			s.members = append(s.members, n.buckets[at].admit(s))
		}
	}
	return s
}

// kept is what a session remembers of its registration.
func kept(r store.Registration) store.Registration {
	r.Namespaces, r.BackendHosts = slices.Clone(r.Namespaces), slices.Clone(r.BackendHosts)
	r.Envs, r.Instances = maps.Clone(r.Envs), nil
	return r
}

// reclaim makes the instances the session's own where no other live session
// holds them, and returns those that one does hold, and the epochs of its own
// that registrations gave.
func (n *node) reclaim(s *session, instances map[string][]string, now time.Time) (duplicates []wire.Ref, epochs store.Epochs) {
	for _, ns := range s.registration.Namespaces {
		for _, id := range instances[ns] {
			b := n.bucket(store.Bind(s.registration.Hostname, ns), id)
			ref, r := wire.Ref{Namespace: ns, ID: id}, b.rows[id]
			switch {
			case r == nil || r.owner.lineage != s.lineage && r.owner.ended:
				r = b.put(id, s, b.mint(now), store.Why{Cause: store.Reclaimed}, now)
			case r.owner.lineage == s.lineage:
				r.give(s)
			default:
				duplicates = append(duplicates, ref)
				continue
			}
			if r.why.Cause == store.Reclaimed {
				epochs.Set(ref, r.epoch)
			}
		}
	}
	return duplicates, epochs
}
