package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var placementRules = []rule{
	{"a placed id stays with its owner", stickyOwner},
	{"a placement says how long the owner's lease lasts", placementTellsLease},
	{"concurrent resolves of one id agree on one placement", oneOwner},
	{"an id of a namespace without live sessions is unknown", unknownNamespace},
	{"placement epochs of an id rise across release, deregistration and refusal", epochsRise},
	{"placement epochs are below 2^53 and at least the clock's microseconds", epochsFollowTheClock},
	{"a refused placement is freed and the id goes to another client", refusedMoves},
	{"a refused placement without another candidate is freed all the same", refusedAlone},
	{"a refusal of a placement that is no longer current changes nothing", refusedStale},
	{"a refusal leaves its client out even where the id is not placed", refusedExcludes},
	{"an operator's look-up places nothing", lookupOnly},
}

func stickyOwner(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	placed := d.resolve(t, counters, "x")
	require.Equal(t, store.Placed, placed.Outcome)
	require.Equal(t, first, placed.SessionID)

	// More room elsewhere, or a preference, moves nothing.
	second := d.join(t, "b", headroom(1e9))
	req := request(counters, "x")
	req.Preferred = second
	for _, res := range []store.Result{d.resolve(t, counters, "x"), d.ask(t, req)} {
		require.Equal(t, store.Owned, res.Outcome)
		require.Equal(t, first, res.SessionID)
		require.Equal(t, placed.Epoch, res.Epoch)
		require.False(t, res.Stopped)
	}
}

func placementTellsLease(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "a")
	for _, want := range []store.Outcome{store.Placed, store.Owned} {
		res := d.resolve(t, counters, "x")
		require.Equal(t, want, res.Outcome)
		require.Greater(t, res.Left, time.Duration(0))
		require.LessOrEqual(t, res.Left, time.Hour)
		// The lasting lease is an hour, and no rule lasts half of that.
		require.Greater(t, res.Left, time.Hour/2)
	}
}

func oneOwner(t *testing.T, f Fixture) {
	const callers = 1000
	d := ready(t, f, counters)
	for _, client := range []string{"a", "b", "c", "d"} {
		d.join(t, client)
	}
	results := make([]store.Result, callers)
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			req := request(counters, "x")
			req.Dice = store.Dice{uint32(i), uint32(i * 7), uint32(i * 13)}
			results[i], errs[i] = d.Resolve(t.Context(), req)
		})
	}
	all.Wait()
	placed := 0
	for i, res := range results {
		require.NoError(t, errs[i])
		require.Contains(t, []store.Outcome{store.Placed, store.Owned}, res.Outcome)
		require.Equal(t, results[0].SessionID, res.SessionID)
		require.Equal(t, results[0].Epoch, res.Epoch)
		if res.Outcome == store.Placed {
			placed++
		}
	}
	require.Equal(t, 1, placed)
}

func unknownNamespace(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, "x").Outcome, "nobody serves it any more")
	d.join(t, "a")
	require.Equal(t, store.UnknownNamespace, d.resolve(t, "/others", "x").Outcome, "nobody ever served it")
}

func epochsRise(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	second := d.join(t, "b")
	last := d.place(t, counters, "x", first)
	rises := func(res store.Result) {
		t.Helper()
		require.Equal(t, store.Placed, res.Outcome)
		require.Greater(t, res.Epoch, last.Epoch)
		last = res
	}
	for range 20 {
		n, err := d.Release(t.Context(), []wire.Release{{SessionID: last.SessionID, Namespace: counters, ID: "x"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		rises(d.resolve(t, counters, "x"))
	}
	req := request(counters, "x")
	for range 20 {
		req.Refused = &store.Refused{SessionID: last.SessionID, ClientID: "a", Epoch: last.Epoch}
		if last.SessionID == second {
			req.Refused.ClientID = "b"
		}
		rises(d.ask(t, req))
	}
	require.NoError(t, d.Deregister(t.Context(), last.SessionID))
	rises(d.resolve(t, counters, "x"))
}

func epochsFollowTheClock(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "a")
	previous := int64(0)
	for _, id := range []string{"x", "y", "z"} {
		epoch := d.resolve(t, counters, id).Epoch
		require.Less(t, epoch, int64(1)<<53)
		// Microseconds since 1970: a store whose memory was wiped goes on
		// above all that it gave out before.
		row := d.lookup(t, counters, id)
		require.GreaterOrEqual(t, epoch, row.PlacedAt.UnixMilli()*1000-1e6)
		require.Greater(t, epoch, previous, "one counter for the bucket")
		previous = epoch
	}
}

func refusedMoves(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	second := d.join(t, "b")
	placed := d.place(t, counters, "x", first)
	req := request(counters, "x")
	req.Preferred, req.BalanceFactor = first, 1e300
	req.Refused = &store.Refused{SessionID: first, ClientID: "a", Epoch: placed.Epoch}
	res := d.ask(t, req)
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, second, res.SessionID)
	require.Greater(t, res.Epoch, placed.Epoch)
	require.Equal(t, second, d.lookup(t, counters, "x").SessionID)
}

func refusedAlone(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	placed := d.resolve(t, counters, "x")
	req := request(counters, "x")
	req.Refused = &store.Refused{SessionID: first, ClientID: "a", Epoch: placed.Epoch}
	require.Equal(t, store.NoCandidate, d.ask(t, req).Outcome)
	d.free(t, counters, "x")
	again := d.resolve(t, counters, "x")
	require.Equal(t, store.Placed, again.Outcome)
	require.Greater(t, again.Epoch, placed.Epoch)
}

func refusedStale(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	second := d.join(t, "b")
	placed := d.place(t, counters, "x", first)
	for name, r := range map[string]store.Refused{
		"another epoch":   {SessionID: first, ClientID: "a", Epoch: placed.Epoch - 1},
		"another session": {SessionID: second, ClientID: "b", Epoch: placed.Epoch},
		"a gone session":  {SessionID: "gone", ClientID: "a", Epoch: placed.Epoch},
	} {
		req := request(counters, "x")
		req.Refused = &r
		res := d.ask(t, req)
		require.Equal(t, store.Owned, res.Outcome, name)
		require.Equal(t, first, res.SessionID, name)
		require.Equal(t, placed.Epoch, res.Epoch, name)
	}
}

func refusedExcludes(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	second := d.join(t, "b", headroom(0))
	req := request(counters, "x")
	req.Preferred, req.BalanceFactor = first, 1e300
	req.Refused = &store.Refused{SessionID: first, ClientID: "a", Epoch: 1}
	res := d.ask(t, req)
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, second, res.SessionID)
}

func lookupOnly(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	d.free(t, counters, "x")
	d.free(t, "/others", "x")
	placed := d.resolve(t, counters, "x")
	require.Equal(t, store.Placed, placed.Outcome)
	row := d.lookup(t, counters, "x")
	require.False(t, row.PlacedAt.IsZero())
	row.PlacedAt = time.Time{}
	require.Equal(t, store.Row{
		Namespace: counters, ID: "x", SessionID: first, ClientID: "a", Epoch: placed.Epoch, Why: placed.Why,
	}, row)
}
