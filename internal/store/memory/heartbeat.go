package memory

import (
	"context"

	"github.com/pinboard-go/pinboard/internal/store"
)

func (n *node) Heartbeat(ctx context.Context, b store.Beat) (store.BeatAnswer, error) {
	now, err := n.enter(ctx)
	if err != nil {
		return store.BeatAnswer{}, err
	}
	defer n.leave()
	s := n.sessions[b.SessionID]
	if s == nil || s.stopped {
		return store.BeatAnswer{}, n.gone(b.SessionID)
	}
	n.renew(s, now, n.cfg.LeaseTTL)
	s.active, s.draining = true, b.Draining
	s.reported, s.placed = b.Headroom, 0
	for _, m := range s.members {
		m.setHeadroom(b.Headroom)
	}
	s.refit()
	s.client.acked(b.Acks)
	return store.BeatAnswer{
		TTL:      s.left(now),
		Drain:    s.client.drain.seen(now),
		Degraded: s.degraded,
		Messages: n.deliver(s, now),
	}, nil
}
