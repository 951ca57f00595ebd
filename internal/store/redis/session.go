package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// state is what the fleet decided about a session, on its way to the buckets.
type state struct {
	sid     string
	version int64
	takes   bool // may take placements
	stopped bool
	// bindings are those of the session.
	bindings []string
	// renew is the lease in ms that a heartbeat asks for, with its headroom;
	// 0 for what is no heartbeat.
	renew    int64
	headroom float64
	lives    int64 // what the fleet's record has left in ms, of a heartbeat
}

func (s state) call(b bucketKeys) call {
	args := []any{s.sid, s.version, s.takes, s.stopped}
	if s.renew > 0 {
		args = append(args, s.renew, s.headroom)
	}
	keys := []string{b.meta(), b.sessions(), b.candidates(), b.session(s.sid)}
	if s.stopped {
		keys = append(keys, b.generation())
	}
	return applyScript.with(keys, args...)
}

// apply brings the session's buckets up to the state. It returns what is left
// of the shortest lease, or ErrNoSession if the session is gone from one.
func (d *directory) apply(ctx context.Context, s state) (time.Duration, error) {
	buckets := d.keys.buckets(s.bindings)
	calls := s.calls(buckets)
	states := len(calls)
	if s.renew > 0 {
		calls = append(calls, d.announce(s.bindings, max(s.renew, s.lives))...)
	}
	sent := d.clocks.now()
	answers := d.runAll(ctx, calls)
	shortest := time.Duration(-1)
	for i, a := range answers[:states] {
		left := a.int()
		if a.more() {
			d.clocks.overheard(buckets[i], sent, a.int())
		}
		if a.err == nil && left < 0 {
			return 0, store.ErrNoSession
		}
		if l := time.Duration(left) * time.Millisecond; shortest < 0 || l < shortest {
			shortest = l
		}
	}
	return shortest, firstError(answers)
}

// calls brings the session's buckets up to the state.
func (s state) calls(buckets []bucketKeys) []call {
	calls := make([]call, len(buckets))
	for i, b := range buckets {
		calls[i] = s.call(b)
	}
	return calls
}

// announce tells the buckets without a host name that the namespaces are bound
// under one for so long, in ms, and one lease more; for bindings without a host
// name it is nothing.
func (d *directory) announce(bindings []string, lives int64) []call {
	var calls []call
	for _, binding := range bindings {
		hostname, namespace := store.Unbind(binding)
		if hostname == "" {
			continue
		}
		for _, b := range d.keys.buckets([]string{namespace}) {
			calls = append(calls, hostScript.with([]string{b.hosts()}, hostname, lives+d.lease))
		}
	}
	return calls
}

// Activate lets the session take placements.
func (d *directory) Activate(ctx context.Context, sessionID string) error {
	return d.change(ctx, sessionID, "active", true)
}

// SetDegraded records whether the last probe failed.
func (d *directory) SetDegraded(ctx context.Context, sessionID string, degraded bool) error {
	return d.change(ctx, sessionID, "degraded", degraded)
}

func (d *directory) change(ctx context.Context, sid, flag string, value bool) error {
	if err := d.agree(ctx); err != nil {
		return err
	}
	fleet := d.keys.fleet()
	a := d.run(ctx, changeScript.with([]string{fleet.session(sid)}, string(fleet), flag, value))
	if a.err == nil && !a.more() {
		return store.ErrNoSession
	}
	changed := a.flag()
	s := state{sid: sid, version: a.int(), takes: a.flag(), bindings: a.lines()}
	if a.err != nil {
		return a.err
	}
	// What was so before has been applied before; or the next heartbeat does.
	if !changed && flag == "degraded" {
		return nil
	}
	_, err := d.apply(ctx, s)
	return err
}

// Deregister ends the session in its buckets and last in the fleet, so that one
// that failed halfway can be done again.
func (d *directory) Deregister(ctx context.Context, sessionID string) error {
	if err := d.agree(ctx); err != nil {
		return err
	}
	s, err := d.read(ctx, []string{sessionID})
	if err != nil || s[0] == nil {
		return err
	}
	if err := d.leave(ctx, sessionID, s[0].Bindings()); err != nil {
		return err
	}
	fleet := d.keys.fleet()
	return d.run(ctx, finishScript.with([]string{fleet.session(sessionID), fleet.live()}, string(fleet), sessionID)).err
}

// Session reads one session.
func (d *directory) Session(ctx context.Context, sessionID string) (store.Session, error) {
	sessions, err := d.living(ctx, []string{sessionID})
	if err != nil {
		return store.Session{}, err
	}
	if len(sessions) == 0 {
		return store.Session{}, d.gone(ctx, sessionID)
	}
	return sessions[0], nil
}

// gone says why a session is not there, or not renewed.
func (d *directory) gone(ctx context.Context, sid string) error {
	a := d.run(ctx, supersededScript.with([]string{d.keys.fleet().superseded(sid)}))
	switch {
	case a.err != nil:
		return a.err
	case a.more():
		return readSuperseded(a)
	}
	return store.ErrNoSession
}

// readSuperseded reads who displaced a session.
func readSuperseded(a *answer) error {
	by := &store.Superseded{Epoch: a.int(), ClientID: a.text()}
	if a.err != nil {
		return a.err
	}
	return by
}

// Live returns the sessions in the order of their ids.
func (d *directory) Live(ctx context.Context) ([]store.Session, error) {
	a := d.run(ctx, liveScript.with([]string{d.keys.fleet().live()}))
	var sids []string
	for a.more() {
		sids = append(sids, a.text())
	}
	if a.err != nil {
		return nil, a.err
	}
	slices.Sort(sids)
	return d.living(ctx, sids)
}

// living reads those of the sessions that are live, their headroom less what
// was placed on them since their last beat.
func (d *directory) living(ctx context.Context, sids []string) ([]store.Session, error) {
	all, err := d.read(ctx, sids)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s *store.Session) bool { return s == nil })
	taken, err := d.taken(ctx, all)
	if err != nil {
		return nil, err
	}
	sessions := make([]store.Session, len(all))
	for i, s := range all {
		s.Headroom = max(0, s.Headroom-float64(taken[i]))
		sessions[i] = *s
	}
	return sessions, nil
}

// read reads the fleet's records of sessions; nil for one that is not there.
func (d *directory) read(ctx context.Context, sids []string) ([]*store.Session, error) {
	fleet := d.keys.fleet()
	var calls []call
	for some := range slices.Chunk(sids, batch/5) {
		args := []any{string(fleet)}
		for _, sid := range some {
			args = append(args, sid)
		}
		calls = append(calls, sessionsScript.with([]string{fleet.live(), fleet.none()}, args...))
	}
	sessions := make([]*store.Session, 0, len(sids))
	for _, a := range d.runAll(ctx, calls) {
		for a.more() {
			s, err := readSession(a.list())
			a.fail(err)
			sessions = append(sessions, s)
		}
		if a.err != nil {
			return nil, a.err
		}
	}
	for i, s := range sessions {
		if s != nil {
			s.ID = sids[i]
		}
	}
	return sessions, nil
}

// readSession reads what sessions.lua tells of one.
func readSession(a *answer) (*store.Session, error) {
	if !a.more() {
		return nil, a.err
	}
	s := &store.Session{ClientID: a.text()}
	var r record
	if err := json.Unmarshal([]byte(a.text()), &r); err != nil && a.err == nil {
		// The text holds a secret: nothing of it may get into the error.
		return nil, errors.New("malformed session record")
	}
	s.Secret, s.AdvertiseURL = wire.NewSecret(r.Secret), r.AdvertiseURL
	s.BackendHosts, s.BackendAddr = r.BackendHosts, r.BackendAddr
	s.Epoch, s.Env, s.Envs = r.Epoch, r.Env, r.Envs
	s.Hostname, s.Namespaces = unbind(a.lines())
	s.Headroom = a.float()
	s.Draining, s.Degraded, s.Active, s.Stopped = a.flag(), a.flag(), a.flag(), a.flag()
	s.RegisteredAt, s.TTL, s.Drain = time.UnixMilli(a.int()), a.duration(), a.drain()
	return s, a.err
}

// unbind takes the names of one worker's bindings apart.
func unbind(bindings []string) (hostname string, namespaces []string) {
	for _, binding := range bindings {
		var namespace string
		hostname, namespace = store.Unbind(binding)
		namespaces = append(namespaces, namespace)
	}
	return hostname, namespaces
}

// taken returns how many placements each session got since its last beat, in
// all its buckets together.
func (d *directory) taken(ctx context.Context, sessions []*store.Session) ([]int64, error) {
	members := map[string][]int{} // binding: sessions, by number
	for i, s := range sessions {
		for _, binding := range s.Bindings() {
			members[binding] = append(members[binding], i)
		}
	}
	var calls []call
	var asked [][]int
	for binding, all := range members {
		for some := range slices.Chunk(all, batch) {
			for _, b := range d.keys.buckets([]string{binding}) {
				args := []any{string(b)}
				for _, i := range some {
					args = append(args, sessions[i].ID)
				}
				calls, asked = append(calls, takenScript.with([]string{b.sessions(), b.candidates()}, args...)), append(asked, some)
			}
		}
	}
	taken := make([]int64, len(sessions))
	answers := d.runAll(ctx, calls)
	for n, a := range answers {
		for _, i := range asked[n] {
			taken[i] += a.int()
		}
	}
	return taken, firstError(answers)
}

// States says what became of sessions.
func (d *directory) States(ctx context.Context, keys []store.SessionKey) ([]store.SessionState, error) {
	fleet := d.keys.fleet()
	var calls []call
	for some := range slices.Chunk(keys, batch) {
		args := []any{string(fleet)}
		for _, key := range some {
			args = append(args, key.SessionID, key.ClientID)
		}
		calls = append(calls, statesScript.with([]string{fleet.live(), fleet.none()}, args...))
	}
	states := make([]store.SessionState, 0, len(keys))
	for _, a := range d.runAll(ctx, calls) {
		for a.more() {
			left, successor := a.int(), a.text()
			s := store.SessionState{Successor: successor, Forgotten: left == -2}
			if left >= 0 {
				s = store.SessionState{Alive: true, TTL: time.Duration(left) * time.Millisecond}
			}
			states = append(states, s)
		}
		if a.err != nil {
			return nil, a.err
		}
	}
	if len(states) != len(keys) {
		return nil, fmt.Errorf("redis states: %w", errForm)
	}
	return states, nil
}
