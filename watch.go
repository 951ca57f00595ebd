package pinboard

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// youngFlow is how long a request is open before its session is asked for. Most
	// requests have ended by then, and the cut is within one heartbeat all the same.
	youngFlow = watchEvery / 2
	// sweepEvery is the pause between clean-ups when there is nothing to do;
	// the pause is jittered so that nodes do not queue for the same work.
	sweepEvery = 5 * time.Second
	// sweepPause is the pause between bounded steps of one clean-up.
	sweepPause = 50 * time.Millisecond
)

// watch asks the store, round by round, what became of the sessions that this
// node has requests open to, or has recalled, and cuts those whose session has
// ended: a frozen owner must not keep its clients once the id may live elsewhere
// (protocol §5).
func (l *leases) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.round(ctx)
		}
	}
}

func (l *leases) round(ctx context.Context) {
	watched := l.age()
	if len(watched) == 0 {
		return
	}
	keys := make([]store.SessionKey, len(watched))
	l.mu.Lock()
	for i, s := range watched {
		keys[i] = store.SessionKey{SessionID: s.follow, ClientID: s.ClientID}
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	asked := time.Now()
	states, err := l.store.States(ctx, keys)
	if err != nil {
		// Nothing is known, so nothing is cut: when the store is away, no id
		// can be placed elsewhere either.
		if !errors.Is(err, context.Canceled) {
			l.log.Warn("sessions not checked", zap.Error(err))
		}
		return
	}
	for i, state := range states {
		if state == (store.SessionState{}) {
			if state.Successor, err = l.sameProcess(ctx, watched[i]); err != nil {
				continue // the next round asks again
			}
		}
		l.mu.Lock()
		l.apply(watched[i], state, asked)
		l.mu.Unlock()
	}
}

// sameProcess returns the live session of the ended session's worker, "" if
// there is none. A store that was wiped in between can't know of the one that
// the other is its successor.
func (l *leases) sameProcess(ctx context.Context, s *lease) (sessionID string, err error) {
	client, err := l.store.Client(ctx, s.ClientID)
	if errors.Is(err, store.ErrNoClient) || err == nil && client.SessionID == "" {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	heir, err := l.get(ctx, client.SessionID)
	if errors.Is(err, store.ErrNoSession) || err == nil && !heir.Secret.Equal(s.Secret) {
		return "", nil
	}
	return client.SessionID, err
}

// apply takes in what the store said of a session; the caller holds the lock.
func (l *leases) apply(s *lease, state store.SessionState, asked time.Time) {
	switch {
	case state.Alive:
		if until := asked.Add(state.TTL); until.After(s.until) {
			s.until = until
		}
	case state.Successor != "":
		// The same process under a new session: its clients stay, but no new
		// request may go to the old one.
		s.follow, s.replaced = state.Successor, true
	case state.Forgotten && asked.Before(s.until):
		// The store was wiped. Nothing is placed before a quarantine of one
		// lease has passed, so that the worker has time to come back.
	default:
		l.cut(s)
		if !s.replaced {
			l.log.Info("session ended", zap.String("client", s.ClientID), zap.String("session", s.ID))
		}
	}
}

// age returns the sessions that have requests open for longer than a moment, or
// were recalled since it was last called and have little left of what is known of
// their lease. It drops records that have not been used for a while, but not before the
// lease that is known of them has ended: until then they may be served without the
// store.
func (l *leases) age() []*lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	var watched []*lease
	now := time.Now()
	for id, s := range l.byID {
		due := s.recalled && s.until.Sub(now) < l.little || s.hasFlowSince(now.Add(-youngFlow))
		s.recalled = false
		if due && !s.ended {
			watched = append(watched, s)
			continue
		}
		runs := !s.ended && !s.replaced && s.until.After(now)
		if s.unused++; s.unused > forget && s.flows.count == 0 && !runs {
			delete(l.byID, id)
			s.forgotten = true
		}
	}
	return watched
}

// hasFlowSince reports whether a request has been open since then at the latest;
// the caller holds the lock.
func (s *lease) hasFlowSince(t time.Time) bool {
	for f := range s.flows.all() {
		if !f.opened.After(t) {
			return true
		}
	}
	return false
}

// sweep lets the store clean up behind dead sessions, in bounded steps.
func (p *Pinboard) sweep(ctx context.Context) {
	for {
		pause := sweepEvery/2 + rand.N(sweepEvery)
		if more := p.sweepOnce(ctx); more {
			pause = sweepPause
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (p *Pinboard) sweepOnce(ctx context.Context) (more bool) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	asked := time.Now()
	removed, more, err := p.store.Sweep(ctx)
	if err == nil {
		p.placer.back.heard(asked)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return false
	case err != nil:
		p.log.Warn("clean-up failed", zap.Error(err))
		return false
	case removed > 0:
		p.log.Debug("rows of dead sessions removed", zap.Int("rows", removed))
	}
	return more
}
