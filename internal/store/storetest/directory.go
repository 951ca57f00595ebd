package storetest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// counters is the namespace where a rule needs just one.
	counters = "/counters"
	// ample is the headroom of workers where it does not matter.
	ample = 1000
)

// directory is one directory under test, through handles of several nodes.
// The embedded one is used for everything but granting leases: its quarantines
// are short, and a renewal through it shortens no lease.
type directory struct {
	store.Store
	Fixture
	// lasting grants leases that outlast every rule.
	lasting store.Store
	// lapsing grants leases of Fixture.LeaseTTL, and has quarantines as long.
	lapsing store.Store
	cfg     store.Config
}

// empty opens a directory that has no memory.
func empty(f Fixture) *directory { return emptyShards(f, 1) }

func emptyShards(f Fixture, shards int) *directory {
	d := &directory{Fixture: f, cfg: store.Config{Prefix: "storetest-" + rand.Text(), Shards: shards}}
	d.Store = d.node(f.LeaseTTL / 20)
	d.lasting = d.node(time.Hour)
	d.lapsing = d.node(f.LeaseTTL)
	return d
}

// node opens the directory as a node with that lease time does.
func (d *directory) node(ttl time.Duration) store.Store {
	cfg := d.cfg
	cfg.LeaseTTL = ttl
	return d.Backend.Open(cfg)
}

// ready opens a directory whose buckets of these namespaces are out of
// quarantine, and where no session lives.
func ready(t *testing.T, f Fixture, namespaces ...string) *directory {
	t.Helper()
	d := empty(f)
	d.endQuarantine(t, namespaces...)
	return d
}

// endQuarantine places and gives up an id in each bucket of the namespaces.
func (d *directory) endQuarantine(t *testing.T, namespaces ...string) {
	t.Helper()
	session := d.join(t, "opener", serving(namespaces...))
	for _, ns := range namespaces {
		for shard := range d.cfg.Shards {
			id := d.idOn(shard, "opener")
			d.Until(t, func() bool { return d.resolve(t, ns, id).Outcome == store.Placed })
		}
	}
	require.NoError(t, d.Deregister(t.Context(), session))
}

// idOn returns an id on that shard.
func (d *directory) idOn(shard int, name string) string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("%s-%d", name, i); store.Shard(id, d.cfg.Shards) == shard {
			return id
		}
	}
}

// change is a way in which a registration differs from the usual one.
type change func(*store.Registration)

func serving(namespaces ...string) change {
	return func(r *store.Registration) { r.Namespaces = namespaces }
}

func headroom(h float64) change { return func(r *store.Registration) { r.Headroom = h } }

func at(url string) change { return func(r *store.Registration) { r.AdvertiseURL = url } }

func keyed(secret string) change {
	return func(r *store.Registration) { r.Secret = wire.NewSecret(secret) }
}

func under(hostname string) change { return func(r *store.Registration) { r.Hostname = hostname } }

func ofEpoch(epoch int64) change { return func(r *store.Registration) { r.Epoch = epoch } }

func listing(namespace string, ids ...string) change {
	return func(r *store.Registration) {
		if r.Instances == nil {
			r.Instances = map[string][]string{}
		}
		r.Instances[namespace] = ids
	}
}

// registration describes a new session of the client, which has a secret and
// an advertise URL of its own and serves counters.
func registration(client string, changes ...change) store.Registration {
	r := store.Registration{
		SessionID:    rand.Text(),
		ClientID:     client,
		Secret:       wire.NewSecret("secret of " + client),
		Namespaces:   []string{counters},
		AdvertiseURL: "http://" + client + ".test:8000",
		Headroom:     ample,
	}
	for _, c := range changes {
		c(&r)
	}
	return r
}

// join registers a session, by its lasting lease, and activates it.
func (d *directory) join(t *testing.T, client string, changes ...change) (sessionID string) {
	t.Helper()
	return joinThrough(t, d.lasting, client, changes...)
}

func joinThrough(t *testing.T, s store.Store, client string, changes ...change) (sessionID string) {
	t.Helper()
	r := registration(client, changes...)
	_, err := s.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, s.Activate(t.Context(), r.SessionID))
	return r.SessionID
}

// request asks for an id with no preference.
func request(namespace, id string) store.Request {
	return store.Request{Namespace: namespace, ID: id, View: store.AnyView, BalanceFactor: 2}
}

func (d *directory) resolve(t *testing.T, namespace, id string) store.Result {
	t.Helper()
	return d.ask(t, request(namespace, id))
}

func (d *directory) ask(t *testing.T, req store.Request) store.Result {
	t.Helper()
	res, err := d.Resolve(t.Context(), req)
	require.NoError(t, err)
	return res
}

// place has an id placed on that session.
func (d *directory) place(t *testing.T, namespace, id, sessionID string) store.Result {
	t.Helper()
	req := request(namespace, id)
	req.Preferred, req.BalanceFactor = sessionID, 1e300
	res := d.ask(t, req)
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, sessionID, res.SessionID)
	return res
}

// beat sends a heartbeat that reports ample headroom.
func (d *directory) beat(t *testing.T, sessionID string, acks ...string) store.BeatAnswer {
	t.Helper()
	ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sessionID, Headroom: ample, Acks: acks})
	require.NoError(t, err)
	return ans
}

// ended requires that a session is gone for good.
func (d *directory) ended(t *testing.T, sessionID string) {
	t.Helper()
	ctx := t.Context()
	_, err := d.Session(ctx, sessionID)
	require.ErrorIs(t, err, store.ErrNoSession)
	_, err = d.lasting.Heartbeat(ctx, store.Beat{SessionID: sessionID, Headroom: ample})
	require.ErrorIs(t, err, store.ErrNoSession)
	require.ErrorIs(t, d.Activate(ctx, sessionID), store.ErrNoSession)
	require.ErrorIs(t, d.SetDegraded(ctx, sessionID, false), store.ErrNoSession)
	_, err = d.Session(ctx, sessionID)
	require.ErrorIs(t, err, store.ErrNoSession, "something revived it")
}

// lookup returns the row of an id that is placed.
func (d *directory) lookup(t *testing.T, namespace, id string) store.Row {
	t.Helper()
	row, err := d.Lookup(t.Context(), namespace, id)
	require.NoError(t, err)
	return row
}

// free requires that an id has no row, or a dead one.
func (d *directory) free(t *testing.T, namespace, id string) {
	t.Helper()
	_, err := d.Lookup(t.Context(), namespace, id)
	require.ErrorIs(t, err, store.ErrNotPlaced)
}

// session returns the record of a live session.
func (d *directory) session(t *testing.T, sessionID string) store.Session {
	t.Helper()
	s, err := d.Session(t.Context(), sessionID)
	require.NoError(t, err)
	return s
}

// view returns the candidates of counters in a directory of one shard.
func (d *directory) view(t *testing.T) store.View {
	t.Helper()
	v, err := d.Candidates(t.Context(), counters, "any")
	require.NoError(t, err)
	return v
}

func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
