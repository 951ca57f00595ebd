package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// What is kept to tell of a session's lapse goes with the session, however it ends.
func TestNothingIsKeptOfALapseThatWasToldOrNeverComes(t *testing.T) {
	t.Parallel()
	d := open(t, time.Second)
	lapses := string(d.keys.fleet()) + "lapses"
	for _, client := range []string{"gone", "left", "again"} {
		r := registration(client)
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		if client == "left" {
			require.NoError(t, d.Deregister(t.Context(), r.SessionID))
		}
	}
	next := registration("again")
	_, err := d.Register(t.Context(), next)
	require.NoError(t, err)
	n, err := d.client.Do(t.Context(), d.client.B().Hlen().Key(lapses).Build()).AsInt64()
	require.NoError(t, err)
	require.Equal(t, int64(2), n)
	require.Eventually(t, func() bool {
		_, _, err := d.Sweep(t.Context())
		require.NoError(t, err)
		n, err := d.client.Do(t.Context(), d.client.B().Exists().Key(lapses).Build()).AsInt64()
		require.NoError(t, err)
		return n == 0
	}, 10*time.Second, 10*time.Millisecond)
}

// An event of a later version does not hide the others, and numbers rise where the
// clock was set back.
func TestEventsRiseAboveThoseThatAreThere(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	future := "4102444800000000" // the year 2100
	d.do1(t, "XADD", d.keys.fleet().moves(), future+"-0", "key", "", "text", `{"kind":`)
	e := store.Event{Kind: store.EventDrained, Namespaces: []string{"/a"}}
	require.NoError(t, d.Record(t.Context(), []store.Event{e, e}))
	events, next, err := d.Events(t.Context(), store.EventQuery{Limit: 10})
	require.NoError(t, err)
	require.Zero(t, next)
	require.Len(t, events, 2)
	require.Equal(t, []int64{4102444800000002, 4102444800000001}, []int64{events[0].ID, events[1].ID})
}

// A row that an earlier version wrote has no letter, and is as good.
func TestARowWithoutALetterIsRead(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {"x"}}
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	row, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	bucket := d.keys.of("/counters", "x")
	d.do1(t, "HSET", bucket.rows(d.keys.leaf("x")), "x", "1234567890123456 "+r.SessionID)
	row.Epoch, row.PlacedAt, row.Why = 1234567890123456, time.UnixMicro(1234567890123456).Truncate(time.Millisecond), store.Why{}
	again, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Equal(t, row, again)
	res, err := d.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, row.Epoch, res.Epoch)
	next := r
	next.SessionID += "2"
	_, err = d.Register(t.Context(), next)
	require.NoError(t, err)
	again, err = d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Equal(t, row.Epoch, again.Epoch, "it keeps its epoch")
	require.Equal(t, next.SessionID, again.SessionID)
}
