package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var stateRules = []rule{
	{"states tell what became of each session, in order", statesInOrder},
	{"a replaced session's successor is the client's newest", statesSuccessor},
	{"a session of another secret is no successor", statesOtherSecret},
	{"a stopped session is alive until its lease ends", statesStopped},
	{"all live sessions are listed, in a stable order", liveListed},
}

func (d *directory) state(t *testing.T, sessionID, clientID string) store.SessionState {
	t.Helper()
	states, err := d.States(t.Context(), []store.SessionKey{{SessionID: sessionID, ClientID: clientID}})
	require.NoError(t, err)
	require.Len(t, states, 1)
	return states[0]
}

func statesInOrder(t *testing.T, f Fixture) {
	d := empty(f)
	lapsed := joinThrough(t, d.lapsing, "c")
	d.outlast(t)
	a := d.join(t, "a")
	b := d.join(t, "b")
	require.NoError(t, d.Deregister(t.Context(), b))
	states, err := d.States(t.Context(), []store.SessionKey{
		{SessionID: b, ClientID: "b"},
		{SessionID: a, ClientID: "a"},
		{SessionID: "from before a wipe", ClientID: "nobody"},
		{SessionID: lapsed, ClientID: "c"},
		{SessionID: "never was", ClientID: "a"},
	})
	require.NoError(t, err)
	require.Len(t, states, 5)
	require.Equal(t, store.SessionState{}, states[0], "ended")
	require.True(t, states[1].Alive)
	require.Greater(t, states[1].TTL, time.Hour/2)
	require.LessOrEqual(t, states[1].TTL, time.Hour)
	require.Equal(t, store.SessionState{Alive: true, TTL: states[1].TTL}, states[1])
	require.Equal(t, store.SessionState{Forgotten: true}, states[2])
	require.Equal(t, store.SessionState{}, states[3], "lapsed")
	require.False(t, states[4].Alive)
	require.False(t, states[4].Forgotten, "its client is remembered")

	none, err := d.States(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func statesSuccessor(t *testing.T, f Fixture) {
	d := empty(f)
	first := d.join(t, "a")
	second := d.join(t, "a")
	require.Equal(t, store.SessionState{Successor: second}, d.state(t, first, "a"))
	require.NoError(t, d.Deregister(t.Context(), second))
	require.Equal(t, store.SessionState{}, d.state(t, first, "a"))
	third := d.join(t, "a")
	require.Equal(t, store.SessionState{Successor: third}, d.state(t, first, "a"))
	require.Equal(t, store.SessionState{Successor: third}, d.state(t, second, "a"))
	require.True(t, d.state(t, third, "a").Alive)
	require.Empty(t, d.state(t, third, "a").Successor)
	d.join(t, "b")
	require.Empty(t, d.state(t, first, "b").Successor, "not a session of that client")
}

func statesOtherSecret(t *testing.T, f Fixture) {
	d := empty(f)
	first := d.join(t, "a")
	require.NoError(t, d.Deregister(t.Context(), first))
	d.join(t, "a", keyed("another"))
	require.Equal(t, store.SessionState{}, d.state(t, first, "a"))
}

func statesStopped(t *testing.T, f Fixture) {
	d := empty(f)
	former := d.join(t, "a", at("http://one.test"))
	d.join(t, "b", at("http://one.test"))
	state := d.state(t, former, "a")
	require.True(t, state.Alive)
	require.Greater(t, state.TTL, time.Hour/2)
}

func liveListed(t *testing.T, f Fixture) {
	d := empty(f)
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Empty(t, live)
	var want []string
	for i := range 300 {
		session := d.join(t, fmt.Sprintf("client-%d", i), headroom(float64(i)))
		if i%3 == 0 {
			require.NoError(t, d.Deregister(t.Context(), session))
			continue
		}
		want = append(want, session)
	}
	list := func() (ids []string) {
		live, err := d.Live(t.Context())
		require.NoError(t, err)
		for _, s := range live {
			one := d.session(t, s.ID)
			require.Equal(t, one.ClientID, s.ClientID)
			require.True(t, one.Secret.Equal(s.Secret))
			require.InDelta(t, one.Headroom, s.Headroom, 0)
			require.Equal(t, one.AdvertiseURL, s.AdvertiseURL)
			require.True(t, s.Active)
			require.Greater(t, s.TTL, time.Hour/2)
			ids = append(ids, s.ID)
		}
		return ids
	}
	once := list()
	require.ElementsMatch(t, want, once)
	require.Equal(t, once, list())
	gone := once[100]
	require.NoError(t, d.Deregister(t.Context(), gone))
	require.Equal(t, slices.Delete(once, 100, 101), list())
}
