package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var quarantineRules = []rule{
	{"the first placement attempt begins a quarantine of one lease", quarantineRuns},
	{"a bucket that has placed is never in quarantine again", quarantineOnce},
	{"an attempt without a candidate begins the quarantine", quarantineWithoutCandidate},
	{"what is no placement attempt begins no quarantine", quarantineNotBegun},
	{"reclaiming neither minds, nor begins, nor ends a quarantine", quarantineReclaim},
	{"a refusal during the quarantine frees the row", quarantineRefusal},
	{"the quarantine comes before a stale view", quarantineBeforeStale},
	{"each bucket has a quarantine of its own, and the longest one is told", quarantinePerBucket},
}

func (d *directory) quarantine(t *testing.T) time.Duration {
	t.Helper()
	left, err := d.Quarantine(t.Context())
	require.NoError(t, err)
	return left
}

// attempt resolves as a node whose quarantines last Fixture.LeaseTTL.
func (d *directory) attempt(t *testing.T, namespace, id string) store.Result {
	t.Helper()
	res, err := d.lapsing.Resolve(t.Context(), request(namespace, id))
	require.NoError(t, err)
	return res
}

func (d *directory) refusesToPlace(t *testing.T, namespace, id string) (left time.Duration) {
	t.Helper()
	res := d.attempt(t, namespace, id)
	require.Equal(t, store.Quarantined, res.Outcome)
	require.Greater(t, res.Left, time.Duration(0))
	require.LessOrEqual(t, res.Left, d.LeaseTTL)
	return res.Left
}

func quarantineRuns(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a")
	require.Zero(t, d.quarantine(t))
	first := d.refusesToPlace(t, counters, "x")
	told := d.quarantine(t)
	require.Greater(t, told, time.Duration(0))
	require.LessOrEqual(t, told, first)
	d.free(t, counters, "x")

	d.Advance(t, f.LeaseTTL/4)
	require.LessOrEqual(t, d.refusesToPlace(t, counters, "y"), first-f.LeaseTTL/5, "later attempts begin nothing")
	d.Advance(t, f.LeaseTTL)
	require.Equal(t, store.Placed, d.attempt(t, counters, "x").Outcome)
	require.Equal(t, store.Placed, d.attempt(t, counters, "y").Outcome)
	require.Zero(t, d.quarantine(t))
}

func quarantineOnce(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	require.Equal(t, store.UnknownNamespace, d.attempt(t, counters, "x").Outcome)
	for range 3 {
		session := d.join(t, "a")
		require.Equal(t, store.Placed, d.attempt(t, counters, "x").Outcome)
		require.NoError(t, d.Deregister(t.Context(), session))
	}
	require.Zero(t, d.quarantine(t))
}

func quarantineWithoutCandidate(t *testing.T, f Fixture) {
	d := empty(f)
	r := registration("a")
	_, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	d.refusesToPlace(t, counters, "x")
	d.Advance(t, f.LeaseTTL)
	require.Equal(t, store.NoCandidate, d.attempt(t, counters, "x").Outcome)
	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	require.Equal(t, store.Placed, d.attempt(t, counters, "x").Outcome)
}

func quarantineNotBegun(t *testing.T, f Fixture) {
	d := empty(f)
	require.Equal(t, store.UnknownNamespace, d.attempt(t, counters, "x").Outcome)
	session := d.join(t, "a")
	require.NoError(t, d.Deregister(t.Context(), session))
	require.Equal(t, store.UnknownNamespace, d.attempt(t, counters, "x").Outcome)

	session = d.join(t, "a", listing(counters, "held"))
	d.beat(t, session)
	d.view(t)
	d.free(t, counters, "x")
	require.Equal(t, store.Owned, d.attempt(t, counters, "held").Outcome)
	require.True(t, d.release(t, counters, "held", store.Result{SessionID: session}))
	_, _, err := d.Rows(t.Context(), counters, "", 10)
	require.NoError(t, err)
	require.Zero(t, d.quarantine(t))
	d.Advance(t, f.LeaseTTL)
	d.refusesToPlace(t, counters, "x")
}

func quarantineReclaim(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", listing(counters, "before"))
	require.Zero(t, d.quarantine(t))
	d.refusesToPlace(t, counters, "x")
	session := d.join(t, "b", listing(counters, "during"))
	for _, id := range []string{"before", "during"} {
		require.Equal(t, store.Owned, d.attempt(t, counters, id).Outcome)
	}
	d.refusesToPlace(t, counters, "x")
	require.True(t, d.release(t, counters, "during", store.Result{SessionID: session}))
	d.refusesToPlace(t, counters, "during")
}

func quarantineRefusal(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a", listing(counters, "x"))
	d.join(t, "b")
	req := request(counters, "x")
	req.Refused = &store.Refused{SessionID: session, ClientID: "a", Epoch: d.lookup(t, counters, "x").Epoch}
	res, err := d.lapsing.Resolve(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, store.Quarantined, res.Outcome)
	d.free(t, counters, "x")
	require.Greater(t, d.quarantine(t), time.Duration(0))
}

func quarantineBeforeStale(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a")
	req := request(counters, "x")
	req.Preferred, req.View = session, -2
	res, err := d.lapsing.Resolve(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, store.Quarantined, res.Outcome)
	require.Greater(t, d.quarantine(t), time.Duration(0))
}

func quarantinePerBucket(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", serving(counters, "/others"))
	d.refusesToPlace(t, counters, "x")
	d.Advance(t, f.LeaseTTL)
	require.Zero(t, d.quarantine(t))
	require.Equal(t, store.Placed, d.attempt(t, counters, "x").Outcome)
	left := d.refusesToPlace(t, "/others", "x")
	told := d.quarantine(t)
	require.Greater(t, told, time.Duration(0))
	require.LessOrEqual(t, told, left)
	require.Equal(t, store.Placed, d.attempt(t, counters, "y").Outcome)
}
