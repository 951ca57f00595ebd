package memory

import (
	"container/list"
	"context"
	"strconv"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// row is one placement. It is a dead row once its owner has ended.
type row struct {
	id       string
	bucket   *bucket
	slot     int
	owner    *session
	held     *list.Element // in owner.rows
	epoch    int64
	placedAt time.Time
	why      store.Why
}

// alive reports whether there is a row and its owner lives.
func (r *row) alive() bool { return r != nil && !r.owner.ended }

// refused reports whether the row is the placement that was refused.
func (r *row) refused(by *store.Refused) bool {
	return r.alive() && by != nil && r.owner.id == by.SessionID && r.epoch == by.Epoch
}

// give makes the row another session's, with all else as it was.
func (r *row) give(s *session) {
	r.owner.rows.Remove(r.held)
	r.bucket.count(r.owner, -1)
	r.owner, r.held = s, s.rows.PushBack(r)
	r.bucket.count(s, 1)
}

// count notes that a session has more or fewer rows in the bucket.
func (b *bucket) count(s *session, more int) {
	if m := b.members[s.id]; m != nil {
		m.rows += more
	}
}

// put places the id on a session, whoever had it before.
func (b *bucket) put(id string, s *session, epoch int64, why store.Why, now time.Time) *row {
	r := b.rows[id]
	if r == nil {
		r = &row{id: id, bucket: b, owner: s, held: s.rows.PushBack(nil)}
		r.held.Value = r
		r.slot = b.slots.put(r)
		b.rows[id] = r
		b.count(s, 1)
	} else {
		r.give(s)
	}
	r.epoch, r.why, r.placedAt = epoch, why, now
	return r
}

// drop frees the row's id.
func (b *bucket) drop(r *row) {
	r.owner.rows.Remove(r.held)
	b.count(r.owner, -1)
	b.slots.free(r.slot)
	delete(b.rows, r.id)
}

func (r *row) seen() store.Row {
	hostname, namespace := store.Unbind(r.bucket.binding)
	return store.Row{
		Hostname: hostname, Namespace: namespace, ID: r.id,
		SessionID: r.owner.id, ClientID: r.owner.client.id,
		Epoch: r.epoch, PlacedAt: r.placedAt, Why: r.why,
	}
}

// row returns the row of an id, or nil.
func (n *node) row(binding, id string) *row {
	if b := n.bucket(binding, id); b != nil {
		return b.rows[id]
	}
	return nil
}

// Known knows everything at any time.
func (n *node) Known(_ context.Context, binding, id string) (store.Known, error) {
	now, err := n.enter(context.Background()) // all is at hand
	if err != nil {
		return store.Known{}, err
	}
	defer n.leave()
	known := store.Known{AsOf: now}
	if b := n.bucket(binding, id); b != nil {
		known.Generation = strconv.FormatInt(b.generation, 10)
		if r := b.rows[id]; r != nil {
			known.SessionID, known.Epoch = r.owner.id, r.epoch
		}
	}
	return known, nil
}

func (n *node) Lookup(ctx context.Context, binding, id string) (store.Row, error) {
	if _, err := n.enter(ctx); err != nil {
		return store.Row{}, err
	}
	defer n.leave()
	r := n.row(binding, id)
	if !r.alive() {
		return store.Row{}, store.ErrNotPlaced
	}
	return r.seen(), nil
}

func (n *node) Release(ctx context.Context, releases []wire.Release) (int, error) {
	if _, err := n.enter(ctx); err != nil {
		return 0, err
	}
	defer n.leave()
	freed := 0
	for _, rel := range releases {
		r := n.row(rel.Namespace, rel.ID)
		if r == nil || r.owner.id != rel.SessionID || rel.Epoch != 0 && rel.Epoch != r.epoch {
			continue
		}
		r.bucket.drop(r)
		freed++
	}
	return freed, nil
}
