package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var choiceRules = []rule{
	{"a claim chooses as store.Choose does", claimsAsChooseDoes},
	{"a session that is not active takes nothing", inactiveTakesNothing},
	{"a heartbeat activates", heartbeatActivates},
	{"each placement takes one unit of headroom, not below zero", headroomFalls},
	{"headroom is what is left in all buckets together", headroomOfAllBuckets},
	{"a session without headroom stays a candidate", zeroHeadroomTakes},
	{"a degraded session takes nothing and keeps what it has", degradedTakesNothing},
	{"a session that drains by itself takes nothing and keeps what it has", drainingTakesNothing},
	{"draining at registration counts", drainingFromTheStart},
}

// someHeadroom returns a figure that a worker might report, often one that is
// hard to compare, to print or to subtract from.
func someHeadroom(rng *rand.Rand) float64 {
	some := []float64{0, 0, 1, 1, 0.1, 2.5, 7, 7, 1 << 53, 1e18, math.MaxFloat64, rng.Float64() * 100, rng.ExpFloat64() * 1e6}
	return some[rng.IntN(len(some))]
}

// claimsAsChooseDoes compares the store's choice with the pure function's, over
// random candidates, preferences, guards, exclusions and dice.
func claimsAsChooseDoes(t *testing.T, f Fixture) {
	const cases, workers = 400, 6
	d := ready(t, f, counters)
	rng := rand.New(rand.NewPCG(9, 3)) // cases, not secrets
	sessions := make([]string, workers)
	for i := range sessions {
		sessions[i] = d.join(t, fmt.Sprintf("client-%d", i))
	}
	outcomes := map[store.Outcome]int{}
	for i := range cases {
		var candidates []store.Candidate
		for j, session := range sessions {
			b := store.Beat{SessionID: session, Headroom: someHeadroom(rng), Draining: rng.IntN(3) == 0}
			_, err := d.Heartbeat(t.Context(), b)
			require.NoError(t, err)
			if !b.Draining {
				candidates = append(candidates, store.Candidate{
					SessionID: session, ClientID: fmt.Sprintf("client-%d", j), Headroom: b.Headroom,
				})
			}
		}
		slices.SortFunc(candidates, store.Compare)
		view := d.view(t)
		slices.SortFunc(view.Candidates, store.Compare)
		require.ElementsMatch(t, candidates, view.Candidates)

		req := request(counters, fmt.Sprintf("id-%d", i))
		for j := range req.Dice {
			req.Dice[j] = rng.Uint32() >> 1
		}
		req.BalanceFactor = []float64{1, 1.5, 2, 100, 1e300}[rng.IntN(5)]
		switch rng.IntN(4) {
		case 0:
			req.Preferred = "no such session"
		case 1, 2:
			req.Preferred = sessions[rng.IntN(workers)]
		}
		if rng.IntN(2) == 0 {
			req.View = view.Version
		}
		if rng.IntN(3) == 0 {
			out := rng.IntN(workers)
			req.Refused = &store.Refused{SessionID: sessions[out], ClientID: fmt.Sprintf("client-%d", out), Epoch: 1}
			candidates = slices.DeleteFunc(candidates, func(c store.Candidate) bool { return c.ClientID == req.Refused.ClientID })
		}
		res := d.ask(t, req)
		outcomes[res.Outcome]++
		if len(candidates) == 0 {
			require.Equal(t, store.NoCandidate, res.Outcome)
			continue
		}
		require.Equal(t, store.Placed, res.Outcome)
		want := candidates[store.Choose(candidates, req.Preferred, req.BalanceFactor, req.Dice)]
		require.Equal(t, want.SessionID, res.SessionID, "case %d of %+v: %+v", i, candidates, req)
	}
	require.Greater(t, outcomes[store.Placed], cases/2, "the cases are no good")
}

func inactiveTakesNothing(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	r := registration("a")
	_, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	require.False(t, d.session(t, r.SessionID).Active)
	require.Empty(t, d.view(t).Candidates)
	req := request(counters, "x")
	req.Preferred = r.SessionID
	require.Equal(t, store.NoCandidate, d.ask(t, req).Outcome)

	// What else is said of it does not activate it.
	require.NoError(t, d.SetDegraded(t.Context(), r.SessionID, true))
	require.NoError(t, d.SetDegraded(t.Context(), r.SessionID, false))
	d.drain(t, "a", nil)
	require.NoError(t, d.Undrain(t.Context(), "a"))
	require.Equal(t, store.NoCandidate, d.ask(t, req).Outcome)

	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	require.True(t, d.session(t, r.SessionID).Active)
	require.Equal(t, store.Placed, d.ask(t, req).Outcome)
	require.NoError(t, d.Activate(t.Context(), r.SessionID), "once more is no error")
	require.ErrorIs(t, d.Activate(t.Context(), "no such session"), store.ErrNoSession)
}

func heartbeatActivates(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	r := registration("a")
	_, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	d.beat(t, r.SessionID)
	require.True(t, d.session(t, r.SessionID).Active)
	require.Equal(t, store.Placed, d.resolve(t, counters, "x").Outcome)
}

func headroomFalls(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a", headroom(2.5))
	other := d.node(f.LeaseTTL)
	for i, want := range []float64{1.5, 0.5, 0, 0} {
		id := fmt.Sprintf("x%d", i)
		require.Equal(t, store.Placed, d.resolve(t, counters, id).Outcome)
		require.Equal(t, store.Owned, d.resolve(t, counters, id).Outcome, "takes nothing")
		view, err := other.Candidates(t.Context(), counters, "any")
		require.NoError(t, err)
		require.Equal(t, []store.Candidate{{SessionID: session, ClientID: "a", Headroom: want}}, view.Candidates)
		require.InDelta(t, want, d.session(t, session).Headroom, 1e-9)
	}
	_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: 7})
	require.NoError(t, err)
	require.Equal(t, []store.Candidate{{SessionID: session, ClientID: "a", Headroom: 7}}, d.view(t).Candidates)
	require.InDelta(t, 7, d.session(t, session).Headroom, 1e-9)
}

func headroomOfAllBuckets(t *testing.T, f Fixture) {
	d := ready(t, f, counters, "/others")
	session := d.join(t, "a", serving(counters, "/others"), headroom(5))
	left := func(namespace string) float64 {
		view, err := d.Candidates(t.Context(), namespace, "any")
		require.NoError(t, err)
		require.Len(t, view.Candidates, 1)
		return view.Candidates[0].Headroom
	}
	for _, id := range []string{"x", "y", "z"} {
		d.place(t, counters, id, session)
	}
	d.place(t, "/others", "x", session)
	require.InDelta(t, 1, d.session(t, session).Headroom, 1e-9)
	// A bucket knows its own placements.
	require.InDelta(t, 2, left(counters), 1e-9)
	require.InDelta(t, 4, left("/others"), 1e-9)
	d.place(t, "/others", "y", session)
	d.place(t, "/others", "z", session)
	require.Zero(t, d.session(t, session).Headroom, "never below zero")
}

func zeroHeadroomTakes(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	d.join(t, "a", headroom(0))
	require.Equal(t, store.Placed, d.resolve(t, counters, "x").Outcome)
}

func degradedTakesNothing(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	d.place(t, counters, "kept", session)
	require.False(t, d.beat(t, session).Degraded)

	require.NoError(t, d.SetDegraded(t.Context(), session, true))
	require.True(t, d.session(t, session).Degraded)
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	require.Equal(t, store.Owned, d.resolve(t, counters, "kept").Outcome)
	require.True(t, d.beat(t, session).Degraded, "a heartbeat alone restores nothing")
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	healthy := d.join(t, "b")
	require.Equal(t, healthy, d.resolve(t, counters, "x").SessionID)

	require.NoError(t, d.SetDegraded(t.Context(), session, false))
	require.False(t, d.beat(t, session).Degraded)
	d.place(t, counters, "y", session)
	require.ErrorIs(t, d.SetDegraded(t.Context(), "no such session", true), store.ErrNoSession)
}

func drainingTakesNothing(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	d.place(t, counters, "kept", session)
	ans, err := d.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample, Draining: true})
	require.NoError(t, err)
	require.False(t, ans.Drain.Draining, "that is the operator's")
	require.True(t, d.session(t, session).Draining)
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	require.Equal(t, store.Owned, d.resolve(t, counters, "kept").Outcome)
	d.beat(t, session)
	require.Equal(t, store.Placed, d.resolve(t, counters, "x").Outcome)
}

func drainingFromTheStart(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a", func(r *store.Registration) { r.Draining = true })
	require.True(t, d.session(t, session).Draining)
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
}
