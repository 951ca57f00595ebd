package pinboard

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// pageSize and maxPageSize are the default and highest limit of a page.
	pageSize    = 100
	maxPageSize = 1000
	// maxSteps bounds how often one page of placements asks the store, each time
	// for a bounded number of rows: a filter that few rows pass makes short pages,
	// not long walks.
	maxSteps = 16
	// maxMoves bounds the moves that are shown of one id.
	maxMoves = 10
)

// rowView is a placement as operators see it (protocol §4).
type rowView struct {
	Namespace string   `json:"namespace"`
	Hostname  string   `json:"hostname,omitempty"`
	ID        string   `json:"id"`
	ClientID  string   `json:"clientId"`
	SessionID string   `json:"sessionId"`
	Epoch     int64    `json:"epoch"`
	PlacedAt  int64    `json:"placedAt"`
	Why       *whyView `json:"why,omitempty"`
}

// whyView is why an id is where it is.
type whyView struct {
	Cause  store.Cause  `json:"cause"`
	Choice store.Choice `json:"choice,omitempty"`
}

func viewRow(r store.Row) rowView {
	v := rowView{
		Namespace: r.Namespace, Hostname: r.Hostname, ID: r.ID, ClientID: r.ClientID, SessionID: r.SessionID,
		Epoch: r.Epoch, PlacedAt: r.PlacedAt.UnixMilli(),
	}
	if r.Why != (store.Why{}) {
		v.Why = &whyView{r.Why.Cause, r.Why.Choice}
	}
	return v
}

var (
	errUnknownNamespace = refuse(http.StatusNotFound, "unknown namespace")
	errNotPlaced        = refuse(http.StatusNotFound, "the id is not placed")
	errCursor           = malformed(&wire.FieldError{Field: "cursor", Reason: "is not one that this call has returned"})
)

// placements returns a page of rows, with the cursor of the next page if there
// may be one.
func (g *registry) placements(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	q, err := page(c.query)
	if err != nil {
		return malformed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	walk, err := g.walk(ctx, c.who, q)
	if err != nil {
		return err
	}
	rows, next, err := walk.page(ctx, q)
	switch {
	case errors.Is(err, store.ErrBadCursor):
		return errCursor
	case err != nil:
		return err
	}
	list := make([]rowView, len(rows))
	for i, r := range rows {
		list[i] = viewRow(r)
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Placements []rowView `json:"placements"`
		Cursor     string    `json:"cursor,omitempty"`
	}{list, next})
	return nil
}

// walk is a walk over the rows of some bindings, the first of which is walked from
// cursor on.
type walk struct {
	store    store.Store
	bindings []string
	cursor   string
	// many says that the cursor of a page names the binding, too.
	many bool
}

// walk begins or goes on with the walk that a query asks for. Without a namespace
// it goes through all bindings with live workers that the caller may see, for no
// other has placements.
func (g *registry) walk(ctx context.Context, who *passport.Identity, q pageQuery) (*walk, error) {
	wk := &walk{store: g.store, cursor: q.cursor}
	if q.namespace != "" {
		if !who.AllowsNamespace(q.namespace) {
			return nil, errUnknownNamespace
		}
		wk.bindings = []string{store.Bind(q.hostname, q.namespace)}
		return wk, nil
	}
	wk.many = true
	from := ""
	if q.cursor != "" {
		text, err := base64.RawURLEncoding.DecodeString(q.cursor)
		var ok bool
		if from, wk.cursor, ok = strings.Cut(string(text), " "); err != nil || !ok {
			return nil, errCursor
		}
	}
	sessions, err := g.store.Live(ctx)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, s := range sessions {
		if q.filter.ClientID != "" && s.ClientID != q.filter.ClientID || q.hostname != "" && s.Hostname != q.hostname {
			continue
		}
		for _, ns := range visible(who, s.Namespaces) {
			if binding := store.Bind(s.Hostname, ns); binding >= from && !seen[binding] {
				seen[binding] = true
				wk.bindings = append(wk.bindings, binding)
			}
		}
	}
	slices.Sort(wk.bindings)
	if len(wk.bindings) == 0 || wk.bindings[0] != from {
		wk.cursor = "" // the binding that the walk was in has no workers any more
	}
	return wk, nil
}

// page returns at most q.limit rows. It ends early when it has done its part of
// work, and then has a cursor to go on with however few rows were found.
func (wk *walk) page(ctx context.Context, q pageQuery) (rows []store.Row, next string, err error) {
	began := time.Now()
	for step := 0; len(wk.bindings) > 0; step++ {
		if len(rows) >= q.limit || step == maxSteps || step > 0 && time.Since(began) > storeTimeout/2 {
			return rows, wk.at(), nil
		}
		some, cursor, err := wk.store.Rows(ctx, wk.bindings[0], wk.cursor, q.limit-len(rows), q.filter)
		if err != nil {
			return nil, "", err
		}
		rows, wk.cursor = append(rows, some...), cursor
		if cursor == "" {
			wk.bindings = wk.bindings[1:]
		}
	}
	return rows, "", nil
}

// at is the cursor of where the walk has come to.
func (wk *walk) at() string {
	if !wk.many {
		return wk.cursor
	}
	return base64.RawURLEncoding.EncodeToString([]byte(wk.bindings[0] + " " + wk.cursor))
}

// pageQuery is which rows are asked for.
type pageQuery struct {
	hostname, namespace, cursor string
	filter                      store.RowFilter
	limit                       int
}

// page reads which rows are asked for.
func page(query string) (q pageQuery, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, errQuery
	}
	q.cursor = values.Get("cursor")
	q.filter = store.RowFilter{ClientID: values.Get("clientId"), Prefix: values.Get("prefix")}
	var errLimit error
	q.hostname, q.namespace, err = bindingOf(values)
	q.limit, errLimit = limitOf(values)
	return q, cmp.Or(err, errLimit)
}

var errQuery = errors.New("the query is malformed")

// bindingOf reads which binding is asked for; the namespace may be left out.
func bindingOf(values url.Values) (hostname, namespace string, err error) {
	if values.Has("namespace") {
		namespace = values.Get("namespace")
		if err := wire.CheckNamespace(namespace); err != nil {
			return "", "", &wire.FieldError{Field: "namespace", Reason: err.Error()}
		}
	}
	if values.Has("hostname") {
		if hostname, err = wire.ParseHostname(values.Get("hostname")); err != nil {
			return "", "", &wire.FieldError{Field: "hostname", Reason: err.Error()}
		}
	}
	return hostname, namespace, nil
}

func limitOf(values url.Values) (int, error) {
	text := values.Get("limit")
	if text == "" {
		return pageSize, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maxPageSize {
		return 0, &wire.FieldError{Field: "limit", Reason: "must be a number from 1 to " + strconv.Itoa(maxPageSize)}
	}
	return limit, nil
}

// placement shows one id: where it is, why, and its last moves.
func (g *registry) placement(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	values, err := url.ParseQuery(c.query)
	if err != nil {
		return malformed(errQuery)
	}
	hostname, namespace, err := bindingOf(values)
	if err != nil {
		return malformed(err)
	}
	id := values.Get("id")
	if namespace == "" {
		return malformed(&wire.FieldError{Field: "namespace", Reason: "is missing"})
	}
	if err := wire.CheckID(id); err != nil {
		return malformed(&wire.FieldError{Field: "id", Reason: err.Error()})
	}
	if !c.who.AllowsNamespace(namespace) {
		return errNotPlaced
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	binding := store.Bind(hostname, namespace)
	row, err := g.store.Lookup(ctx, binding, id)
	switch {
	case errors.Is(err, store.ErrNotPlaced):
		return errNotPlaced
	case err != nil:
		return err
	}
	moves, _, err := g.collect(ctx, eventFilter{who: c.who, namespace: namespace, id: id, binding: binding, limit: maxMoves}, maxCollect)
	if err != nil {
		return err
	}
	jsonbody.Write(w, http.StatusOK, struct {
		rowView
		AdvertiseURL string      `json:"advertiseUrl,omitempty"`
		Moves        []eventView `json:"moves"`
	}{viewRow(row), g.advertised(ctx, row.SessionID), moves})
	return nil
}

// advertised returns the advertise URL of a session, "" if it has just ended.
func (g *registry) advertised(ctx context.Context, sessionID string) string {
	s, err := g.leases.get(ctx, sessionID)
	if err != nil {
		return ""
	}
	return s.AdvertiseURL
}
