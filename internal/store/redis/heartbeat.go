package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// waiting is a control message as beat.lua tells it.
type waiting struct {
	place string // see placeOf
	epoch int64
	store.Message
}

// Heartbeat renews the session in the fleet and then in its buckets.
func (d *directory) Heartbeat(ctx context.Context, b store.Beat) (store.BeatAnswer, error) {
	fleet := d.keys.fleet()
	args := []any{string(fleet), b.SessionID, d.lease, memory, b.Headroom, b.Draining, d.layout}
	for _, ack := range b.Acks {
		args = append(args, ack)
	}
	a := d.run(ctx, beatScript.with([]string{fleet.session(b.SessionID), fleet.live(), fleet.layout()}, args...))
	if a.err == nil && !a.more() {
		return store.BeatAnswer{}, store.ErrNoSession
	}
	lives := a.int()
	if a.err == nil && lives < 0 {
		return store.BeatAnswer{}, d.supersede(ctx, b.SessionID, a)
	}
	ans := store.BeatAnswer{TTL: time.Duration(lives) * time.Millisecond}
	s := state{
		sid: b.SessionID, version: a.int(), takes: a.flag(), renew: d.lease, headroom: b.Headroom, lives: lives,
	}
	clientID := a.text()
	s.bindings = a.lines()
	ans.Degraded, ans.Drain = a.flag(), a.drain()
	var messages []waiting
	for a.more() {
		messages = append(messages, readMessage(a))
	}
	if a.err != nil {
		return store.BeatAnswer{}, a.err
	}
	left, err := d.apply(ctx, s)
	if errors.Is(err, store.ErrNoSession) {
		err = d.gone(ctx, b.SessionID)
	}
	if err != nil {
		return store.BeatAnswer{}, err
	}
	if left >= 0 {
		ans.TTL = min(ans.TTL, left)
	}
	ans.Messages, err = d.deliver(ctx, b.SessionID, clientID, messages)
	return ans, err
}

// supersede returns who displaced the session. The node that registered the
// other may have died before it told the buckets: that is made up for.
func (d *directory) supersede(ctx context.Context, sid string, a *answer) error {
	by := readSuperseded(a)
	s := state{sid: sid, version: a.int(), stopped: true, bindings: a.lines()}
	if a.err != nil {
		return a.err
	}
	if _, err := d.apply(ctx, s); err != nil && !errors.Is(err, store.ErrNoSession) {
		return err
	}
	return by
}

// placeOf names the row that a message is about. No binding has a space.
func placeOf(binding, id string) string { return binding + " " + id }

func readMessage(a *answer) waiting {
	m := waiting{place: a.text()}
	m.ID, m.epoch = a.text(), a.int()
	var binding string
	binding, m.InstanceID, _ = strings.Cut(m.place, " ")
	_, m.Namespace = store.Unbind(binding)
	if m.Left = a.duration(); m.Left < 0 {
		m.Revoke, m.Left = true, 0
	}
	return m
}

// deliver returns the messages whose rows are still those that they were queued
// for, in the order in which they were queued, and drops the others. A message
// whose row has passed to a session that replaces this one waits for that one.
func (d *directory) deliver(ctx context.Context, sid, clientID string, messages []waiting) ([]store.Message, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	// The numbers are of one length for the next 250 years.
	slices.SortFunc(messages, func(a, b waiting) int { return cmp.Compare(a.ID, b.ID) })
	refs := make([]wire.Ref, len(messages))
	for i, m := range messages {
		binding, id, _ := strings.Cut(m.place, " ")
		refs[i] = wire.Ref{Namespace: binding, ID: id}
	}
	rows, err := d.lookupAll(ctx, refs)
	if err != nil {
		return nil, err
	}
	var stay []store.Message
	var gone []any
	for i, m := range messages {
		switch {
		case rows[i].epoch != m.epoch:
			gone = append(gone, m.place, m.ID)
		case rows[i].sid == sid:
			stay = append(stay, m.Message)
		}
	}
	if len(gone) == 0 {
		return stay, nil
	}
	return stay, d.run(ctx, dropScript.with([]string{d.keys.fleet().messages(clientID)}, gone...)).err
}

// WindDown queues a message for the live owner of the id.
func (d *directory) WindDown(ctx context.Context, binding, id string, deadline *time.Duration) error {
	if err := d.agree(ctx); err != nil {
		return err
	}
	rows, err := d.lookupAll(ctx, []wire.Ref{{Namespace: binding, ID: id}})
	switch {
	case err != nil:
		return err
	case rows[0].sid == "":
		return store.ErrNotPlaced
	}
	fleet, client := d.keys.fleet(), rows[0].clientID
	a := d.run(ctx, pushScript.with(
		[]string{fleet.client(client), fleet.messages(client)},
		placeOf(binding, id), rows[0].epoch, milliseconds(deadline), store.MaxMessages,
	))
	switch a.int() {
	case 0:
		if a.err == nil {
			return store.ErrQueueFull
		}
	case -1:
		return store.ErrNotPlaced
	}
	return a.err
}

// milliseconds is an optional deadline as scripts want it: whole milliseconds,
// none lost, or -1.
func milliseconds(deadline *time.Duration) int64 {
	if deadline == nil {
		return -1
	}
	return int64(max(0, *deadline+time.Millisecond-1) / time.Millisecond)
}
