package memory

import (
	"context"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// client is what outlives the sessions of a clientId.
type client struct {
	id         string
	session    *session // the live one, or nil
	lineage    *lineage
	namespaces []string // of the last session
	drain      drain
	messages   []message
	forgetAt   time.Time // counts while there is no session
}

// lineage is what the sessions of one clientId and secret have in common: one
// may take over what another one held.
type lineage struct {
	secret wire.Secret
	former []string // ids of earlier sessions, the newest last
}

// maxFormer bounds the former session ids that are remembered of a client. A
// node that follows a session asks for it once a round, so it is never that
// many behind.
const maxFormer = 1000

// succeed makes s the client's session and returns the one before it, or nil.
func (c *client) succeed(s *session) (former *session) {
	former = c.session
	c.session, c.namespaces = s, s.registration.Namespaces
	if len(s.lineage.former) > maxFormer {
		s.lineage.former = slices.Clone(s.lineage.former[maxFormer/2:])
	}
	// Every id is former to those that come after it.
	s.lineage.former = append(s.lineage.former, s.id)
	return former
}

// leaving is a client that has no session.
type leaving struct {
	client *client
	at     time.Time
}

// forget says when to forget a client that has no session any more.
func (d *directory) forget(c *client, at time.Time) {
	c.forgetAt = at
	d.forgetting = append(d.forgetting, leaving{client: c, at: at})
}

func (c *client) forgotten(now time.Time) bool {
	return c.session == nil && !now.Before(c.forgetAt)
}

// client returns what is remembered of a client, or nil.
func (d *directory) client(id string, now time.Time) *client {
	c := d.clients[id]
	if c == nil || c.forgotten(now) {
		return nil
	}
	return c
}

// drain is an operator's drain.
type drain struct {
	on       bool
	deadline bool
	until    time.Time
}

func (d drain) seen(now time.Time) store.Drain {
	seen := store.Drain{Draining: d.on, Deadline: d.deadline}
	if d.deadline {
		seen.Left = max(0, d.until.Sub(now))
	}
	return seen
}

func (n *node) Client(ctx context.Context, clientID string) (store.Client, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.Client{}, err
	}
	defer n.leave()
	c := n.client(clientID, now)
	if c == nil {
		return store.Client{}, store.ErrNoClient
	}
	known := store.Client{ClientID: c.id, Namespaces: slices.Clone(c.namespaces), Drain: c.drain.seen(now)}
	if c.session != nil {
		known.SessionID = c.session.id
	}
	return known, nil
}

func (n *node) Drain(ctx context.Context, clientID string, deadline *time.Duration) (store.Drain, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.Drain{}, err
	}
	defer n.leave()
	c := n.client(clientID, now)
	if c == nil {
		return store.Drain{}, store.ErrNoClient
	}
	next := drain{on: true}
	if deadline != nil {
		next.deadline, next.until = true, now.Add(*deadline)
	}
	c.setDrain(next)
	return next.seen(now), nil
}

func (n *node) Undrain(ctx context.Context, clientID string) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	if c := n.client(clientID, now); c != nil {
		c.setDrain(drain{})
	}
	return nil
}

func (c *client) setDrain(d drain) {
	c.drain = d
	if c.session != nil {
		c.session.refit()
	}
}
