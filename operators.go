package pinboard

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
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
		TurnedAway: g.counters.turnedAway(),
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
	client, err := g.touch(ctx, c, body.ClientID)
	if err != nil {
		return err
	}
	d, err := g.store.Drain(ctx, body.ClientID, body.Deadline)
	if err != nil {
		return unknownClient(err)
	}
	if body.Deadline == nil {
		g.takeBack(ctx, client)
	}
	g.log.Info("worker drained", zap.String("client", body.ClientID), zap.Durationp("deadline", body.Deadline))
	g.events.tell(ofOperator(store.EventDrained, &client, body.Deadline))
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
	client, err := g.touch(ctx, c, clientID)
	if err != nil {
		return err
	}
	if err := g.store.Undrain(ctx, clientID); err != nil {
		return unknownClient(err)
	}
	g.takeBack(ctx, client)
	g.log.Info("worker no longer drained", zap.String("client", clientID))
	g.events.tell(ofOperator(store.EventUndrained, &client, nil))
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
		g.pace.takeBack(&s.Session, before.Drain)
	case !errors.Is(err, store.ErrNoSession):
		g.log.Warn("wind-downs not taken back", zap.String("client", before.ClientID), zap.Error(err))
	}
}

// ofOperator is an event of what an operator did to a worker.
func ofOperator(kind store.Kind, client *store.Client, deadline *time.Duration) store.Event {
	return store.Event{
		Kind: kind, Namespaces: client.Namespaces, ClientID: client.ClientID, SessionID: client.SessionID,
		By: byOperator, DeadlineMs: inMs(deadline),
	}
}

// byOperator is store.Event.By of what an operator did.
const byOperator = "operator"

func inMs(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
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
	e := store.Event{
		Kind: store.EventWindDown, Namespaces: []string{body.Namespace}, Hostname: body.Hostname, InstanceID: body.ID,
		By: byOperator, DeadlineMs: inMs(body.Deadline),
	}
	if body.Deadline == nil {
		e.Detail = "revoked"
	}
	g.events.tell(e)
	jsonbody.Write(w, http.StatusOK, struct {
		Queued bool `json:"queued"`
	}{true})
	return nil
}
