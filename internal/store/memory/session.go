package memory

import (
	"container/list"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// session is one worker session. It is in directory.sessions while it lives;
// later only its rows, which are dead rows then, lead to it.
type session struct {
	id           string
	client       *client
	lineage      *lineage
	registration store.Registration
	registeredAt time.Time
	until        time.Time // end of the lease

	active   bool
	stopped  bool // another process took the advertise URL, or it was displaced
	draining bool // the worker's own flag
	degraded bool
	ended    bool

	reported float64 // headroom in the last beat
	placed   int     // placements since, in all buckets
	members  []*member
	rows     list.List // of *row
}

// takes reports whether placements may go to the session.
func (s *session) takes() bool {
	return s.active && !s.ended && !s.stopped && !s.draining && !s.degraded && !s.client.drain.on
}

// refit brings the candidates of the session's buckets up to date.
func (s *session) refit() {
	for _, m := range s.members {
		m.bucket.fit(m)
	}
}

// stop lets the session take no placements and no heartbeats any more.
func (s *session) stop(now time.Time) {
	s.stopped = true
	s.refit()
	for _, m := range s.members {
		m.bucket.turn(now)
	}
}

func (s *session) left(now time.Time) time.Duration { return s.until.Sub(now) }

func (s *session) record(now time.Time) store.Session {
	return store.Session{
		ID:           s.id,
		ClientID:     s.client.id,
		Secret:       s.lineage.secret,
		Namespaces:   slices.Clone(s.registration.Namespaces),
		AdvertiseURL: s.registration.AdvertiseURL,
		BackendHosts: slices.Clone(s.registration.BackendHosts),
		BackendAddr:  s.registration.BackendAddr,
		Hostname:     s.registration.Hostname,
		Epoch:        s.registration.Epoch,
		Env:          s.registration.Env,
		Envs:         maps.Clone(s.registration.Envs),
		Headroom:     max(0, s.reported-float64(s.placed)),
		Draining:     s.draining,
		Drain:        s.client.drain.seen(now),
		Degraded:     s.degraded,
		Active:       s.active,
		Stopped:      s.stopped,
		RegisteredAt: s.registeredAt,
		TTL:          s.left(now),
	}
}

// renew gives the session a lease of ttl, or leaves it a longer one that
// another node granted.
func (d *directory) renew(s *session, now time.Time, ttl time.Duration) {
	if until := now.Add(ttl); until.After(s.until) {
		s.until = until
	}
	if d.nextLapse.IsZero() || s.until.Before(d.nextLapse) {
		d.nextLapse = s.until
	}
}

// lapse ends the sessions whose lease is over. It looks at all of them, but
// only when the earliest of their leases, as last seen, is over.
func (d *directory) lapse(now time.Time) {
	if d.nextLapse.IsZero() || now.Before(d.nextLapse) {
		return
	}
	d.nextLapse = time.Time{}
	for _, s := range d.sessions {
		if !now.Before(s.until) {
			d.end(s, s.until)
			d.events.append(store.LapsedEvent(&s.registration), now)
		} else if d.nextLapse.IsZero() || s.until.Before(d.nextLapse) {
			d.nextLapse = s.until
		}
	}
}

// end makes the session's rows dead rows, at once and for good.
func (d *directory) end(s *session, when time.Time) {
	s.ended = true
	delete(d.sessions, s.id)
	if url := s.registration.AdvertiseURL; d.urls[url] == s {
		delete(d.urls, url)
	}
	s.refit()
	for _, m := range s.members {
		delete(m.bucket.members, s.id)
		m.bucket.turn(when)
		m.bucket.vacatedAt = when
	}
	if s.client.session == s {
		s.client.session = nil
		d.forget(s.client, when.Add(store.ClientMemory))
	}
	if s.rows.Len() > 0 {
		d.dead = append(d.dead, s)
	}
}

func (n *node) Activate(ctx context.Context, sessionID string) error {
	return n.change(ctx, sessionID, func(s *session) { s.active = true })
}

func (n *node) SetDegraded(ctx context.Context, sessionID string, degraded bool) error {
	return n.change(ctx, sessionID, func(s *session) { s.degraded = degraded })
}

// change does something to a live session that may make it a candidate or not.
func (n *node) change(ctx context.Context, sessionID string, do func(*session)) error {
	if _, err := n.enter(ctx); err != nil {
		return err
	}
	defer n.leave()
	s := n.sessions[sessionID]
	if s == nil {
		return store.ErrNoSession
	}
	do(s)
	s.refit()
	return nil
}

func (n *node) Deregister(ctx context.Context, sessionID string) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	if s := n.sessions[sessionID]; s != nil {
		n.end(s, now)
	}
	return nil
}

func (n *node) Session(ctx context.Context, sessionID string) (store.Session, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.Session{}, err
	}
	defer n.leave()
	s := n.sessions[sessionID]
	if s == nil {
		return store.Session{}, n.gone(sessionID)
	}
	return s.record(now), nil
}

func (n *node) States(ctx context.Context, keys []store.SessionKey) ([]store.SessionState, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer n.leave()
	states := make([]store.SessionState, len(keys))
	for i, key := range keys {
		if s := n.sessions[key.SessionID]; s != nil {
			states[i] = store.SessionState{Alive: true, TTL: s.left(now)}
			continue
		}
		switch c := n.client(key.ClientID, now); {
		case c == nil:
			states[i].Forgotten = true
		case c.session != nil && slices.Contains(c.lineage.former, key.SessionID):
			states[i].Successor = c.session.id
		}
	}
	return states, nil
}

// Live returns the sessions in the order of their ids.
func (n *node) Live(ctx context.Context) ([]store.Session, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return nil, err
	}
	live := make([]store.Session, 0, len(n.sessions))
	for _, s := range n.sessions {
		live = append(live, s.record(now))
	}
	n.leave()
	slices.SortFunc(live, func(a, b store.Session) int { return strings.Compare(a.ID, b.ID) })
	return live, nil
}
