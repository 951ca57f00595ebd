package memory

import (
	"context"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func (n *node) CheckRegister(ctx context.Context, clientID string, secret wire.Secret) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	return n.client(clientID, now).admits(secret)
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
	c := n.client(r.ClientID, now)
	if err := c.admits(r.Secret); err != nil {
		return store.Registered{}, err
	}
	switch {
	case c == nil:
		c = &client{id: r.ClientID, lineage: &lineage{secret: r.Secret}}
		n.clients[c.id] = c
	case !c.lineage.secret.Equal(r.Secret):
		c.lineage = &lineage{secret: r.Secret}
	}
	if other := n.urls[r.AdvertiseURL]; other != nil && other.client != c {
		other.stopped = true
		other.refit()
	}
	s := n.admit(c, r, now)
	former := c.succeed(s)
	duplicates := n.reclaim(s, r.Instances, now)
	if former != nil {
		n.end(former, now)
	}
	return store.Registered{TTL: s.left(now), Drain: c.drain.seen(now), Duplicates: duplicates}, nil
}

// admit records the session in the directory and in its buckets.
func (n *node) admit(c *client, r store.Registration, now time.Time) *session {
	s := &session{
		id:           r.SessionID,
		client:       c,
		lineage:      c.lineage,
		namespaces:   slices.Clone(r.Namespaces),
		url:          r.AdvertiseURL,
		backendHosts: slices.Clone(r.BackendHosts),
		backendAddr:  r.BackendAddr,
		registeredAt: now,
		draining:     r.Draining,
		reported:     r.Headroom,
	}
	n.renew(s, now, n.cfg.LeaseTTL)
	n.sessions[s.id] = s
	n.urls[s.url] = s
	for _, ns := range s.namespaces {
		for shard := range n.cfg.Shards {
			at := place{namespace: ns, shard: shard}
			if n.buckets[at] == nil {
				n.buckets[at] = newBucket(ns)
			}
			s.members = append(s.members, n.buckets[at].admit(s))
		}
	}
	return s
}

// reclaim makes the instances the session's own where no other live session
// holds them, and returns those that one does hold.
func (n *node) reclaim(s *session, instances map[string][]string, now time.Time) (duplicates []wire.Ref) {
	for _, ns := range s.namespaces {
		for _, id := range instances[ns] {
			b := n.bucket(ns, id)
			r := b.rows[id]
			switch {
			case r == nil || r.owner.lineage != s.lineage && r.owner.ended:
				b.put(id, s, b.mint(now), now)
			case r.owner.lineage == s.lineage:
				r.give(s)
			default:
				duplicates = append(duplicates, wire.Ref{Namespace: ns, ID: id})
			}
		}
	}
	return duplicates
}
