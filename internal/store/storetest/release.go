package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var releaseRules = []rule{
	{"a session releases its rows, with or without the epoch", releaseFrees},
	{"a release that does not match frees nothing and is not counted", releaseOfOthers},
	{"a release may be repeated", releaseRepeats},
	{"a late release does not touch the session that took the row over", releaseAfterReclaim},
	{"many rows are released in one call", releaseMany},
}

// release gives up a placement, and reports whether it was counted.
func (d *directory) release(t *testing.T, namespace, id string, placed store.Result) bool {
	t.Helper()
	n, err := d.Release(t.Context(), []wire.Release{{
		SessionID: placed.SessionID, Namespace: namespace, ID: id, Epoch: placed.Epoch,
	}})
	require.NoError(t, err)
	return n == 1
}

func releaseFrees(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	x := d.place(t, counters, "x", session)
	d.place(t, counters, "y", session)
	n, err := d.Release(t.Context(), []wire.Release{
		{SessionID: session, Namespace: counters, ID: "x", Epoch: x.Epoch},
		{SessionID: session, Namespace: counters, ID: "y"},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	d.free(t, counters, "x")
	d.free(t, counters, "y")
}

func releaseOfOthers(t *testing.T, f Fixture) {
	d := ready(t, f, counters, "/others")
	first := d.join(t, "a", serving(counters, "/others"))
	second := d.join(t, "b")
	x := d.place(t, counters, "x", first)
	n, err := d.Release(t.Context(), []wire.Release{
		{SessionID: second, Namespace: counters, ID: "x"},
		{SessionID: second, Namespace: counters, ID: "x", Epoch: x.Epoch},
		{SessionID: first, Namespace: counters, ID: "x", Epoch: x.Epoch - 1},
		{SessionID: first, Namespace: counters, ID: "x", Epoch: x.Epoch + 1},
		{SessionID: first, Namespace: counters, ID: "x", Epoch: -1},
		{SessionID: first, Namespace: "/others", ID: "x", Epoch: x.Epoch},
		{SessionID: first, Namespace: "/never-served", ID: "x"},
		{SessionID: first, Namespace: "not a namespace", ID: "not/an/id"},
		{SessionID: first, Namespace: counters, ID: "y"},
		{SessionID: "", Namespace: counters, ID: "x"},
		{},
	})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, x.Epoch, d.lookup(t, counters, "x").Epoch)
	n, err = d.Release(t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n)
}

func releaseRepeats(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	x := d.place(t, counters, "x", session)
	twice := wire.Release{SessionID: session, Namespace: counters, ID: "x", Epoch: x.Epoch}
	n, err := d.Release(t.Context(), []wire.Release{twice, twice})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.False(t, d.release(t, counters, "x", x))

	// The same session has it again: the epoch tells the placements apart.
	again := d.place(t, counters, "x", session)
	require.False(t, d.release(t, counters, "x", x))
	require.Equal(t, again.Epoch, d.lookup(t, counters, "x").Epoch)
}

func releaseAfterReclaim(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	former := d.join(t, "a")
	x := d.place(t, counters, "x", former)
	session := d.join(t, "a", listing(counters, "x"))
	require.False(t, d.release(t, counters, "x", x))
	require.False(t, d.release(t, counters, "x", store.Result{SessionID: former}))
	require.Equal(t, session, d.lookup(t, counters, "x").SessionID)
	require.True(t, d.release(t, counters, "x", store.Result{SessionID: session, Epoch: x.Epoch}))
}

func releaseMany(t *testing.T, f Fixture) {
	d := emptyShards(f, 3)
	const rows = 3000
	ids := manyIDs(rows)
	session := d.join(t, "a", listing(counters, ids...))
	releases := make([]wire.Release, 0, rows+1)
	for _, id := range ids {
		releases = append(releases, wire.Release{SessionID: session, Namespace: counters, ID: id})
	}
	releases = append(releases, releases[0])
	n, err := d.Release(t.Context(), releases)
	require.NoError(t, err)
	require.Equal(t, rows, n)
	page, next, err := d.Rows(t.Context(), counters, "", rows)
	require.NoError(t, err)
	require.Empty(t, page)
	require.Empty(t, next)
}

func manyIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("id-%d", i)
	}
	return ids
}
