package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

func (n *node) Resolve(ctx context.Context, req store.Request) (store.Result, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.Result{}, err
	}
	defer n.leave()
	if req.Unless != "" && n.bucket(store.Bind(req.Unless, req.Namespace), req.ID).bound(now, n.cfg.LeaseTTL) > 0 {
		return store.Result{Outcome: store.Elsewhere}, nil
	}
	b := n.bucket(store.Bind(req.Hostname, req.Namespace), req.ID)
	if b == nil {
		return store.Result{Outcome: store.UnknownNamespace}, nil
	}
	r := b.rows[req.ID]
	refused := r.refused(req.Refused)
	if r.alive() && !refused {
		return store.Result{
			Outcome: store.Owned, SessionID: r.owner.id, Epoch: r.epoch,
			Left: r.owner.left(now), Stopped: r.owner.stopped,
		}, nil
	}
	res := n.place(b, req, now)
	if refused && res.Outcome != store.Placed && res.Outcome != store.StaleView {
		b.drop(r)
	}
	return res, nil
}

// place gives the id to a candidate. What forbids it is looked for in the
// order of the protocol's table (§5).
func (n *node) place(b *bucket, req store.Request, now time.Time) store.Result {
	if len(b.members) == 0 {
		res := store.Result{Outcome: store.UnknownNamespace}
		if req.Hostname != "" {
			res.Left = b.bound(now, n.cfg.LeaseTTL)
		}
		return res
	}
	begun := b.openAt.IsZero()
	if left := b.quarantine(now, n.cfg.LeaseTTL); left > 0 {
		return store.Result{Outcome: store.Quarantined, Left: left, Begun: begun}
	}
	candidates := b.candidates
	if req.Refused != nil {
		candidates = slices.DeleteFunc(slices.Clone(candidates), func(c store.Candidate) bool {
			return c.ClientID == req.Refused.ClientID
		})
	}
	if len(candidates) == 0 {
		return store.Result{Outcome: store.NoCandidate}
	}
	if req.View != store.AnyView && req.View != b.version {
		return store.Result{Outcome: store.StaleView}
	}
	_, preferred := store.Preferred(candidates, req.Preferred, req.BalanceFactor)
	chosen := candidates[store.Choose(candidates, req.Preferred, req.BalanceFactor, req.Dice)]
	m := b.members[chosen.SessionID]
	m.session.placed++
	m.setHeadroom(max(0, m.headroom-1))
	choice := store.ByTwoChoices
	if preferred {
		choice = cmp.Or(req.PreferredBy, store.ByAffinity)
	}
	why, former := reason(b.rows[req.ID], choice)
	r := b.put(req.ID, m.session, b.mint(now), why, now)
	return store.Result{
		Outcome: store.Placed, SessionID: m.session.id, Epoch: r.epoch, Left: m.session.left(now), Why: why, Former: former,
	}
}

// reason is why an id, of which a row may be there, is placed, and whose it was.
func reason(r *row, choice store.Choice) (why store.Why, former string) {
	switch {
	case r == nil:
		return store.Why{Cause: store.New, Choice: choice}, ""
	case r.alive():
		return store.Why{Cause: store.AfterRefusal, Choice: choice}, r.owner.id
	}
	return store.Why{Cause: store.Failover, Choice: choice}, r.owner.id
}

func (n *node) Candidates(ctx context.Context, binding, id string) (store.View, error) {
	if _, err := n.enter(ctx); err != nil {
		return store.View{}, err
	}
	defer n.leave()
	b := n.bucket(binding, id)
	if b == nil {
		return store.View{}, nil
	}
	return store.View{Version: b.version, Candidates: slices.Clone(b.candidates)}, nil
}

func (n *node) Quarantine(ctx context.Context) (time.Duration, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer n.leave()
	longest := time.Duration(0)
	for _, b := range n.buckets {
		longest = max(longest, b.openAt.Sub(now))
	}
	return longest, nil
}
