package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// rivals are the sessions of other clients that a registration makes give way
// (protocol §7).
type rivals struct {
	lower    []*session // to be displaced
	otherEnv []*session // to be drained
}

// rivals looks at the live sessions of the registration's bindings, and returns
// an error where one of them goes before. The client may be nil.
func (n *node) rivals(c *client, r store.Registration) (rivals, error) {
	lower, otherEnv := map[*session]bool{}, map[*session]bool{}
	// A client that is drained takes no placements from anybody, whatever its
	// env is, and must be able to come back to its instances.
	competes := c == nil || !c.drain.on
	var refusal error
	for _, ns := range r.Namespaces {
		binding := store.Bind(r.Hostname, ns)
		b := n.buckets[place{binding: binding}]
		if b == nil {
			continue
		}
		for _, m := range b.members {
			s := m.session
			theirs := s.registration
			switch {
			case s.client == c:
			case theirs.Epoch > r.Epoch:
				return rivals{}, store.LowerEpoch(binding, r.Epoch, theirs.Epoch)
			case theirs.Epoch < r.Epoch:
				if n.superseded[s.id] == nil {
					lower[s] = true
				}
			case theirs.EnvOf(ns) == r.EnvOf(ns) || !competes:
			case r.Takeover <= 0:
				refusal = cmp.Or(refusal, store.OtherEnv(binding, r.EnvOf(ns), theirs.EnvOf(ns)))
			case n.superseded[s.id] == nil:
				otherEnv[s] = true
			}
		}
	}
	return rivals{lower: ordered(lower), otherEnv: ordered(otherEnv)}, refusal
}

func ordered(set map[*session]bool) []*session {
	list := make([]*session, 0, len(set))
	for s := range set {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return list
}

func sessionIDs(sessions []*session) (ids []string) {
	for _, s := range sessions {
		ids = append(ids, s.id)
	}
	return ids
}

// makeWay displaces and drains. It returns the sessions whose drain is new.
func (n *node) makeWay(others rivals, r store.Registration, now time.Time) (drained []*session) {
	for _, s := range others.lower {
		s.stop(now)
		n.superseded[s.id] = &store.Superseded{ClientID: r.ClientID, Epoch: r.Epoch}
		n.passing = append(n.passing, passing{session: s.id, at: s.until.Add(store.SupersededMemory)})
	}
	until := now.Add(r.Takeover)
	for _, s := range others.otherEnv {
		if d := s.client.drain; !d.on || !d.deadline || d.until.After(until) {
			s.client.setDrain(drain{on: true, deadline: true, until: until})
			drained = append(drained, s)
		}
	}
	return drained
}

// passing is a displaced session that is remembered until then.
type passing struct {
	session string
	at      time.Time
}

// pass forgets the displaced sessions that are due.
func (d *directory) pass(now time.Time) {
	for len(d.passing) > 0 && !now.Before(d.passing[0].at) {
		delete(d.superseded, d.passing[0].session)
		d.passing = d.passing[1:]
	}
}

// gone says why a session is not there, or not renewed.
func (d *directory) gone(sessionID string) error {
	if by := d.superseded[sessionID]; by != nil {
		return by
	}
	return store.ErrNoSession
}
