package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var reclaimRules = []rule{
	{"a free id is reclaimed with a new epoch", reclaimFree},
	{"a dead row is reclaimed with a new epoch", reclaimDead},
	{"a former session's row keeps its epoch and placing time", reclaimFormer},
	{"a row that another session held in between gets a new epoch", reclaimInterrupted},
	{"a row of another live session is a duplicate and stays", reclaimDuplicate},
	{"thousands of ids are reclaimed", reclaimThousands},
	{"ids are reclaimed in several namespaces", reclaimNamespaces},
	{"an id that is listed twice is reclaimed once", reclaimTwice},
	{"a registration tells the epochs that registrations gave", reclaimEpochs},
	{"epochs are told as they are in each of several shards", reclaimEpochsOfShards},
}

// register registers a session with a lasting lease.
func (d *directory) register(t *testing.T, client string, changes ...change) (sessionID string, ans store.Registered) {
	t.Helper()
	r := registration(client, changes...)
	ans, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	return r.SessionID, ans
}

func reclaimFree(t *testing.T, f Fixture) {
	d := empty(f)
	session, ans := d.register(t, "a", listing(counters, "x", "y"), headroom(3))
	require.Empty(t, ans.Duplicates)
	x, y := d.lookup(t, counters, "x"), d.lookup(t, counters, "y")
	require.Equal(t, session, x.SessionID)
	require.Equal(t, "a", x.ClientID)
	require.Positive(t, x.Epoch)
	require.Positive(t, y.Epoch)
	require.False(t, x.PlacedAt.IsZero())
	require.InDelta(t, 3, d.session(t, session).Headroom, 0, "reclaiming takes none")
	require.True(t, d.release(t, counters, "x", store.Result{SessionID: session, Epoch: x.Epoch}))

	again, _ := d.register(t, "a", listing(counters, "x"))
	row := d.lookup(t, counters, "x")
	require.Equal(t, again, row.SessionID)
	require.Greater(t, row.Epoch, x.Epoch)
	require.Greater(t, row.Epoch, y.Epoch)
}

func reclaimDead(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	dead := d.join(t, "a")
	placed := d.place(t, counters, "x", dead)
	require.NoError(t, d.Deregister(t.Context(), dead))
	session, ans := d.register(t, "b", listing(counters, "x"))
	require.Empty(t, ans.Duplicates)
	row := d.lookup(t, counters, "x")
	require.Equal(t, session, row.SessionID)
	require.Greater(t, row.Epoch, placed.Epoch)
}

func reclaimFormer(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	for _, id := range []string{"direct", "late", "deregistered"} {
		d.place(t, counters, id, first)
	}
	placed := map[string]store.Row{}
	for _, id := range []string{"direct", "late", "deregistered"} {
		placed[id] = d.lookup(t, counters, id)
	}
	kept := func(id, session string) {
		t.Helper()
		row := d.lookup(t, counters, id)
		require.Equal(t, session, row.SessionID)
		require.Equal(t, placed[id].Epoch, row.Epoch)
		require.True(t, placed[id].PlacedAt.Equal(row.PlacedAt))
	}
	d.Advance(t, f.LeaseTTL/10)
	second, _ := d.register(t, "a", listing(counters, "direct"))
	kept("direct", second)

	// "late" is a dead row now, but still that of a session of this client.
	third, _ := d.register(t, "a", listing(counters, "direct", "late"))
	kept("direct", third)
	kept("late", third)

	require.NoError(t, d.Deregister(t.Context(), third))
	fourth, ans := d.register(t, "a", listing(counters, "direct", "late", "deregistered"))
	require.Empty(t, ans.Duplicates)
	for id := range placed {
		kept(id, fourth)
	}
	require.Greater(t, d.epochOfNext(t, fourth), placed["deregistered"].Epoch)
}

// epochOfNext returns the epoch of a new placement on a session.
func (d *directory) epochOfNext(t *testing.T, sessionID string) int64 {
	t.Helper()
	require.NoError(t, d.Activate(t.Context(), sessionID))
	return d.place(t, counters, "next", sessionID).Epoch
}

func reclaimInterrupted(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	placed := d.place(t, counters, "x", first)
	require.NoError(t, d.Deregister(t.Context(), first))
	between := d.join(t, "b")
	moved := d.resolve(t, counters, "x")
	require.Equal(t, between, moved.SessionID)

	_, ans := d.register(t, "a", listing(counters, "x"))
	require.Equal(t, []wire.Ref{{Namespace: counters, ID: "x"}}, ans.Duplicates)
	require.NoError(t, d.Deregister(t.Context(), between))
	session, ans := d.register(t, "a", listing(counters, "x"))
	require.Empty(t, ans.Duplicates)
	row := d.lookup(t, counters, "x")
	require.Equal(t, session, row.SessionID)
	require.Greater(t, moved.Epoch, placed.Epoch)
	require.Greater(t, row.Epoch, moved.Epoch)
}

func reclaimDuplicate(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	owner := d.join(t, "a")
	placed := d.place(t, counters, "x", owner)
	session, ans := d.register(t, "b", listing(counters, "x", "y"))
	require.Equal(t, []wire.Ref{{Namespace: counters, ID: "x"}}, ans.Duplicates)
	row := d.lookup(t, counters, "x")
	require.Equal(t, owner, row.SessionID)
	require.Equal(t, placed.Epoch, row.Epoch)
	require.Equal(t, session, d.lookup(t, counters, "y").SessionID)

	// It stays one in the next session, and while its owner is stopped.
	d.join(t, "c", at(d.session(t, owner).AdvertiseURL))
	_, ans = d.register(t, "b", listing(counters, "x", "y"))
	require.Equal(t, []wire.Ref{{Namespace: counters, ID: "x"}}, ans.Duplicates)
	require.Equal(t, owner, d.lookup(t, counters, "x").SessionID)
}

func reclaimThousands(t *testing.T, f Fixture) {
	const rows, taken = 5000, 1000
	d := empty(f)
	ids := manyIDs(rows)
	owner, _ := d.register(t, "a", listing(counters, ids[:taken]...))
	session, ans := d.register(t, "b", listing(counters, ids...))
	require.Len(t, ans.Duplicates, taken)
	duplicate := map[string]bool{}
	for _, ref := range ans.Duplicates {
		require.Equal(t, counters, ref.Namespace)
		duplicate[ref.ID] = true
	}
	epochs := map[string]int64{}
	for _, row := range d.walk(t, counters, 500) {
		require.Equal(t, row.SessionID == owner, duplicate[row.ID])
		epochs[row.ID] = row.Epoch
	}
	require.Len(t, epochs, rows)

	again, ans := d.register(t, "b", listing(counters, ids...))
	require.Len(t, ans.Duplicates, taken)
	for _, row := range d.walk(t, counters, 500) {
		require.Equal(t, epochs[row.ID], row.Epoch)
		require.NotEqual(t, session, row.SessionID)
		require.Equal(t, duplicate[row.ID], row.SessionID != again)
	}
}

func reclaimNamespaces(t *testing.T, f Fixture) {
	d := empty(f)
	owner, _ := d.register(t, "a", serving(counters, "/others"), listing("/others", "x"))
	session, ans := d.register(t, "b", serving(counters, "/others"),
		listing(counters, "x", "y"), listing("/others", "x", "z"))
	require.Equal(t, []wire.Ref{{Namespace: "/others", ID: "x"}}, ans.Duplicates)
	require.Equal(t, session, d.lookup(t, counters, "x").SessionID)
	require.Equal(t, owner, d.lookup(t, "/others", "x").SessionID)
	require.Equal(t, session, d.lookup(t, "/others", "z").SessionID)
	d.free(t, "/others", "y")
	d.free(t, counters, "z")
}

func reclaimTwice(t *testing.T, f Fixture) {
	d := empty(f)
	session, ans := d.register(t, "a", listing(counters, "x", "y", "x"))
	require.Empty(t, ans.Duplicates)
	require.Equal(t, session, d.lookup(t, counters, "x").SessionID)
	require.Len(t, d.walk(t, counters, 10), 2)
}

// An answer may be lost: the next registration tells the epochs again. What a
// request has placed the worker knows.
func reclaimEpochs(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	dead := d.join(t, "dead")
	d.place(t, counters, "dead", dead)
	require.NoError(t, d.Deregister(t.Context(), dead))
	first := d.join(t, "a", serving(counters, "/others"))
	d.place(t, counters, "placed", first)
	owner, _ := d.register(t, "other", listing(counters, "taken"))

	all := []change{
		serving(counters, "/others"), listing(counters, "placed", "free", "dead", "taken", "free"), listing("/others", "x"),
	}
	_, ans := d.register(t, "a", all...)
	told := store.Epochs{
		counters:  {"free": d.lookup(t, counters, "free").Epoch, "dead": d.lookup(t, counters, "dead").Epoch},
		"/others": {"x": d.lookup(t, "/others", "x").Epoch},
	}
	require.Equal(t, told, ans.Epochs)
	again, ans := d.register(t, "a", all...)
	require.Equal(t, told, ans.Epochs, "kept")
	require.Equal(t, []wire.Ref{{Namespace: counters, ID: "taken"}}, ans.Duplicates)

	// By the epoch that was told the row is freed, and by no earlier one.
	require.False(t, d.release(t, counters, "dead", store.Result{SessionID: again, Epoch: told[counters]["dead"] - 1}))
	require.True(t, d.release(t, counters, "dead", store.Result{SessionID: again, Epoch: told[counters]["dead"]}))
	d.free(t, counters, "dead")

	require.NoError(t, d.Deregister(t.Context(), owner))
	_, ans = d.register(t, "b", listing(counters, "taken"))
	require.Equal(t, store.Epochs{counters: {"taken": d.lookup(t, counters, "taken").Epoch}}, ans.Epochs)
	_, ans = d.register(t, "c")
	require.Nil(t, ans.Epochs)
}

func reclaimEpochsOfShards(t *testing.T, f Fixture) {
	d := emptyShards(f, 3)
	ids := manyIDs(2000)
	for range 2 {
		_, ans := d.register(t, "a", listing(counters, ids...))
		require.Len(t, ans.Epochs[counters], len(ids))
		for _, row := range d.walk(t, counters, 500) {
			require.Equal(t, row.Epoch, ans.Epochs[counters][row.ID])
		}
	}
}
