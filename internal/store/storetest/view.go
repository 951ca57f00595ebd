package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var viewRules = []rule{
	{"the version of a view changes with the set of candidates", versionFollowsTheSet},
	{"the version of a view does not change with headroom", versionIgnoresHeadroom},
	{"the version of a view changes when a candidate lapses", versionFollowsLapses},
	{"a preference from an old view places nothing and changes nothing", staleViewDoesNothing},
	{"a view that is never current only looks", staleViewWithoutPreference},
	{"a preference from no view is never stale", anyViewIsCurrent},
	{"a refusal with an old view frees nothing", staleRefusalFreesNothing},
	{"without a candidate there is nothing to be stale", noCandidateBeforeStale},
}

func versionFollowsTheSet(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ctx := t.Context()
	seen := map[int64]bool{d.view(t).Version: true}
	changed := func(what string, candidates ...string) {
		t.Helper()
		view := d.view(t)
		require.False(t, seen[view.Version], "%s: an old version came back", what)
		seen[view.Version] = true
		sessions := []string{}
		for _, c := range view.Candidates {
			sessions = append(sessions, c.SessionID)
		}
		require.ElementsMatch(t, candidates, sessions, what)
		require.Equal(t, view.Version, d.view(t).Version, "looking changes nothing")
	}
	beat := func(session string, draining bool) {
		t.Helper()
		_, err := d.Heartbeat(ctx, store.Beat{SessionID: session, Headroom: ample, Draining: draining})
		require.NoError(t, err)
	}
	a := d.join(t, "a")
	changed("joined", a)
	b := d.join(t, "b", at("http://b.test"))
	changed("joined", a, b)
	require.NoError(t, d.SetDegraded(ctx, a, true))
	changed("degraded", b)
	require.NoError(t, d.SetDegraded(ctx, a, false))
	changed("restored", a, b)
	_, err := d.Drain(ctx, "b", nil)
	require.NoError(t, err)
	changed("drained", a)
	require.NoError(t, d.Undrain(ctx, "b"))
	changed("undrained", a, b)
	beat(b, true)
	changed("drains by itself", a)
	beat(b, false)
	changed("no longer", a, b)
	a2 := d.join(t, "a")
	changed("registered again", a2, b)
	c := d.join(t, "c", at("http://b.test"))
	changed("stopped by another client", a2, c)
	require.NoError(t, d.Deregister(ctx, a2))
	changed("left", c)
	require.NoError(t, d.Deregister(ctx, c))
	changed("left")
}

func versionIgnoresHeadroom(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	version := d.view(t).Version
	placed := d.place(t, counters, "x", session)
	require.Equal(t, version, d.view(t).Version)
	_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: 3})
	require.NoError(t, err)
	require.Equal(t, version, d.view(t).Version)
	require.True(t, d.release(t, counters, "x", placed))
	require.Equal(t, version, d.view(t).Version)
	req := request(counters, "y")
	req.View = version
	require.Equal(t, store.Placed, d.ask(t, req).Outcome)
}

func versionFollowsLapses(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	stays := d.join(t, "b")
	lapses := joinThrough(t, d.lapsing, "a")
	before := d.view(t)
	d.Until(t, func() bool { return len(d.view(t).Candidates) == 1 })
	after := d.view(t)
	require.Equal(t, stays, after.Candidates[0].SessionID)
	require.NotEqual(t, before.Version, after.Version)
	req := request(counters, "x")
	req.Preferred, req.View = lapses, before.Version
	require.Equal(t, store.StaleView, d.ask(t, req).Outcome)
}

func staleViewDoesNothing(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	old := d.view(t).Version
	second := d.join(t, "b", headroom(ample))
	req := request(counters, "x")
	req.Preferred, req.View = first, old
	for range 3 {
		require.Equal(t, store.Result{Outcome: store.StaleView}, d.ask(t, req))
	}
	d.free(t, counters, "x")
	view := d.view(t)
	for _, c := range view.Candidates {
		require.InDelta(t, ample, c.Headroom, 0, "took headroom")
	}
	req.View = view.Version
	require.Equal(t, store.Placed, d.ask(t, req).Outcome)

	// A row needs no view.
	req.View, req.Preferred = old, second
	res := d.ask(t, req)
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, first, res.SessionID)
}

func staleViewWithoutPreference(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "a")
	req := request(counters, "x")
	// Below AnyView is never current, and 0 stands for a view never read.
	for _, req.View = range []int64{-2, 0} {
		require.Equal(t, store.StaleView, d.ask(t, req).Outcome)
	}
	d.free(t, counters, "x")
	placed := d.resolve(t, counters, "x")
	res := d.ask(t, req)
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, placed.Epoch, res.Epoch)
}

func anyViewIsCurrent(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	d.join(t, "b")
	d.join(t, "c")
	for _, id := range []string{"x", "y", "z", "w"} {
		d.place(t, counters, id, first)
	}
}

func staleRefusalFreesNothing(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	placed := d.place(t, counters, "x", first)
	old := d.view(t).Version
	second := d.join(t, "b")
	req := request(counters, "x")
	req.Preferred, req.View = second, old
	req.Refused = &store.Refused{SessionID: first, ClientID: "a", Epoch: placed.Epoch}
	require.Equal(t, store.StaleView, d.ask(t, req).Outcome)
	require.Equal(t, placed.Epoch, d.lookup(t, counters, "x").Epoch)
	req.View = d.view(t).Version
	res := d.ask(t, req)
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, second, res.SessionID)
}

func noCandidateBeforeStale(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	old := d.view(t).Version
	require.NoError(t, d.SetDegraded(t.Context(), session, true))
	req := request(counters, "x")
	req.Preferred, req.View = session, old
	require.Equal(t, store.NoCandidate, d.ask(t, req).Outcome)
}
