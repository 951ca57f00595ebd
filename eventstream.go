package pinboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// maxWatchers bounds how many operators watch events on one node, half of them
	// with one credential.
	maxWatchers = 64
	// eventsEvery is how often a watcher's node looks for new events.
	eventsEvery = time.Second
	// eventsQuiet is after how long without an event a comment is sent, so that
	// proxies in between keep the connection.
	eventsQuiet = 15 * time.Second
	// watchTime bounds a stream: its credential may have been taken back since.
	// Clients connect anew, and go on from the last event.
	watchTime = time.Hour
	// streamed bounds the events that are sent at once.
	streamed = 1000
)

// watchers are the streams of events that are open on this node.
type watchers struct {
	quota  *quota.Quota[credential]
	once   sync.Once
	closed chan struct{}
}

func newWatchers() *watchers {
	return &watchers{quota: quota.New[credential](maxWatchers, maxWatchers/2), closed: make(chan struct{})}
}

// stop ends all streams, and those to come.
func (w *watchers) stop() { w.once.Do(func() { close(w.closed) }) }

// streamEvents sends new events as they come, as server-sent events, from the one
// on that the client saw last.
func (g *registry) streamEvents(w http.ResponseWriter, c *registryCall, f eventFilter) error {
	from, err := eventNumber("Last-Event-ID", c.Header.Get("Last-Event-ID"))
	if err != nil {
		return malformed(err)
	}
	share, err := g.watchers.quota.Take(credentialOf(c.who))
	if err != nil {
		return notNow("too many watch events on this node", 5*time.Second)
	}
	defer g.watchers.quota.Give(share)
	ctx, cancel := context.WithTimeout(c.Context(), watchTime)
	defer cancel()
	if from == 0 {
		if from, err = g.newestEvent(ctx); err != nil {
			return err
		}
	}
	f.from, f.forward, f.limit = from, true, streamed
	s := &eventStream{registry: g, w: w, control: http.NewResponseController(w), filter: f}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if s.send([]byte("retry: 2000\n\n")) == nil && c.Method != http.MethodHead {
		s.follow(ctx)
	}
	return nil
}

// newestEvent returns the number of the newest event, 0 if there is none.
func (g *registry) newestEvent(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	events, _, err := g.store.Events(ctx, store.EventQuery{Limit: 1})
	if err != nil || len(events) == 0 {
		return 0, err
	}
	return events[0].ID, nil
}

// eventStream is one operator that watches.
type eventStream struct {
	*registry
	w       http.ResponseWriter
	control *http.ResponseController
	filter  eventFilter
}

// send writes and flushes; a client that does not read for long is given up.
func (s *eventStream) send(text []byte) error {
	leak.Said(text)
	_ = s.control.SetWriteDeadline(time.Now().Add(s.opts.Limits.WritePause))
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}

// follow sends events until the client leaves, the node shuts down, or ctx ends.
func (s *eventStream) follow(ctx context.Context) {
	tick := time.NewTicker(eventsEvery)
	defer tick.Stop()
	said := time.Now()
	for {
		text, err := s.more(ctx)
		switch {
		case err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled):
			s.log.Warn("events not read", zap.Error(err)) // the next round tries again
		case len(text) == 0 && time.Since(said) >= eventsQuiet:
			text = []byte(":\n\n")
		}
		if len(text) > 0 {
			if s.send(text) != nil {
				return
			}
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-s.watchers.closed:
			return
		case <-tick.C:
		}
	}
}

// more returns the events since the last ones, as they are sent.
func (s *eventStream) more(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	list, next, err := s.collect(ctx, s.filter, maxLooks)
	if err != nil {
		return nil, err
	}
	s.filter.from = next
	var b bytes.Buffer
	for _, v := range list {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		b.WriteString("id: " + strconv.FormatInt(v.Number, 10) + "\ndata: ")
		b.Write(data)
		b.WriteString("\n\n")
	}
	return b.Bytes(), nil
}
