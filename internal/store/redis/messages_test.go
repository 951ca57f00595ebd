package redis

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// A row that left and came back is another placement.
func TestAMessageIsForThePlacementThatItWasQueuedFor(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {"x", "y"}}
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	for _, id := range r.Instances["/counters"] {
		require.NoError(t, d.WindDown(t.Context(), "/counters", id, nil))
	}
	n, err := d.Release(t.Context(), []wire.Release{{SessionID: r.SessionID, Namespace: "/counters", ID: "x"}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	require.Equal(t, []int64{0}, b.reclaim(t, r.SessionID, "a", r.SessionID, "x"))
	ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: r.SessionID})
	require.NoError(t, err)
	require.Len(t, ans.Messages, 1)
	require.Equal(t, "y", ans.Messages[0].InstanceID)
	require.Equal(t, "1", d.do1(t, "HLEN", d.keys.fleet().messages("a")), "the other one is dropped for good")
}

func TestDroppingAMessageSparesItsReplacement(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	key := d.keys.fleet().messages("a")
	d.do1(t, "HSET", key, "/counters x", "12 1 -", "/counters y", "13 1 -")
	a := d.calling(t, dropScript.with([]string{key}, "/counters x", "11", "/counters y", "13", "/counters z", "14"))
	require.Equal(t, int64(1), a.int())
	require.Equal(t, "12 1 -", d.do1(t, "HGET", key, "/counters x"))
}

func TestAHeartbeatThatIsOvertakenDropsNoMessageOfItsSuccessor(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	first := registration("a")
	first.Instances = map[string][]string{"/counters": {"x"}}
	_, err := d.Register(t.Context(), first)
	require.NoError(t, err)
	require.NoError(t, d.WindDown(t.Context(), "/counters", "x", nil))
	ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: first.SessionID})
	require.NoError(t, err)
	require.Len(t, ans.Messages, 1)
	row, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	onItsWay := []waiting{{place: placeOf("/counters", "x"), epoch: row.Epoch, Message: ans.Messages[0]}}

	second := first
	second.SessionID = rand.Text()
	_, err = d.Register(t.Context(), second)
	require.NoError(t, err)
	messages, err := d.deliver(t.Context(), first.SessionID, "a", onItsWay)
	require.NoError(t, err)
	require.Empty(t, messages)
	ans, err = d.Heartbeat(t.Context(), store.Beat{SessionID: second.SessionID})
	require.NoError(t, err)
	require.Len(t, ans.Messages, 1)
}

func TestDeadlinesAreRoundedUpToMilliseconds(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(-1), milliseconds(nil))
	for d, want := range map[time.Duration]int64{
		0: 0, -time.Second: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
	} {
		require.Equal(t, want, milliseconds(&d), d)
	}
}
