package storetest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var bindingRules = []rule{
	{"a session's record tells what it is bound under", boundRecord},
	{"bindings of one namespace do not meet", bindingsDoNotMeet},
	{"host names and namespaces that look alike do not meet", oddBindings},
	{"control messages belong to their binding", messagesOfABinding},
	{"a bound host name goes before the binding without one", boundGoesBefore},
	{"a host name falls back one lease after its last session, not before", fallsBackAfterLease},
	{"a host name that is deregistered falls back one lease later", fallsBackAfterDeregister},
	{"sweeping does not shorten the time until a host name falls back", sweepKeepsBound},
	{"heartbeats keep a host name bound", heartbeatsKeepBound},
	{"a host name is bound on every shard", boundOnShards},
	{"a client may move to another host name", movesToAnotherHost},
}

const host = "chat.example"

// resolveUnder asks for an id under a host name.
func (d *directory) resolveUnder(t *testing.T, hostname, namespace, id string) store.Result {
	t.Helper()
	req := request(namespace, id)
	req.Hostname = hostname
	return d.ask(t, req)
}

// unless asks for an id of the binding without a host name, but with one that
// goes before.
func (d *directory) unless(t *testing.T, hostname, id string) store.Outcome {
	t.Helper()
	req := request(counters, id)
	req.Unless = hostname
	return d.ask(t, req).Outcome
}

// open ends the quarantine of counters under a host name. Nobody lives there
// afterwards, and the name does not fall back for a twentieth of a lease.
func (d *directory) open(t *testing.T, hostname string) {
	t.Helper()
	session := d.join(t, "opener", under(hostname))
	for shard := range d.cfg.Shards {
		d.Until(t, func() bool {
			return d.resolveUnder(t, hostname, counters, d.idOn(shard, "opener")).Outcome == store.Placed
		})
	}
	require.NoError(t, d.Deregister(t.Context(), session))
}

func boundRecord(t *testing.T, f Fixture) {
	d := empty(f)
	envs := map[string]string{"/others": "green", "/elsewhere": "red"}
	session := d.join(t, "a", serving(counters, "/others"), under(host), ofEpoch(math.MaxInt64), func(r *store.Registration) {
		r.Env, r.Envs = "blue\n", envs
	})
	s := d.session(t, session)
	require.Equal(t, host, s.Hostname)
	require.Equal(t, int64(math.MaxInt64), s.Epoch)
	require.Equal(t, "blue\n", s.Env)
	require.Equal(t, envs, s.Envs)
	require.ElementsMatch(t, []string{counters, "/others"}, s.Namespaces)
	client, err := d.Client(t.Context(), "a")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{counters, "/others"}, client.Namespaces)
}

func bindingsDoNotMeet(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.open(t, host)
	ctx := t.Context()
	plain, bound := d.join(t, "plain"), d.join(t, "bound", under(host))
	here := d.resolve(t, counters, "x")
	require.Equal(t, store.Placed, here.Outcome)
	require.Equal(t, plain, here.SessionID)
	there := d.resolveUnder(t, host, counters, "x")
	require.Equal(t, store.Placed, there.Outcome)
	require.Equal(t, bound, there.SessionID)

	binding := store.Bind(host, counters)
	row := d.lookup(t, binding, "x")
	require.Equal(t, store.Row{
		Hostname: host, Namespace: counters, ID: "x", SessionID: bound, ClientID: "bound", Epoch: there.Epoch,
		PlacedAt: row.PlacedAt, Why: there.Why,
	}, row)
	rows, _, err := d.Rows(ctx, binding, "", 10)
	require.NoError(t, err)
	require.Equal(t, []store.Row{row}, rows)
	require.Len(t, d.walk(t, counters, 10), 1)
	view, err := d.Candidates(ctx, binding, "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, bound, view.Candidates[0].SessionID)
	require.InDelta(t, ample-1, d.session(t, bound).Headroom, 0)

	again, ans := d.register(t, "bound", under(host), listing(counters, "x", "y"))
	require.Empty(t, ans.Duplicates)
	require.Equal(t, there.Epoch, d.lookup(t, binding, "x").Epoch)
	d.free(t, counters, "y")
	require.False(t, d.release(t, counters, "x", store.Result{SessionID: again, Epoch: there.Epoch}))
	require.True(t, d.release(t, binding, "x", store.Result{SessionID: again, Epoch: there.Epoch}))
	d.free(t, binding, "x")
	require.Equal(t, here.Epoch, d.lookup(t, counters, "x").Epoch)

	require.NoError(t, d.Deregister(ctx, again))
	require.Equal(t, store.UnknownNamespace, d.resolveUnder(t, host, counters, "x").Outcome)
	require.Equal(t, store.Owned, d.resolve(t, counters, "x").Outcome)
	require.GreaterOrEqual(t, d.sweep(t), 1, "y")
}

func oddBindings(t *testing.T, f Fixture) {
	d := empty(f)
	// The store takes any name without a slash.
	hosts := []string{"", "a", "a.0", "a{b}", "}{", "fleet", "[::1]", "a%2F", "A"}
	namespaces := []string{"/a", "/{a}", "/a.0", "/2F"}
	sessions := map[string]string{}
	for _, h := range hosts {
		for _, ns := range namespaces {
			binding := store.Bind(h, ns)
			sessions[binding] = d.join(t, "client of "+binding, serving(ns), under(h), listing(ns, "x"))
		}
	}
	for binding, session := range sessions {
		row := d.lookup(t, binding, "x")
		require.Equal(t, session, row.SessionID, binding)
		require.Equal(t, binding, store.Bind(row.Hostname, row.Namespace))
		require.Len(t, d.walk(t, binding, 10), 1)
		d.beat(t, session)
	}
}

func messagesOfABinding(t *testing.T, f Fixture) {
	d := empty(f)
	plain := d.join(t, "plain", listing(counters, "x"))
	bound := d.join(t, "bound", under(host), listing(counters, "x"))
	d.windDown(t, store.Bind(host, counters), "x", time.Hour)
	require.Empty(t, d.beat(t, plain).Messages)
	for range 2 {
		messages := d.beat(t, bound).Messages
		require.Len(t, messages, 1)
		require.Equal(t, counters, messages[0].Namespace)
		require.Equal(t, "x", messages[0].InstanceID)
	}
	bound, _ = d.register(t, "bound", under(host), listing(counters, "x"))
	messages := d.beat(t, bound).Messages
	require.Len(t, messages, 1, "carried over")
	require.Empty(t, d.beat(t, bound, messages[0].ID).Messages)
	require.ErrorIs(t, d.WindDown(t.Context(), store.Bind("other.example", counters), "x", nil), store.ErrNotPlaced)
}

func boundGoesBefore(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	require.Equal(t, store.UnknownNamespace, d.unless(t, host, "x"))
	plain := d.join(t, "plain")
	require.Equal(t, store.Placed, d.unless(t, host, "x"))
	// It goes before as soon as it is registered, active or not.
	d.register(t, "bound", under(host))
	require.Equal(t, store.Elsewhere, d.unless(t, host, "x"), "a row there does not count")
	require.Equal(t, store.Elsewhere, d.unless(t, host, "y"))
	d.free(t, counters, "y")
	require.Equal(t, store.Placed, d.unless(t, "other.example", "y"))
	require.Equal(t, store.Owned, d.unless(t, "", "x"))
	// Another namespace under the host name is not bound by that.
	req := request("/others", "x")
	req.Unless = host
	require.Equal(t, store.UnknownNamespace, d.ask(t, req).Outcome)
	require.NoError(t, d.Deregister(t.Context(), plain))
	require.Equal(t, store.Elsewhere, d.unless(t, host, "x"))
}

// A lease passes from when the last session lapsed, and the answer under the
// name says how much of it is left.
func fallsBackAfterLease(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "plain")
	d.join(t, "other", under("other.example"))
	granted, held := time.Now(), false
	joinThrough(t, d.lapsing, "bound", under(host))
	vacant := request(counters, "x")
	vacant.Hostname = host
	d.Until(t, func() bool {
		req := request(counters, "x")
		req.Unless = host
		res, err := d.lapsing.Resolve(t.Context(), req)
		require.NoError(t, err)
		if res.Outcome != store.Elsewhere {
			require.Equal(t, store.Placed, res.Outcome)
			return true
		}
		res, err = d.lapsing.Resolve(t.Context(), vacant)
		require.NoError(t, err)
		if res.Outcome == store.UnknownNamespace {
			require.LessOrEqual(t, res.Left, f.LeaseTTL)
			held = held || res.Left > 0
		}
		return false
	})
	require.True(t, held)
	require.GreaterOrEqual(t, time.Since(granted), 2*f.LeaseTTL-5*time.Millisecond)
	// The two answers come from two buckets, which heard of the session one after
	// the other.
	d.Until(t, func() bool {
		res, err := d.lapsing.Resolve(t.Context(), vacant)
		require.NoError(t, err)
		require.Equal(t, store.UnknownNamespace, res.Outcome)
		return res.Left == 0
	})
}

func fallsBackAfterDeregister(t *testing.T, f Fixture) {
	d := empty(f)
	first := joinThrough(t, d.lapsing, "first", under(host))
	second := joinThrough(t, d.lapsing, "second", under(host))
	vacant := request(counters, "x")
	vacant.Hostname = host
	left := func() time.Duration {
		t.Helper()
		res, err := d.lapsing.Resolve(t.Context(), vacant)
		require.NoError(t, err)
		require.Equal(t, store.UnknownNamespace, res.Outcome)
		return res.Left
	}
	require.NoError(t, d.Deregister(t.Context(), first))
	res, err := d.lapsing.Resolve(t.Context(), vacant)
	require.NoError(t, err)
	require.NotEqual(t, store.UnknownNamespace, res.Outcome, "the second lives")
	require.NoError(t, d.Deregister(t.Context(), second))
	require.Greater(t, left(), time.Duration(0))
	require.LessOrEqual(t, left(), f.LeaseTTL)
	d.Until(t, func() bool { return left() == 0 })
	// The binding without a host name tells of no lease.
	require.NoError(t, d.Deregister(t.Context(), d.join(t, "plain")))
	res, err = d.lapsing.Resolve(t.Context(), request(counters, "x"))
	require.NoError(t, err)
	require.Equal(t, store.Result{Outcome: store.UnknownNamespace}, res)
}

func sweepKeepsBound(t *testing.T, f Fixture) {
	d := empty(f)
	joinThrough(t, d.lapsing, "bound", under(host))
	d.outlast(t)
	d.sweep(t)
	req := request(counters, "x")
	req.Hostname = host
	res, err := d.lapsing.Resolve(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, store.UnknownNamespace, res.Outcome)
	require.Greater(t, res.Left, time.Duration(0))
}

func heartbeatsKeepBound(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "plain")
	session := joinThrough(t, d.lapsing, "bound", under(host))
	for range 5 {
		d.Advance(t, f.LeaseTTL/2)
		require.Equal(t, store.Elsewhere, d.unless(t, host, "x"))
		_, err := d.lapsing.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
		require.NoError(t, err)
	}
}

func boundOnShards(t *testing.T, f Fixture) {
	const n = 3
	d := emptyShards(f, n)
	d.endQuarantine(t, counters)
	d.open(t, host)
	d.join(t, "plain")
	bound := d.join(t, "bound", under(host))
	for shard := range n {
		id := d.idOn(shard, "x")
		require.Equal(t, store.Elsewhere, d.unless(t, host, id))
		require.Equal(t, bound, d.resolveUnder(t, host, counters, id).SessionID)
	}
	require.InDelta(t, ample-n, d.session(t, bound).Headroom, 0)
}

func movesToAnotherHost(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first, _ := d.register(t, "a", under(host), listing(counters, "x"))
	again := d.join(t, "a", listing(counters, "x"))
	d.ended(t, first)
	d.free(t, store.Bind(host, counters), "x")
	require.Equal(t, again, d.lookup(t, counters, "x").SessionID)
	require.Equal(t, store.UnknownNamespace, d.resolveUnder(t, host, counters, "x").Outcome)
	n, err := d.Release(t.Context(), []wire.Release{{SessionID: again, Namespace: store.Bind(host, counters), ID: "x"}})
	require.NoError(t, err)
	require.Zero(t, n)
}
