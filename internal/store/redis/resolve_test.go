package redis

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

func TestAskingForAnUnknownNamespaceCreatesNothing(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	res, err := b.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.Equal(t, store.UnknownNamespace, res.Outcome)
	_, err = b.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Empty(t, b.scan(t))
}

// resolve asks for an id of the bucket's namespace.
func (b bucketOf) resolve(t *testing.T, req store.Request) (outcome store.Outcome, sid string) {
	t.Helper()
	req.Namespace = "/counters"
	res, err := b.Resolve(t.Context(), req)
	require.NoError(t, err)
	return res.Outcome, res.SessionID
}

// resolving asks for ids that are alike in one run of the script.
func (b bucketOf) resolving(t *testing.T, limit int64, reqs ...store.Request) []*answer {
	t.Helper()
	whole := b.calling(t, b.resolveCall(likeness(b.bucketKeys, reqs[0]), limit, reqs...))
	answers := make([]*answer, len(reqs))
	for i := range answers {
		answers[i] = whole.list()
	}
	require.NoError(t, whole.err)
	require.False(t, whole.more())
	return answers
}

func (b bucketOf) candidate(t *testing.T, sid string, headroom float64) {
	t.Helper()
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	b.join(t, sid, "client of "+sid, 1)
	b.apply(t, state{sid: sid, version: 1, takes: true, renew: 60_000, headroom: headroom})
}

// lapse lets a session's record go as if its lease were over, unnoticed.
func (b bucketOf) lapse(t *testing.T, sid string) {
	t.Helper()
	require.Equal(t, "1", b.do1(t, "DEL", b.session(sid)))
}

func TestResolveClearsLapsedCandidatesThatItMeets(t *testing.T) {
	t.Parallel()
	live := map[string]float64{"five": 5, "nine": 9}
	for name, c := range map[string]struct {
		gone      map[string]float64
		preferred string
		dice      store.Dice
		want      string
	}{
		"drawn first":    {gone: map[string]float64{"gone": 1}, dice: store.Dice{0, 1, 0}, want: "nine"},
		"drawn second":   {gone: map[string]float64{"gone": 100}, dice: store.Dice{1, 1, 0}, want: "nine"},
		"both":           {gone: map[string]float64{"gone0": 0, "gone1": 1}, want: "nine"},
		"preferred":      {gone: map[string]float64{"gone": 8}, preferred: "gone", want: "nine"},
		"preferred best": {gone: map[string]float64{"gone": 100}, preferred: "gone", want: "nine"},
		// Were it there, five would have too little to be preferred to it.
		"best": {gone: map[string]float64{"gone": 100}, preferred: "five", want: "five"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBucket(t)
			for sid, headroom := range live {
				b.candidate(t, sid, headroom)
			}
			for sid, headroom := range c.gone {
				b.candidate(t, sid, headroom)
				b.lapse(t, sid)
				// Were it the last to lapse, that would be noticed first.
				b.do1(t, "ZADD", b.sessions(), "1", sid)
			}
			before := b.do1(t, "HGET", b.meta(), "version")
			outcome, sid := b.resolve(t, store.Request{
				ID: "x", Preferred: c.preferred, View: store.AnyView, BalanceFactor: 2, Dice: c.dice,
			})
			require.Equal(t, store.Placed, outcome)
			require.Equal(t, c.want, sid)
			require.Equal(t, "2", b.do1(t, "ZCARD", b.candidates()))
			require.NotEqual(t, before, b.do1(t, "HGET", b.meta(), "version"))
		})
	}
}

func TestResolveFindsTheOnlyCandidateLapsed(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "not active", "c", 1)
	b.candidate(t, "gone", 1)
	b.lapse(t, "gone")
	b.do1(t, "ZREM", b.sessions(), "gone")
	outcome, _ := b.resolve(t, store.Request{ID: "x", View: store.AnyView, BalanceFactor: 2})
	require.Equal(t, store.NoCandidate, outcome)
}

func TestEpochsFollowTheClockAndTheLastEpoch(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	before := time.Now().UnixMicro()
	b.candidate(t, "s", 100)
	place := func(id string) int64 {
		res, err := b.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 1})
		require.NoError(t, err)
		require.Equal(t, store.Placed, res.Outcome)
		return res.Epoch
	}
	require.GreaterOrEqual(t, place("a"), before)
	// The clock was set back since this epoch was given out.
	const last = int64(1) << 52
	b.do1(t, "HSET", b.meta(), "epoch", strconv.FormatInt(last, 10))
	require.Equal(t, last+1, place("b"))
	require.Equal(t, []int64{0}, b.reclaim(t, "s", "client of s", "s", "c"))
	row, err := b.Lookup(t.Context(), "/counters", "c")
	require.NoError(t, err)
	require.Equal(t, last+2, row.Epoch)
	require.Equal(t, last+3, place("d"))
}

func TestAPlacementEndsTheQuarantineForGood(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 100)
	over := strconv.FormatInt(time.Now().UnixMilli()-1, 10)
	b.do1(t, "HSET", b.meta(), "quarantine", over, "quarantined", "5000")
	outcome, _ := b.resolve(t, store.Request{ID: "x", View: store.AnyView, BalanceFactor: 2})
	require.Equal(t, store.Placed, outcome)
	require.Equal(t, "0", b.do1(t, "HGET", b.meta(), "quarantine"), "a clock that is set back does not revive it")
}

// Whoever notices that a session has lapsed sees to it that its rows are swept.
func TestRowsAreSweptWhoeverNoticesALapse(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 100)
	require.Equal(t, []int64{0}, b.reclaim(t, "s", "client of s", "s", "x", "y"))
	b.lapse(t, "s")
	outcome, _ := b.resolve(t, store.Request{ID: "z", View: store.AnyView, BalanceFactor: 2})
	require.Equal(t, store.UnknownNamespace, outcome)
	require.Equal(t, "0", b.do1(t, "ZCARD", b.candidates()))
	removed, more, err := b.sweeping().sweep(t.Context(), []bucketKeys{b.bucketKeys})
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, 2, removed)
}

// One run of a script does little, however many have lapsed.
func TestResolveGetsPastManyLapsedSessions(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	const gone = 80
	for i := range gone {
		b.candidate(t, fmt.Sprint("gone", i), float64(i))
	}
	b.candidate(t, "lives", 0.5)
	for i := range gone {
		b.lapse(t, fmt.Sprint("gone", i))
	}
	req := store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 2}
	require.Zero(t, b.resolving(t, 0, req)[0].int(), "it is to be asked again")
	outcome, sid := b.resolve(t, req)
	require.Equal(t, store.Placed, outcome)
	require.Equal(t, "lives", sid)

	b.lapse(t, "lives")
	req.ID = "y"
	outcome, _ = b.resolve(t, req)
	require.Equal(t, store.UnknownNamespace, outcome)
	require.Equal(t, "0", b.do1(t, "ZCARD", b.sessions()))
}

func TestWhereAllHaveLapsedTheyAreClearedTogether(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	for i := range clearTogether + 1 {
		b.candidate(t, fmt.Sprint("gone", i), float64(i))
		b.lapse(t, fmt.Sprint("gone", i))
	}
	req := store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 2}
	a := b.resolving(t, 0, req)[0]
	require.Zero(t, a.int())
	require.NoError(t, b.clear(t.Context(), req, a.text()))
	require.Equal(t, "0", b.do1(t, "ZCARD", b.sessions()))
}

func TestQuarantineBeginsAnewWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.candidate(t, "s", 1)
	future := time.Now().Add(24 * time.Hour).UnixMilli()
	b.do1(t, "HSET", b.meta(), "quarantine", strconv.FormatInt(future, 10), "quarantined", "5000")
	left, err := b.Quarantine(t.Context())
	require.NoError(t, err)
	require.Zero(t, left, "no namespace is registered")
	res, err := b.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.Equal(t, store.Result{Outcome: store.Quarantined, Left: 5 * time.Second, Begun: true}, res)
}
