package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var knownRules = []rule{
	{"a row is known as it is, whoever changes it", knownFollows},
	{"a row of a session that has ended is known as such a row", knownDead},
	{"the generation is another one when a session ends or is stopped", knownGenerations},
	{"the generation stays when workers beat, drain, and get placements", knownSteady},
	{"the generation is another one when a host name is bound anew", knownNames},
	{"a namespace that nobody ever served has no generation", knownNothing},
}

// known is what a handle knows. It is told of changes a moment later, so that
// rules wait for what they expect; and where a change comes while it asks, it may not
// be sure of anything.
func (d *directory) known(t *testing.T, binding, id string) (known store.Known) {
	t.Helper()
	d.Until(t, func() (sure bool) {
		var err error
		known, err = d.Known(t.Context(), binding, id)
		require.NotErrorIs(t, err, store.ErrNotTracked)
		return err == nil
	})
	return known
}

// learns waits until the row is known to be that one.
func (d *directory) learns(t *testing.T, id, sessionID string, epoch int64) {
	t.Helper()
	d.Until(t, func() bool {
		known := d.known(t, counters, id)
		return known.SessionID == sessionID && known.Epoch == epoch
	})
}

func knownFollows(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	a := d.join(t, "a")
	before := d.known(t, counters, "x")
	require.Empty(t, before.SessionID)
	require.Zero(t, before.Epoch)
	placed := d.place(t, counters, "x", a)
	d.learns(t, "x", a, placed.Epoch)
	require.True(t, d.release(t, counters, "x", placed))
	d.learns(t, "x", "", 0)
	again := d.place(t, counters, "x", a)
	d.learns(t, "x", a, again.Epoch)
	// The same process under a new session keeps the epoch.
	next := d.join(t, "a", listing(counters, "x"))
	d.learns(t, "x", next, again.Epoch)
	b := d.join(t, "b")
	refused := d.ask(t, store.Request{
		Namespace: counters, ID: "x", View: store.AnyView, BalanceFactor: 1,
		Refused: &store.Refused{SessionID: next, ClientID: "a", Epoch: again.Epoch},
	})
	require.Equal(t, b, refused.SessionID)
	d.learns(t, "x", b, refused.Epoch)
	now := d.known(t, counters, "x")
	require.False(t, now.AsOf.Before(before.AsOf))
	require.Empty(t, d.known(t, counters, "another").SessionID)
}

func knownDead(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	a := d.join(t, "a")
	placed := d.place(t, counters, "x", a)
	d.learns(t, "x", a, placed.Epoch)
	require.NoError(t, d.Deregister(t.Context(), a))
	known := d.known(t, counters, "x")
	require.Equal(t, a, known.SessionID)
	require.Equal(t, placed.Epoch, known.Epoch)
	b := d.join(t, "b")
	moved := d.place(t, counters, "x", b)
	d.learns(t, "x", b, moved.Epoch)
	require.NoError(t, d.Deregister(t.Context(), b))
	d.Until(t, func() bool { return d.sweep(t) > 0 })
	d.learns(t, "x", "", 0)
}

// turns checks that the generation of a binding becomes another one, and none
// that it ever was.
func (d *directory) turns(t *testing.T, binding string, past map[string]bool, what string, do func()) {
	t.Helper()
	past[d.known(t, binding, "x").Generation] = true
	do()
	var now string
	d.Until(t, func() bool {
		now = d.known(t, binding, "x").Generation
		return !past[now]
	})
	require.NotEmpty(t, now, what)
}

func knownGenerations(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	past := map[string]bool{}
	a, b := d.join(t, "a"), d.join(t, "b", at("http://b"))
	d.turns(t, counters, past, "deregistered", func() { require.NoError(t, d.Deregister(t.Context(), a)) })
	a = d.join(t, "a")
	d.turns(t, counters, past, "replaced", func() { a = d.join(t, "a") })
	d.turns(t, counters, past, "another process on its URL", func() { d.join(t, "c", at("http://b")) })
	require.True(t, d.session(t, b).Stopped)
	d.turns(t, counters, past, "displaced", func() { d.join(t, "d", ofEpoch(1)) })
	require.True(t, d.session(t, a).Stopped)
	other := d.known(t, "/other", "x").Generation
	require.Empty(t, other)
}

func knownSteady(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	a := d.join(t, "a")
	before := d.known(t, counters, "x")
	d.place(t, counters, "x", a)
	for range 3 {
		d.beat(t, a)
		require.NoError(t, d.SetDegraded(t.Context(), a, true))
		require.NoError(t, d.SetDegraded(t.Context(), a, false))
	}
	d.drain(t, "a", nil)
	d.join(t, "b", serving("/other"), under("chat.example"))
	d.join(t, "c")
	d.Until(t, func() bool { return d.known(t, counters, "x").SessionID == a })
	// A node that is told of the row has been told of all that went before.
	require.Equal(t, before.Generation, d.known(t, counters, "x").Generation)
}

func knownNames(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "plain")
	past := map[string]bool{}
	var bound string
	d.turns(t, counters, past, "bound", func() { bound = d.join(t, "bound", under("chat.example")) })
	d.turns(t, counters, past, "another", func() { d.join(t, "other", under("other.example")) })
	before := d.known(t, counters, "x").Generation
	for range 3 {
		d.beat(t, bound)
	}
	d.join(t, "second", under("chat.example"))
	require.Equal(t, before, d.known(t, counters, "x").Generation, "it was bound before")
}

func knownNothing(t *testing.T, f Fixture) {
	d := empty(f)
	known := d.known(t, counters, "x")
	require.Empty(t, known.Generation)
	require.Empty(t, known.SessionID)
	d.join(t, "a")
	d.Until(t, func() bool { return d.known(t, counters, "x").Generation != "" })
}
