package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var nameRules = []rule{
	{"directories with different prefixes do not meet", prefixesDoNotMeet},
	{"directories with one prefix are one", samePrefixIsOne},
	{"namespaces with odd characters work and do not meet", oddNamespaces},
	{"every valid id works", oddIDs},
	{"ids are spread over shards and found there", shards},
	{"a heartbeat renews a session on all shards", shardsRenewed},
}

func prefixesDoNotMeet(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ctx := t.Context()
	session := d.join(t, "a", listing(counters, "x"))
	placed := d.lookup(t, counters, "x")
	// The last one begins like the first, whatever separates a key's parts.
	for _, prefix := range []string{"other-" + d.cfg.Prefix, d.cfg.Prefix + ":a", d.cfg.Prefix + "/a", d.cfg.Prefix + "a"} {
		other := *d
		other.cfg.Prefix = prefix
		other.Store, other.lasting = other.node(f.LeaseTTL/20), other.node(time.Hour)
		live, err := other.Live(ctx)
		require.NoError(t, err)
		require.Empty(t, live)
		require.Equal(t, store.UnknownNamespace, other.resolve(t, counters, "x").Outcome)
		other.free(t, counters, "x")
		require.ErrorIs(t, other.SetDegraded(ctx, session, true), store.ErrNoSession)
		require.NoError(t, other.Deregister(ctx, session))
		_, err = other.Drain(ctx, "a", nil)
		require.ErrorIs(t, err, store.ErrNoClient)
		require.True(t, other.state(t, session, "a").Forgotten)

		// The same client, URL and id, with another secret.
		twin := other.join(t, "a", keyed("another"), listing(counters, "x"))
		other.drain(t, "a", nil)
		require.Equal(t, twin, other.lookup(t, counters, "x").SessionID)
		require.Len(t, other.walk(t, counters, 10), 1)
		require.Equal(t, store.Quarantined, other.resolve(t, counters, "y").Outcome)
		require.NoError(t, other.Deregister(ctx, twin))
		require.GreaterOrEqual(t, other.sweep(t), 1)
	}
	d.sweep(t)
	require.Equal(t, placed, d.lookup(t, counters, "x"))
	require.Zero(t, d.beat(t, session).Drain)
	require.False(t, d.session(t, session).Stopped)
	d.place(t, counters, "y", session)
}

func samePrefixIsOne(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	placed := d.place(t, counters, "x", session)
	row, err := d.node(f.LeaseTTL).Lookup(t.Context(), counters, "x")
	require.NoError(t, err)
	require.Equal(t, placed.Epoch, row.Epoch)
}

// oddNamespaces goes through a life with namespaces that a hash tag or a pattern
// would be cut short by (C40).
func oddNamespaces(t *testing.T, f Fixture) {
	namespaces := []string{
		"/a{b}c", "/a}b", "/{}", "/{", "/}{", "/ü", "/a:b*", "/a:b", "/a", "/a:0", "/[a]?", `/a\b`, `/"a"`, "/%d", "/a|b,c;d",
		"/" + strings.Repeat("n", wire.MaxNamespaceBytes-1),
	}
	for _, ns := range namespaces {
		require.NoError(t, wire.CheckNamespace(ns), ns)
	}
	d := ready(t, f, namespaces...)
	session := d.join(t, "a", serving(namespaces...))
	placed := map[string]store.Result{}
	for _, ns := range namespaces {
		placed[ns] = d.place(t, ns, "x", session)
	}
	require.ElementsMatch(t, namespaces, d.session(t, session).Namespaces)
	again := d.join(t, "a", serving(namespaces...), func(r *store.Registration) {
		for _, ns := range namespaces {
			listing(ns, "x")(r)
		}
	})
	for _, ns := range namespaces {
		rows := d.walk(t, ns, 10)
		require.Len(t, rows, 1, ns)
		require.Equal(t, ns, rows[0].Namespace)
		require.Equal(t, placed[ns].Epoch, rows[0].Epoch)
		require.Equal(t, again, rows[0].SessionID)
		d.windDown(t, ns, "x", time.Hour)
	}
	messages := d.beat(t, again).Messages
	for i, ns := range namespaces {
		require.Equal(t, ns, messages[i].Namespace)
		require.True(t, d.release(t, ns, "x", store.Result{SessionID: again, Epoch: placed[ns].Epoch}))
		d.free(t, ns, "x")
	}
	require.NoError(t, d.Deregister(t.Context(), again))
	for _, ns := range namespaces {
		require.Equal(t, store.UnknownNamespace, d.resolve(t, ns, "x").Outcome)
	}
}

func oddIDs(t *testing.T, f Fixture) {
	ids := []string{"~", "-", "_", "...", "a.b", "0", "00", "-1", "1e3", "nil", "null", "X", "x", strings.Repeat("i", wire.MaxIDBytes)}
	d := ready(t, f, counters)
	session := d.join(t, "a")
	placed := map[string]store.Result{}
	for _, id := range ids {
		require.NoError(t, wire.CheckID(id))
		placed[id] = d.place(t, counters, id, session)
	}
	session = d.join(t, "a", listing(counters, ids...))
	require.Len(t, d.walk(t, counters, 5), len(ids))
	for _, id := range ids {
		row := d.lookup(t, counters, id)
		require.Equal(t, id, row.ID)
		require.Equal(t, placed[id].Epoch, row.Epoch)
		require.True(t, d.release(t, counters, id, store.Result{SessionID: session, Epoch: row.Epoch}))
	}
	require.Empty(t, d.walk(t, counters, 5))
}

func shards(t *testing.T, f Fixture) {
	const n = 4
	d := emptyShards(f, n)
	d.endQuarantine(t, counters)
	ids := manyIDs(200)
	session := d.join(t, "a", headroom(500))
	used := map[int]bool{}
	for _, id := range ids {
		d.place(t, counters, id, session)
		used[store.Shard(id, n)] = true
	}
	require.Len(t, used, n)
	require.InDelta(t, 300, d.session(t, session).Headroom, 1e-9)
	require.Len(t, d.walk(t, counters, 30), len(ids))

	again, ans := d.register(t, "a", listing(counters, ids[:150]...))
	require.Empty(t, ans.Duplicates)
	for i, id := range ids {
		if i < 150 {
			require.Equal(t, again, d.lookup(t, counters, id).SessionID)
		} else {
			d.free(t, counters, id)
		}
	}
	for shard := range n {
		id := d.idOn(shard, "inactive")
		require.Equal(t, store.NoCandidate, d.resolve(t, counters, id).Outcome)
	}
	require.NoError(t, d.Activate(t.Context(), again))
	for shard := range n {
		require.Equal(t, store.Placed, d.resolve(t, counters, d.idOn(shard, "active")).Outcome)
	}
	require.NoError(t, d.Deregister(t.Context(), again))
	require.Empty(t, d.walk(t, counters, 30))
	for _, id := range ids {
		require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, id).Outcome)
	}
	require.GreaterOrEqual(t, d.sweep(t), len(ids))
}

func shardsRenewed(t *testing.T, f Fixture) {
	const n = 4
	d := emptyShards(f, n)
	d.endQuarantine(t, counters, "/others")
	session := joinThrough(t, d.lapsing, "a", serving(counters, "/others"))
	for range 6 {
		d.Advance(t, f.LeaseTTL/5)
		_, err := d.lapsing.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
		require.NoError(t, err)
	}
	for _, ns := range []string{counters, "/others"} {
		for shard := range n {
			d.place(t, ns, d.idOn(shard, "x"), session)
		}
	}
	d.outlast(t)
	for shard := range n {
		require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, d.idOn(shard, "x")).Outcome)
	}
}
