package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/pinboard-go/pinboard/internal/store"
)

// Record appends events, a few at a time.
func (d *directory) Record(ctx context.Context, events []store.Event) error {
	fleet := d.keys.fleet()
	for some := range slices.Chunk(events, batch) {
		args := []any{string(fleet)}
		for _, e := range some {
			text, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("redis record: %w", err)
			}
			args = append(args, e.Key(), string(text))
		}
		if err := d.run(ctx, recordScript.with([]string{fleet.events()}, args...)).err; err != nil {
			return err
		}
	}
	return nil
}

// Events reads a page of events. An entry that this version can't read, as a later
// one may have written it, is left out.
func (d *directory) Events(ctx context.Context, q store.EventQuery) ([]store.Event, int64, error) {
	key := ""
	if q.ID != "" {
		key = store.InstanceKey(q.Binding, q.ID)
	}
	fleet := d.keys.fleet()
	a := d.run(ctx, eventsScript.with(
		[]string{fleet.events(), fleet.moves()}, q.From, q.Forward, max(1, min(q.Limit, store.MaxEvents)), key,
	))
	next := a.int()
	if q.Forward {
		next = max(next, q.From)
	}
	var events []store.Event
	for a.more() {
		var e store.Event
		id, text := a.int(), a.text()
		if json.Unmarshal([]byte(text), &e) == nil {
			e.ID = id
			events = append(events, e)
		}
	}
	return events, next, a.err
}

// Counts asks each bucket of the sessions.
func (d *directory) Counts(ctx context.Context, sessions []store.Session) ([][]int, error) {
	if err := d.agree(ctx); err != nil {
		return nil, err
	}
	type place struct{ session, namespace int }
	members := map[string][]place{} // by binding
	counts := make([][]int, len(sessions))
	for i, s := range sessions {
		counts[i] = make([]int, len(s.Namespaces))
		for j, binding := range s.Bindings() {
			members[binding] = append(members[binding], place{i, j})
		}
	}
	var calls []call
	var asked [][]place
	for binding, all := range members {
		for some := range slices.Chunk(all, batch) {
			for _, b := range d.keys.buckets([]string{binding}) {
				args := []any{string(b)}
				for _, p := range some {
					args = append(args, sessions[p.session].ID)
				}
				calls, asked = append(calls, countsScript.with([]string{b.sessions(), b.candidates()}, args...)), append(asked, some)
			}
		}
	}
	for _, part := range inParts(calls) {
		answers := d.runAll(ctx, part)
		for n, a := range answers {
			for _, p := range asked[n] {
				counts[p.session][p.namespace] += int(a.int())
			}
		}
		if err := firstError(answers); err != nil {
			return nil, err
		}
		asked = asked[len(part):]
	}
	return counts, nil
}
