package pinboard

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

// feed is how far the fleet's events have been read for the hooks about workers.
type feed struct {
	from  int64
	known bool // what from is
}

// wantWorkers reports whether anybody wants to be told of workers.
func (h *hooks) wantWorkers() bool { return h != nil && (h.WorkerJoined != nil || h.WorkerLeft != nil) }

// begin says that from now on workers are told of. It has to run before this node
// records any event, or what led to its start might be missed.
func (h *hooks) begin(ctx context.Context) {
	if !h.wantWorkers() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	events, _, err := h.store.Events(ctx, store.EventQuery{Limit: 1})
	switch {
	case err != nil:
		return // follow tries again
	case len(events) > 0:
		h.feed.from = events[0].ID
	}
	h.feed.known = true
}

// follow reads what happens to the fleet's workers, until ctx ends.
func (h *hooks) follow(ctx context.Context) {
	if !h.wantWorkers() {
		return
	}
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !h.feed.known {
			h.begin(ctx)
			continue
		}
		err := h.more(ctx)
		if ctx.Err() != nil || errors.Is(err, context.Canceled) {
			continue
		}
		if err != nil && !failing { // once an outage; it goes on where it was
			h.log.Warn("events not read for hooks", zap.Error(err))
		}
		failing = err != nil
	}
}

// more tells of the events since the last ones.
func (h *hooks) more(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for {
		events, next, err := h.store.Events(ctx, store.EventQuery{From: h.feed.from, Forward: true, Limit: store.MaxEvents})
		if err != nil {
			return err
		}
		for _, e := range events {
			h.worker(&e)
		}
		if next == h.feed.from || len(events) == 0 {
			return nil
		}
		h.feed.from = next
	}
}

// worker tells of an event, if it is one of those.
func (h *hooks) worker(e *store.Event) {
	hook, call := "", h.WorkerLeft
	w := WorkerEvent{
		Hostname: e.Hostname, Namespaces: e.Namespaces, ClientID: e.ClientID, SessionID: e.SessionID,
		Why: string(e.Kind), At: e.At(),
	}
	switch e.Kind {
	case store.EventRegistered:
		hook, call = "WorkerJoined", h.WorkerJoined
		w.AdvertiseURL = e.Detail
	case store.EventDeregistered, store.EventLapsed:
		hook = "WorkerLeft"
	}
	if hook != "" && call != nil {
		h.tell(hook, func(ctx context.Context) { call(ctx, w) })
	}
}
