package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var togetherRules = []rule{
	{"ids that are asked for at the same time go where they would in turn", togetherAsInTurn},
	{"of ids that are asked for at the same time each is counted once", togetherCounted},
	{"who asks for an id under two views at the same time hears of one placement", togetherUnderTwoViews},
}

// resolveAll asks for all at the same time.
func (d *directory) resolveAll(t *testing.T, reqs []store.Request) []store.Result {
	t.Helper()
	results, errs := make([]store.Result, len(reqs)), make([]error, len(reqs))
	var all sync.WaitGroup
	for i, req := range reqs {
		all.Go(func() { results[i], errs[i] = d.Resolve(t.Context(), req) })
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return results
}

// togetherAsInTurn: with one preference and two workers that never have as much as
// each other when the dice are thrown, it does not matter which id comes first.
func togetherAsInTurn(t *testing.T, f Fixture) {
	const ids = 120
	d := ready(t, f, counters)
	model := []store.Candidate{{SessionID: d.join(t, "a", headroom(64)), Headroom: 64}, {SessionID: d.join(t, "b", headroom(63.5)), Headroom: 63.5}}
	preferred := model[0].SessionID
	reqs := make([]store.Request, ids)
	want := map[string]int{}
	for i := range reqs {
		reqs[i] = request(counters, fmt.Sprint("id-", i))
		reqs[i].Preferred, reqs[i].Dice = preferred, store.Dice{uint32(i), uint32(i * 7), uint32(i)}
		slices.SortFunc(model, store.Compare)
		chosen := &model[store.Choose(model, preferred, reqs[i].BalanceFactor, reqs[i].Dice)]
		want[chosen.SessionID]++
		chosen.Headroom = max(0, chosen.Headroom-1)
	}
	got, epochs := map[string]int{}, map[int64]bool{}
	for _, res := range d.resolveAll(t, reqs) {
		require.Equal(t, store.Placed, res.Outcome)
		got[res.SessionID]++
		epochs[res.Epoch] = true
	}
	require.Equal(t, want, got)
	require.Len(t, epochs, ids, "each has an epoch of its own")
	for _, c := range model {
		require.InDelta(t, c.Headroom, d.session(t, c.SessionID).Headroom, 1e-9)
	}
}

func togetherCounted(t *testing.T, f Fixture) {
	const ids, workers, full = 200, 5, 100
	d := ready(t, f, counters)
	sessions := make([]string, workers)
	for i := range sessions {
		sessions[i] = d.join(t, fmt.Sprint("client-", i), headroom(full))
	}
	view := d.view(t).Version
	reqs := make([]store.Request, ids)
	for i := range reqs {
		reqs[i] = request(counters, fmt.Sprint("id-", i))
		reqs[i].Dice = store.Dice{uint32(i), uint32(i * 7), uint32(i)}
		if i%3 > 0 {
			reqs[i].Preferred, reqs[i].View = sessions[i%workers], view
		}
	}
	got := map[string]int{}
	for i, res := range d.resolveAll(t, reqs) {
		require.Equal(t, store.Placed, res.Outcome)
		got[res.SessionID]++
		row := d.lookup(t, counters, reqs[i].ID)
		require.Equal(t, res.SessionID, row.SessionID)
		require.Equal(t, res.Epoch, row.Epoch)
	}
	counts := d.counts(t, sessions...)
	for i, session := range sessions {
		require.Equal(t, []int{got[session]}, counts[i])
		require.InDelta(t, full-got[session], d.session(t, session).Headroom, 1e-9)
	}
	for _, c := range d.view(t).Candidates {
		require.InDelta(t, full-got[c.SessionID], c.Headroom, 1e-9)
	}
}

func togetherUnderTwoViews(t *testing.T, f Fixture) {
	const ids = 40
	d := ready(t, f, counters)
	for _, client := range []string{"a", "b", "c"} {
		d.join(t, client)
	}
	view := d.view(t).Version
	var reqs []store.Request
	for i := range ids {
		req := request(counters, fmt.Sprint("id-", i))
		again := req
		again.View = view
		reqs = append(reqs, req, again)
	}
	results := d.resolveAll(t, reqs)
	for i := 0; i < len(results); i += 2 {
		require.Equal(t, results[i].SessionID, results[i+1].SessionID)
		require.Equal(t, results[i].Epoch, results[i+1].Epoch)
		require.ElementsMatch(t, []store.Outcome{store.Owned, store.Placed}, []store.Outcome{results[i].Outcome, results[i+1].Outcome})
	}
}
