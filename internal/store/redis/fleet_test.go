package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// scan returns all keys of the directory.
func (d *directory) scan(t *testing.T) []string {
	t.Helper()
	var keys []string
	for cursor := uint64(0); ; {
		page, err := d.client.Do(t.Context(),
			d.client.B().Scan().Cursor(cursor).Match(d.keys.prefix+":*").Count(1000).Build()).AsScanEntry()
		require.NoError(t, err)
		keys = append(keys, page.Elements...)
		if cursor = page.Cursor; cursor == 0 {
			slices.Sort(keys)
			return slices.Compact(keys)
		}
	}
}

func registration(client string) store.Registration {
	return store.Registration{
		SessionID: rand.Text(), ClientID: client, Secret: wire.NewSecret("planted secret of session " + client),
		Namespaces: []string{"/counters"}, AdvertiseURL: "http://" + client, Headroom: 1000,
	}
}

// joined registers and activates a session.
func (d *directory) joined(t *testing.T, client string) (sid string) {
	t.Helper()
	r := registration(client)
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	return r.SessionID
}

// A node may die between the fleet's step and the buckets': the next heartbeat
// carries the whole state.
func TestAHeartbeatAppliesWhatDidNotReachTheBuckets(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	sid := d.joined(t, "a")
	fleet := d.keys.fleet()
	d.calling(t, drainScript.with([]string{fleet.client("a")}, string(fleet), true, -1))
	view, err := d.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1, "only the fleet knows")
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
	require.NoError(t, err)
	view, err = d.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Empty(t, view.Candidates)
}

func TestASessionWithoutOneOfItsBucketsIsGone(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Namespaces = []string{"/one", "/two"}
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	d.do1(t, "DEL", d.keys.bucket("/two", 0).session(r.SessionID))
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: r.SessionID})
	require.ErrorIs(t, err, store.ErrNoSession)
	require.ErrorIs(t, d.Activate(t.Context(), r.SessionID), store.ErrNoSession)
	require.Equal(t, "0", d.do1(t, "EXISTS", d.keys.bucket("/two", 0).session(r.SessionID)))
}

func TestManyFormerSessionsAreRemembered(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	var sids []string
	for range maxFormer + 5 {
		sids = append(sids, d.joined(t, "a"))
	}
	newest := sids[len(sids)-1]
	for i, sid := range sids[:len(sids)-1] {
		states, err := d.States(t.Context(), []store.SessionKey{{SessionID: sid, ClientID: "a"}})
		require.NoError(t, err)
		want := store.SessionState{Successor: newest}
		if i < 5 {
			want = store.SessionState{}
		}
		require.Equal(t, want, states[0], i)
	}
}

func TestNoSecretIsInAnError(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Secret = wire.NewSecret("hidden-text")
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	fleet := d.keys.fleet()
	d.do1(t, "HSET", fleet.session(r.SessionID), "record", `{"secret":"hidden-text"`)
	_, err = d.Session(t.Context(), r.SessionID)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hidden")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.Register(ctx, r)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, err.Error(), "hidden")
}

func TestOneNodeSweepsAtATimeAndADeadOneNotForLong(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	sid := d.joined(t, "a")
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	b.reclaim(t, sid, "a", sid, "x")
	require.NoError(t, d.Deregister(t.Context(), sid))
	lock := d.keys.fleet().sweep()
	d.do1(t, "SET", lock, "another node", "PX", "60000")
	removed, more, err := d.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, removed)
	require.False(t, more)
	require.Equal(t, "another node", d.do1(t, "GET", lock))
	require.Zero(t, d.calling(t, unlockScript.with([]string{lock}, "this node")).int())
	// The other one dies, and its turn runs out.
	d.do1(t, "PEXPIRE", lock, "20")
	require.Eventually(t, func() bool {
		removed, _, err = d.Sweep(t.Context())
		return err == nil && removed == 1
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, "0", d.do1(t, "EXISTS", lock), "the turn ends with the work")
}

func TestAClientsEntryInABucketIsForgottenInTheEnd(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "lives", "a", 1)
	b.join(t, "gone", "b", 1)
	b.join(t, "new", "c", 1)
	b.lapse(t, "gone")
	b.lapse(t, "new")
	long := fmt.Sprint(time.Now().Add(-entryMemory - time.Minute).UnixMilli())
	b.do1(t, "HSET", b.clients(), "a", "1 "+long+" lives", "b", "1 "+long+" gone")
	_, _, err := b.sweeping().sweep(t.Context(), []bucketKeys{b.bucketKeys})
	require.NoError(t, err)
	require.Equal(t, "1", b.do1(t, "HEXISTS", b.clients(), "a"))
	require.Equal(t, "0", b.do1(t, "HEXISTS", b.clients(), "b"))
	require.Equal(t, "1", b.do1(t, "HEXISTS", b.clients(), "c"))
}

func TestWhatBelongsToASessionLivesAsLongAsItDoes(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {"x"}}
	register := func() error { _, err := d.Register(t.Context(), r); return err }
	beat := func() error {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: r.SessionID})
		return err
	}
	require.NoError(t, register())
	require.NoError(t, d.WindDown(t.Context(), "/counters", "x", nil))
	fleet := d.keys.fleet()
	for _, renew := range []func() error{beat, func() error {
		r.SessionID = rand.Text()
		return register()
	}} {
		atLeast := map[string]int64{
			fleet.client("a"): d.lease/2 + memory, fleet.messages("a"): d.lease/2 + memory,
			fleet.url(urlDigest(r.AdvertiseURL)): d.lease / 2,
		}
		for key := range atLeast {
			require.Equal(t, "1", d.do1(t, "PEXPIRE", key, "30000"), key)
		}
		d.do1(t, "DEL", fleet.live())
		require.NoError(t, renew())
		for key, least := range atLeast {
			ms, err := strconv.ParseInt(d.do1(t, "PTTL", key), 10, 64)
			require.NoError(t, err)
			require.Greater(t, ms, least, key)
		}
		require.NotEmpty(t, d.do1(t, "ZSCORE", fleet.live(), r.SessionID))
		require.Equal(t, r.SessionID, d.do1(t, "GET", fleet.url(urlDigest(r.AdvertiseURL))))
	}
}

func TestAHeartbeatTellsTheShortestLease(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	sid := d.joined(t, "a")
	long := strconv.FormatInt(3*d.lease, 10)
	for _, key := range []string{d.keys.fleet().session(sid), d.keys.bucket("/counters", 0).session(sid)} {
		require.Equal(t, "1", d.do1(t, "PEXPIRE", key, long))
		ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid})
		require.NoError(t, err)
		require.LessOrEqual(t, ans.TTL, time.Hour)
		require.Equal(t, "1", d.do1(t, "PEXPIRE", key, "1000"))
	}
}

func TestTheListOfLiveSessionsIsCleaned(t *testing.T) {
	t.Parallel()
	for name, clean := range map[string]func(d *directory) error{
		"by who reads it": func(d *directory) error { _, err := d.Live(t.Context()); return err },
		"by the sweep":    func(d *directory) error { _, _, err := d.Sweep(t.Context()); return err },
	} {
		d := open(t, time.Hour)
		sid := d.joined(t, "a")
		live := d.keys.fleet().live()
		d.do1(t, "ZADD", live, "1", "gone", "2", sid)
		require.NoError(t, clean(d), name)
		require.Equal(t, "1", d.do1(t, "ZCARD", live), name)
		require.NotEmpty(t, d.do1(t, "ZSCORE", live, sid), name)
	}
}
