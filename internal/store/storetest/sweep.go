package storetest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var sweepRules = []rule{
	{"sweeping removes the rows of dead sessions in bounded steps", sweepBounded},
	{"sweeping touches no live row", sweepSparesTheLiving},
	{"sweeping removes what a re-registration left out", sweepUnlisted},
	{"sweeping removes the rows of lapsed sessions", sweepLapsed},
	{"many nodes may sweep at the same time", sweepTogether},
	{"a swept directory forgets no epoch, quarantine or drain", sweepKeepsMemory},
}

// maxSweep is more than one Sweep may remove.
const maxSweep = 2000

// sweep sweeps until nothing is left, and returns how much there was.
func (d *directory) sweep(t *testing.T) (removed int) {
	t.Helper()
	d.Until(t, func() bool {
		n, more, err := d.Sweep(t.Context())
		require.NoError(t, err)
		require.Less(t, n, maxSweep)
		removed += n
		return n == 0 && !more
	})
	return removed
}

func sweepBounded(t *testing.T, f Fixture) {
	d := emptyShards(f, 2)
	ids := manyIDs(2 * maxSweep)
	session := d.join(t, "a", serving(counters, "/others"), listing(counters, ids...), listing("/others", ids...))
	require.Zero(t, d.sweep(t))
	require.NoError(t, d.Deregister(t.Context(), session))
	removed, more, err := d.Sweep(t.Context())
	require.NoError(t, err)
	require.Positive(t, removed)
	require.Less(t, removed, maxSweep)
	require.True(t, more)
	require.GreaterOrEqual(t, removed+d.sweep(t), 2*len(ids))
	require.Zero(t, d.sweep(t))
	require.Empty(t, d.walk(t, counters, 1000))
}

func sweepSparesTheLiving(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ids := manyIDs(100)
	dead := d.join(t, "a", listing(counters, ids...))
	session := d.join(t, "b", listing(counters, "own"))
	require.NoError(t, d.Deregister(t.Context(), dead))
	placed := map[string]store.Result{}
	for _, id := range ids[:50] {
		placed[id] = d.resolve(t, counters, id)
		require.Equal(t, store.Placed, placed[id].Outcome)
	}
	require.GreaterOrEqual(t, d.sweep(t), 50)
	for _, id := range ids[:50] {
		row := d.lookup(t, counters, id)
		require.Equal(t, session, row.SessionID)
		require.Equal(t, placed[id].Epoch, row.Epoch)
	}
	require.Equal(t, session, d.lookup(t, counters, "own").SessionID)
	require.Len(t, d.walk(t, counters, 1000), 51)

	// What was swept once is swept again after the next owner's end.
	require.NoError(t, d.Deregister(t.Context(), session))
	require.GreaterOrEqual(t, d.sweep(t), 51)
}

func sweepUnlisted(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", serving("/dropped", counters), listing(counters, "x", "y"), listing("/dropped", "x"))
	session := d.join(t, "a", listing(counters, "x"))
	require.GreaterOrEqual(t, d.sweep(t), 2)
	rows := d.walk(t, counters, 10)
	require.Len(t, rows, 1)
	require.Equal(t, "x", rows[0].ID)
	require.Equal(t, session, rows[0].SessionID)
}

func sweepLapsed(t *testing.T, f Fixture) {
	d := empty(f)
	joinThrough(t, d.lapsing, "a", listing(counters, manyIDs(20)...))
	d.outlast(t)
	require.GreaterOrEqual(t, d.sweep(t), 20)
	require.Zero(t, d.sweep(t))
}

func sweepTogether(t *testing.T, f Fixture) {
	const nodes = 6
	d := empty(f)
	ids := manyIDs(3000)
	session := d.join(t, "a", listing(counters, ids...))
	require.NoError(t, d.Deregister(t.Context(), session))
	stays := d.join(t, "b", listing(counters, "x"))
	removed := make([]int, nodes)
	errs := make([]error, nodes)
	var all sync.WaitGroup
	for i := range nodes {
		node := d.node(f.LeaseTTL)
		all.Go(func() { removed[i], _, errs[i] = node.Sweep(t.Context()) })
	}
	all.Wait()
	total := d.sweep(t)
	for i, n := range removed {
		require.NoError(t, errs[i])
		require.Less(t, n, maxSweep)
		total += n
	}
	require.GreaterOrEqual(t, total, len(ids))
	require.Equal(t, stays, d.lookup(t, counters, "x").SessionID)
}

func sweepKeepsMemory(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	placed := d.place(t, counters, "x", session)
	version := d.view(t).Version
	d.drain(t, "a", nil)
	require.NoError(t, d.Deregister(t.Context(), session))
	require.Positive(t, d.sweep(t))
	require.True(t, d.client(t, "a").Drain.Draining)
	require.Equal(t, store.SessionState{}, d.state(t, session, "a"))

	// The row is gone, so that its old owner is not its heir any more.
	next := d.join(t, "a", listing(counters, "x"))
	row := d.lookup(t, counters, "x")
	require.Equal(t, next, row.SessionID)
	require.Greater(t, row.Epoch, placed.Epoch)
	require.NoError(t, d.Undrain(t.Context(), "a"))
	require.NotEqual(t, version, d.view(t).Version)
	require.Greater(t, d.place(t, counters, "y", next).Epoch, row.Epoch)
	require.Equal(t, store.SessionState{Successor: next}, d.state(t, session, "a"))
}
