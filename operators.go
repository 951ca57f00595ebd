package pinboard

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// pageSize and maxPageSize are the default and highest limit of a page of
	// placements.
	pageSize    = 100
	maxPageSize = 1000
)

// visible returns the namespaces that an operator may see, in their order.
func visible(who *passport.Identity, namespaces []string) []string {
	var seen []string
	for _, ns := range namespaces {
		if who.AllowsNamespace(ns) {
			seen = append(seen, ns)
		}
	}
	return seen
}

// workerView is a live worker as operators see it (protocol §4).
type workerView struct {
	ClientID      string   `json:"clientId"`
	SessionID     string   `json:"sessionId"`
	AdvertiseURL  string   `json:"advertiseUrl"`
	Namespaces    []string `json:"namespaces"`
	Headroom      float64  `json:"headroom"`
	Draining      bool     `json:"draining"`
	DrainDeadline *float64 `json:"drainDeadline,omitempty"`
	Degraded      bool     `json:"degraded"`
	ExpiresInMs   int64    `json:"expiresInMs"`
	RegisteredAt  int64    `json:"registeredAt"`
	Epoch         int64    `json:"epoch"`

	Hostname string            `json:"hostname,omitempty"`
	Env      string            `json:"env,omitempty"`
	Envs     map[string]string `json:"envs,omitempty"`
}

// workers lists live workers. One that lost its advertise URL to another
// process, or was displaced, is on its way out and not listed.
func (g *registry) workers(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	sessions, err := g.store.Live(ctx)
	if err != nil {
		return err
	}
	list := []workerView{}
	for _, s := range sessions {
		namespaces := visible(c.who, s.Namespaces)
		if len(namespaces) == 0 || s.Stopped {
			continue
		}
		maps.DeleteFunc(s.Envs, func(ns, _ string) bool { return !slices.Contains(namespaces, ns) })
		list = append(list, workerView{
			ClientID: s.ClientID, SessionID: s.ID, AdvertiseURL: s.AdvertiseURL, Namespaces: namespaces,
			Headroom: s.Headroom, Draining: s.Draining || s.Drain.Draining, DrainDeadline: drainDeadline(s.Drain, 0),
			Degraded: s.Degraded, ExpiresInMs: s.TTL.Milliseconds(), RegisteredAt: s.RegisteredAt.UnixMilli(),
			Epoch: s.Epoch, Hostname: s.Hostname, Env: s.Env, Envs: s.Envs,
		})
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Workers []workerView `json:"workers"`
	}{list})
	return nil
}

// health tells of the fleet's quarantine and of this node's work.
func (g *registry) health(ctx context.Context, w http.ResponseWriter, _ *registryCall) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	left, err := g.store.Quarantine(ctx)
	if err != nil {
		return err
	}
	jsonbody.Write(w, http.StatusOK, struct {
		QuarantineMs int64 `json:"quarantineMs"`
		Resolves     int64 `json:"resolves"`
		CacheHits    int64 `json:"cacheHits"`
		Proxying     int64 `json:"proxying"`
		Retries      int64 `json:"retries"`
		Held         int64 `json:"held"`
		Holds        int64 `json:"holds"`
		HoldsGivenUp int64 `json:"holdsGivenUp"`
		TurnedAway   int64 `json:"turnedAway"`
	}{
		// Rounded up: 0 means that there is none.
		QuarantineMs: (left + time.Millisecond - 1).Milliseconds(),
		Resolves:     g.counters.resolves.Load(), CacheHits: g.counters.cacheHits.Load(),
		Proxying: g.counters.proxying.Load(), Retries: g.counters.retries.Load(),
		Held: g.counters.held.Load(), Holds: g.counters.holds.Load(), HoldsGivenUp: g.counters.holdsGivenUp.Load(),
		TurnedAway: g.counters.turnedAway.Load(),
	})
	return nil
}

// touch returns a client that the operator may change: a 404 where nothing
// of it is visible, a 403 where only a part is.
func (g *registry) touch(ctx context.Context, c *registryCall, clientID string) (store.Client, error) {
	client, err := g.store.Client(ctx, clientID)
	if err != nil {
		return client, unknownClient(err)
	}
	switch len(visible(c.who, client.Namespaces)) {
	case 0:
		return client, unknownClient(store.ErrNoClient)
	case len(client.Namespaces):
		return client, nil
	}
	return client, refuse(http.StatusForbidden, "the worker also serves namespaces outside the credential's claims")
}

func unknownClient(err error) error {
	if errors.Is(err, store.ErrNoClient) {
		return refuse(http.StatusNotFound, "unknown clientId")
	}
	return err
}

// drained answers drain and undrain.
type drained struct {
	Draining      bool     `json:"draining"`
	DrainDeadline *float64 `json:"drainDeadline,omitempty"`
}

// drain stops new placements on a worker process (protocol §4).
func (g *registry) drain(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	body, err := wire.ParseDrain(c.body)
	if err != nil {
		return malformed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	before, err := g.touch(ctx, c, body.ClientID)
	if err != nil {
		return err
	}
	d, err := g.store.Drain(ctx, body.ClientID, body.Deadline)
	if err != nil {
		return unknownClient(err)
	}
	if body.Deadline == nil {
		g.takeBack(ctx, before)
	}
	g.log.Info("worker drained", zap.String("client", body.ClientID), zap.Durationp("deadline", body.Deadline))
	jsonbody.Write(w, http.StatusOK, drained{Draining: true, DrainDeadline: drainDeadline(d, 0)})
	return nil
}

// undrain takes a drain back.
func (g *registry) undrain(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	clientID, err := wire.ParseUndrain(c.body)
	if err != nil {
		return malformed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	before, err := g.touch(ctx, c, clientID)
	if err != nil {
		return err
	}
	if err := g.store.Undrain(ctx, clientID); err != nil {
		return unknownClient(err)
	}
	g.takeBack(ctx, before)
	g.log.Info("worker no longer drained", zap.String("client", clientID))
	jsonbody.Write(w, http.StatusOK, drained{})
	return nil
}

// takeBack takes back what a drain at a rate has asked of instances.
func (g *registry) takeBack(ctx context.Context, before store.Client) {
	if !before.Drain.Deadline || before.SessionID == "" {
		return
	}
	s, err := g.leases.get(ctx, before.SessionID)
	switch {
	case err == nil:
		g.pace.takeBack(ctx, &s.Session, before.Drain)
	case !errors.Is(err, store.ErrNoSession):
		g.log.Warn("wind-downs not taken back", zap.String("client", before.ClientID), zap.Error(err))
	}
}

// windDown asks one instance to close, or takes that back (protocol §4).
func (g *registry) windDown(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	body, err := wire.ParseWindDown(c.body)
	if err != nil {
		return malformed(err)
	}
	notPlaced := refuse(http.StatusNotFound, "the id is not placed")
	if !c.who.AllowsNamespace(body.Namespace) {
		return notPlaced
	}
	if body.Deadline != nil {
		// Less than a lease could be over before the worker hears of it.
		least := max(*body.Deadline, g.opts.LeaseTTL)
		body.Deadline = &least
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = g.store.WindDown(ctx, store.Bind(body.Hostname, body.Namespace), body.ID, body.Deadline)
	switch {
	case errors.Is(err, store.ErrNotPlaced):
		return notPlaced
	case errors.Is(err, store.ErrQueueFull):
		return notNow("too many control messages wait for the worker", time.Second)
	case err != nil:
		return err
	}
	g.log.Info("wind-down queued", zap.String("hostname", body.Hostname), zap.String("namespace", body.Namespace), zap.String("id", body.ID),
		zap.Durationp("deadline", body.Deadline))
	jsonbody.Write(w, http.StatusOK, struct {
		Queued bool `json:"queued"`
	}{true})
	return nil
}

// rowView is a placement as operators see it (protocol §4).
type rowView struct {
	ID       string `json:"id"`
	ClientID string `json:"clientId"`
	Epoch    int64  `json:"epoch"`
	PlacedAt int64  `json:"placedAt"`
}

// placements returns a page of rows, with the cursor of the next page if there
// is one.
func (g *registry) placements(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	q, err := page(c.query)
	if err != nil {
		return malformed(err)
	}
	if !c.who.AllowsNamespace(q.namespace) {
		return refuse(http.StatusNotFound, "unknown namespace")
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, next, err := g.store.Rows(ctx, store.Bind(q.hostname, q.namespace), q.cursor, q.limit)
	switch {
	case errors.Is(err, store.ErrBadCursor):
		return malformed(&wire.FieldError{Field: "cursor", Reason: "is not one that this call has returned"})
	case err != nil:
		return err
	}
	list := make([]rowView, len(rows))
	for i, r := range rows {
		list[i] = rowView{ID: r.ID, ClientID: r.ClientID, Epoch: r.Epoch, PlacedAt: r.PlacedAt.UnixMilli()}
	}
	jsonbody.Write(w, http.StatusOK, struct {
		Placements []rowView `json:"placements"`
		Cursor     string    `json:"cursor,omitempty"`
	}{list, next})
	return nil
}

// pageQuery is which rows are asked for.
type pageQuery struct {
	hostname, namespace, cursor string
	limit                       int
}

// page reads which rows are asked for.
func page(query string) (q pageQuery, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return q, errors.New("the query is malformed")
	}
	q = pageQuery{namespace: values.Get("namespace"), cursor: values.Get("cursor"), limit: pageSize}
	if err := wire.CheckNamespace(q.namespace); err != nil {
		return q, &wire.FieldError{Field: "namespace", Reason: err.Error()}
	}
	if values.Has("hostname") {
		if q.hostname, err = wire.ParseHostname(values.Get("hostname")); err != nil {
			return q, &wire.FieldError{Field: "hostname", Reason: err.Error()}
		}
	}
	if text := values.Get("limit"); text != "" {
		q.limit, err = strconv.Atoi(text)
		if err != nil || q.limit < 1 || q.limit > maxPageSize {
			return q, &wire.FieldError{Field: "limit", Reason: "must be a number from 1 to " + strconv.Itoa(maxPageSize)}
		}
	}
	return q, nil
}
