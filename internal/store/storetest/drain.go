package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var drainRules = []rule{
	{"a drained client takes nothing and keeps what it has, until undrained", drainStopsPlacements},
	{"a drain's deadline counts down and is never below zero", drainCountsDown},
	{"a second drain replaces the first", drainReplaced},
	{"a drain outlives the session", drainOutlivesSession},
	{"another client is free of the drain", drainIsOfOneClient},
	{"an unknown client cannot be drained", drainUnknown},
	{"a client is remembered with its last session's namespaces", clientRemembered},
}

func (d *directory) drain(t *testing.T, client string, deadline *time.Duration) store.Drain {
	t.Helper()
	drain, err := d.Drain(t.Context(), client, deadline)
	require.NoError(t, err)
	return drain
}

func (d *directory) client(t *testing.T, client string) store.Client {
	t.Helper()
	c, err := d.Client(t.Context(), client)
	require.NoError(t, err)
	return c
}

func drainStopsPlacements(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	placed := d.place(t, counters, "kept", session)
	require.Equal(t, store.Drain{Draining: true}, d.drain(t, "a", nil))
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	res := d.resolve(t, counters, "kept")
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, placed.Epoch, res.Epoch)
	for range 2 {
		require.Equal(t, store.Drain{Draining: true}, d.beat(t, session).Drain)
		require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	}
	s := d.session(t, session)
	require.Equal(t, store.Drain{Draining: true}, s.Drain)
	require.False(t, s.Draining, "that is the worker's own")
	require.Equal(t, store.Drain{Draining: true}, d.client(t, "a").Drain)

	for range 2 {
		require.NoError(t, d.Undrain(t.Context(), "a"))
		require.Zero(t, d.beat(t, session).Drain)
		require.Zero(t, d.client(t, "a").Drain)
	}
	d.place(t, counters, "x", session)
}

func drainCountsDown(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a")
	long := time.Hour
	drain := d.drain(t, "a", &long)
	left := drain.Left
	require.Equal(t, store.Drain{Draining: true, Deadline: true, Left: left}, drain)
	require.LessOrEqual(t, left, long)
	require.Greater(t, left, long/2)
	d.Advance(t, f.LeaseTTL/10)
	for _, drain := range []store.Drain{d.beat(t, session).Drain, d.session(t, session).Drain, d.client(t, "a").Drain} {
		require.True(t, drain.Deadline)
		require.LessOrEqual(t, drain.Left, left-f.LeaseTTL/20)
		require.Greater(t, drain.Left, long/2)
	}

	short := f.LeaseTTL / 20
	require.LessOrEqual(t, d.drain(t, "a", &short).Left, short)
	d.Advance(t, 2*short)
	over := store.Drain{Draining: true, Deadline: true}
	require.Equal(t, over, d.beat(t, session).Drain)
	require.Equal(t, over, d.session(t, session).Drain)
	require.Equal(t, over, d.client(t, "a").Drain)
	_, ans := d.register(t, "a")
	require.Equal(t, over, ans.Drain)
	now := time.Duration(0)
	require.Equal(t, over, d.drain(t, "a", &now))
}

func drainReplaced(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a")
	short, long := time.Minute, time.Hour
	d.drain(t, "a", &short)
	require.Greater(t, d.drain(t, "a", &long).Left, long/2)
	require.Greater(t, d.beat(t, session).Drain.Left, long/2)
	require.LessOrEqual(t, d.drain(t, "a", &short).Left, short)
	require.LessOrEqual(t, d.beat(t, session).Drain.Left, short)
	require.Equal(t, store.Drain{Draining: true}, d.drain(t, "a", nil))
	require.Equal(t, store.Drain{Draining: true}, d.beat(t, session).Drain)
	require.NoError(t, d.Undrain(t.Context(), "a"))
	require.Zero(t, d.session(t, session).Drain)
}

func drainOutlivesSession(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := joinThrough(t, d.lapsing, "a")
	deadline := time.Hour
	d.drain(t, "a", &deadline)
	still := func(drain store.Drain) {
		t.Helper()
		require.True(t, drain.Draining)
		require.True(t, drain.Deadline)
		require.Greater(t, drain.Left, deadline/2)
	}
	next, ans := d.register(t, "a")
	still(ans.Drain)
	d.ended(t, session)
	require.NoError(t, d.Activate(t.Context(), next))
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)

	require.NoError(t, d.Deregister(t.Context(), next))
	still(d.client(t, "a").Drain)
	next = joinThrough(t, d.lapsing, "a")
	still(d.beat(t, next).Drain)
	d.outlast(t)
	d.ended(t, next)
	still(d.client(t, "a").Drain)

	// A client without a session may be drained and undrained, too.
	require.NoError(t, d.Undrain(t.Context(), "a"))
	d.drain(t, "a", nil)
	last := d.join(t, "a")
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	require.NoError(t, d.Undrain(t.Context(), "a"))
	d.place(t, counters, "x", last)
}

func drainIsOfOneClient(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "a")
	other := d.join(t, "b")
	d.drain(t, "a", nil)
	require.Zero(t, d.beat(t, other).Drain)
	require.Equal(t, other, d.resolve(t, counters, "x").SessionID)
	restarted, ans := d.register(t, "a2", at("http://a.test:8000"))
	require.Zero(t, ans.Drain)
	require.NoError(t, d.Activate(t.Context(), restarted))
	d.place(t, counters, "y", restarted)
}

func drainUnknown(t *testing.T, f Fixture) {
	d := empty(f)
	_, err := d.Drain(t.Context(), "nobody", nil)
	require.ErrorIs(t, err, store.ErrNoClient)
	require.NoError(t, d.Undrain(t.Context(), "nobody"))
	_, err = d.Client(t.Context(), "nobody")
	require.ErrorIs(t, err, store.ErrNoClient)
	_, ans := d.register(t, "nobody")
	require.Zero(t, ans.Drain)
}

func clientRemembered(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", serving("/before"))
	session := d.join(t, "a", serving(counters, "/others"))
	require.NoError(t, d.Deregister(t.Context(), "no such session"))
	for _, live := range []string{session, ""} {
		c := d.client(t, "a")
		require.Equal(t, "a", c.ClientID)
		require.Equal(t, live, c.SessionID)
		require.ElementsMatch(t, []string{counters, "/others"}, c.Namespaces)
		require.Zero(t, c.Drain)
		require.NoError(t, d.Deregister(t.Context(), session))
	}
}
