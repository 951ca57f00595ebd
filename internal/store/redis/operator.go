package redis

import (
	"context"
	"errors"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// Client returns what is remembered of a client.
func (d *directory) Client(ctx context.Context, clientID string) (store.Client, error) {
	fleet := d.keys.fleet()
	a := d.run(ctx, clientScript.with([]string{fleet.client(clientID)}, string(fleet)))
	if a.err == nil && !a.more() {
		return store.Client{}, store.ErrNoClient
	}
	c := store.Client{ClientID: clientID, SessionID: a.text()}
	_, c.Namespaces = unbind(a.lines())
	c.Drain = a.drain()
	return c, a.err
}

// Drain stops new placements on the client.
func (d *directory) Drain(ctx context.Context, clientID string, deadline *time.Duration) (store.Drain, error) {
	left, err := d.setDrain(ctx, clientID, true, milliseconds(deadline))
	if err != nil {
		return store.Drain{}, err
	}
	return store.Drain{Draining: true, Deadline: left >= 0, Left: max(0, left)}, nil
}

// Undrain takes a drain back. An unknown client has none.
func (d *directory) Undrain(ctx context.Context, clientID string) error {
	_, err := d.setDrain(ctx, clientID, false, -1)
	if errors.Is(err, store.ErrNoClient) {
		return nil
	}
	return err
}

func (d *directory) setDrain(ctx context.Context, clientID string, on bool, deadline int64) (left time.Duration, err error) {
	if err := d.agree(ctx); err != nil {
		return 0, err
	}
	fleet := d.keys.fleet()
	a := d.run(ctx, drainScript.with([]string{fleet.client(clientID)}, string(fleet), on, deadline))
	if a.err == nil && !a.more() {
		return 0, store.ErrNoClient
	}
	left = a.duration()
	if !a.more() {
		return left, a.err
	}
	s := state{sid: a.text(), version: a.int(), takes: a.flag(), bindings: a.lines()}
	if a.err != nil {
		return 0, a.err
	}
	// A session that has ended meanwhile takes no placements either.
	if _, err := d.apply(ctx, s); err != nil && !errors.Is(err, store.ErrNoSession) {
		return 0, err
	}
	return left, nil
}
