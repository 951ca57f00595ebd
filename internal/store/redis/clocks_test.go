package redis

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// ask asks for an id as a node does.
func (b bucketOf) ask(t *testing.T, id string) store.Result {
	t.Helper()
	res, err := b.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	return res
}

func TestAClockSetForwardPlacesNothingForALease(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s1", 5)
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)
	require.Equal(t, store.Placed, b.ask(t, "y").Outcome)

	// As if the clock had been an hour behind until now.
	known := b.clocks.byBucket[b.bucketKeys]
	b.clocks.heard(b.bucketKeys, time.Now(), known.micros-time.Hour.Microseconds())
	b.lapse(t, "s1")
	b.join(t, "s2", "another client", 1)
	b.apply(t, state{sid: "s2", version: 1, takes: true, renew: 60_000, headroom: 5})
	for i, id := range []string{"x", "z"} {
		res := b.ask(t, id)
		require.Equal(t, i == 0, res.ClockSet, "told once")
		require.Equal(t, store.Quarantined, res.Outcome, "forgotten owners may serve %s", id)
		require.Greater(t, res.Left, time.Duration(b.lease)*time.Millisecond/2)
	}
	require.Empty(t, b.owner(t, "z"))
}

func TestAScriptThatComesLateNeitherPlacesNorQuarantines(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s1", 5)
	req := store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1}
	a := b.resolving(t, 1, req)[0]
	require.Equal(t, int64(outcomeStepped), a.int())
	require.Equal(t, "0", b.do1(t, "HGET", b.meta(), "quarantine"))
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)
}

func TestAClockSetBackLengthensNoLease(t *testing.T) {
	t.Parallel()
	d := open(t, time.Minute)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	r := registration("a")
	sid := r.SessionID
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Activate(t.Context(), sid))
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)

	// What a clock that is set back by an hour makes of each of them.
	back := func() {
		for _, key := range []string{d.keys.fleet().session(sid), b.session(sid)} {
			b.do1(t, "PEXPIRE", key, strconv.FormatInt(time.Hour.Milliseconds(), 10))
		}
	}
	back()
	require.LessOrEqual(t, b.ask(t, "x").Left, time.Minute, "an owner that is dead would be held for live")
	states, err := d.States(t.Context(), []store.SessionKey{{SessionID: sid, ClientID: "a"}})
	require.NoError(t, err)
	require.LessOrEqual(t, states[0].TTL, time.Minute)
	back()
	ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
	require.NoError(t, err)
	require.LessOrEqual(t, ans.TTL, time.Minute)
	for _, key := range []string{d.keys.fleet().session(sid), b.session(sid)} {
		left, err := strconv.ParseInt(b.do1(t, "PTTL", key), 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, left, time.Minute.Milliseconds())
	}
}

// A node's clock and Redis' may drift apart by more than a lease in a day, and so
// a reading of yesterday shows no step of that size.
func TestHeartbeatsKeepTheReadingOfAClockFresh(t *testing.T) {
	t.Parallel()
	d := open(t, time.Minute)
	b := d.keys.bucket("/counters", 0)
	sid := d.joined(t, "a")
	beat := func() {
		t.Helper()
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
		require.NoError(t, err)
	}
	beat()
	require.Contains(t, d.clocks.byBucket, b, "nothing has been placed")
	known := d.clocks.byBucket[b]
	d.clocks.byBucket[b] = reading{asked: known.asked.Add(-24 * time.Hour), micros: known.micros - (24 * time.Hour).Microseconds()}
	unseen := func() time.Duration {
		now := time.Now()
		r := d.clocks.byBucket[b]
		return time.Duration(d.clocks.limit(b, now)-r.micros)*time.Microsecond - now.Sub(r.asked)
	}
	require.Greater(t, unseen(), time.Minute)
	beat()
	require.Less(t, unseen(), time.Minute)
}

func TestAHeartbeatDoesNotHideAStepFromTheNextPlacement(t *testing.T) {
	t.Parallel()
	d := open(t, time.Minute)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	sid := d.joined(t, "a")
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	require.Equal(t, store.Placed, b.ask(t, "x").Outcome)
	// As if the clock had been an hour behind until now.
	known := d.clocks.byBucket[b.bucketKeys]
	d.clocks.heard(b.bucketKeys, time.Now(), known.micros-time.Hour.Microseconds())
	_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
	require.NoError(t, err)
	res := b.ask(t, "y")
	require.Equal(t, store.Quarantined, res.Outcome)
	require.True(t, res.ClockSet)
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
	require.NoError(t, err)
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	require.Equal(t, store.Placed, b.ask(t, "y").Outcome, "it is over")
}

func TestAKnownClockMakesNodesForgetNoOther(t *testing.T) {
	t.Parallel()
	var c clocks
	name := func(i int) bucketKeys { return bucketKeys(strconv.Itoa(i)) }
	for i := range maxClocks {
		c.heard(name(i), time.Now(), 1)
	}
	c.heard(name(0), time.Now(), 2)
	require.Len(t, c.byBucket, maxClocks)
	c.heard(name(maxClocks), time.Now(), 1)
	require.Len(t, c.byBucket, 1)
}
