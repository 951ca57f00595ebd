package pinboard

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// maxLooks bounds how often a page of events asks the store, and
	maxLooks = 8
	// maxCollect is for as many events as there are of ids.
	maxCollect = 2 + store.KeptEvents/store.MaxEvents
)

// eventView is an event as operators see it.
type eventView struct {
	Number int64 `json:"event"`
	At     int64 `json:"at"`
	store.Event
}

// eventFilter is which events are asked for; its zero fields pass all.
type eventFilter struct {
	who                     *passport.Identity
	namespace, hostname, id string
	binding                 string // with id
	clientID                string
	kind                    store.Kind
	// from is where to go on from, below it or, if forward, above it.
	from    int64
	forward bool
	limit   int
}

// view returns what the filter shows of an event, if it shows it.
func (f *eventFilter) view(e store.Event) (v eventView, ok bool) {
	e.Namespaces = visible(f.who, e.Namespaces)
	switch {
	case len(e.Namespaces) == 0,
		f.namespace != "" && !slices.Contains(e.Namespaces, f.namespace),
		f.hostname != "" && e.Hostname != f.hostname,
		f.clientID != "" && f.clientID != e.ClientID && f.clientID != e.FromClientID,
		f.kind != "" && e.Kind != f.kind:
		return eventView{}, false
	}
	return eventView{Number: e.ID, At: e.At().UnixMilli(), Event: e}, true
}

// collect returns at most f.limit events, after looking at a bounded number, and
// where to go on from: 0 at the end, or where it began if there is nothing newer.
func (g *registry) collect(ctx context.Context, f eventFilter, looks int) (list []eventView, next int64, err error) {
	list, next = []eventView{}, f.from
	for range looks {
		q := store.EventQuery{From: next, Forward: f.forward, Limit: store.MaxEvents, Binding: f.binding, ID: f.id}
		events, to, err := g.store.Events(ctx, q)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range events {
			v, ok := f.view(e)
			if !ok {
				continue
			}
			if len(list) == f.limit {
				return list, list[f.limit-1].Number, nil
			}
			list = append(list, v)
		}
		end := to == 0 || f.forward && to == next
		if next = to; end {
			break
		}
	}
	return list, next, nil
}

// listEvents shows a page of events, the newest first, or streams new ones.
func (g *registry) listEvents(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	values, err := url.ParseQuery(c.query)
	if err != nil {
		return malformed(errQuery)
	}
	f, err := readFilter(values)
	if err != nil {
		return malformed(err)
	}
	f.who = c.who
	if f.namespace != "" && !c.who.AllowsNamespace(f.namespace) {
		return errUnknownNamespace
	}
	if wantsStream(c.Request) {
		return g.streamEvents(w, c, f)
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	list, next, err := g.collect(ctx, f, maxLooks)
	if err != nil {
		return err
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Events []eventView `json:"events"`
		Before int64       `json:"before,omitempty"`
	}{list, next})
	return nil
}

func wantsStream(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Accept"), func(v string) bool {
		return strings.Contains(strings.ToLower(v), "text/event-stream")
	})
}

// readFilter reads which events are asked for.
func readFilter(values url.Values) (f eventFilter, err error) {
	f.hostname, f.namespace, err = bindingOf(values)
	limit, errLimit := limitOf(values)
	f.limit, f.clientID, f.kind, f.id = limit, values.Get("clientId"), store.Kind(values.Get("kind")), values.Get("id")
	if values.Has("id") {
		if f.namespace == "" {
			return f, &wire.FieldError{Field: "namespace", Reason: "is missing, which an id needs"}
		}
		if err := wire.CheckID(f.id); err != nil {
			return f, &wire.FieldError{Field: "id", Reason: err.Error()}
		}
		f.binding = store.Bind(f.hostname, f.namespace)
	}
	before, errBefore := eventNumber("before", values.Get("before"))
	f.from = before
	return f, cmp.Or(err, errLimit, errBefore)
}

// eventNumber reads the number of an event, 0 for none.
func eventNumber(field, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > 1<<53 {
		return 0, &wire.FieldError{Field: field, Reason: "must be the number of an event"}
	}
	return n, nil
}
