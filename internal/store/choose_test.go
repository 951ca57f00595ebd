package store_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// sorted makes candidates s0, s1, … with these headrooms.
func sorted(headrooms ...float64) []store.Candidate {
	candidates := make([]store.Candidate, len(headrooms))
	for i, h := range headrooms {
		candidates[i] = store.Candidate{SessionID: fmt.Sprintf("s%d", i), ClientID: fmt.Sprintf("c%d", i), Headroom: h}
	}
	slices.SortFunc(candidates, store.Compare)
	return candidates
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		candidates []store.Candidate
		preferred  string
		factor     float64
		dice       store.Dice
		want       string
	}{
		{"the only one", sorted(0), "", 2, store.Dice{5, 6, 7}, "s0"},
		{"the only one, though not preferred", sorted(0), "s9", 2, store.Dice{}, "s0"},
		{"preferred with most headroom", sorted(1, 9), "s1", 1, store.Dice{}, "s1"},
		{"preferred exactly at the guard", sorted(5, 10), "s0", 2, store.Dice{}, "s0"},
		{"preferred just below the guard", sorted(4.99, 10), "s0", 2, store.Dice{}, "s1"},
		{"a guard of 1 asks for the most headroom", sorted(9, 10), "s0", 1, store.Dice{}, "s1"},
		{"preferred without headroom, as all others", sorted(0, 0, 0), "s1", 1, store.Dice{0, 1, 0}, "s1"},
		{"preferred without headroom loses to any", sorted(0, 0.1), "s0", 1e300, store.Dice{}, "s1"},
		{"an unknown preference counts for nothing", sorted(1, 2), "s9", 2, store.Dice{}, "s1"},
		{"a preference for nobody is none", sorted(1, 2), "", 1e300, store.Dice{}, "s1"},
		{"the better of two, drawn first", sorted(1, 2, 3), "", 2, store.Dice{2, 0, 0}, "s2"},
		{"the better of two, drawn second", sorted(1, 2, 3), "", 2, store.Dice{0, 1, 0}, "s2"},
		{"the best is not drawn", sorted(1, 2, 3), "", 2, store.Dice{0, 0, 0}, "s1"},
		{"the second draw skips the first", sorted(1, 2, 3), "", 2, store.Dice{1, 1, 0}, "s2"},
		{"dice are taken modulo", sorted(1, 2, 3), "", 2, store.Dice{3 + 1, 2 + 1, 0}, "s2"},
		{"a tie, first", sorted(1, 1), "", 2, store.Dice{0, 0, 4}, "s0"},
		{"a tie, second", sorted(1, 1), "", 2, store.Dice{0, 0, 5}, "s1"},
		{"enormous figures", sorted(1e18, math.MaxFloat64), "s0", 1e300, store.Dice{}, "s0"},
		{"enormous figures, guarded", sorted(1e18, math.MaxFloat64), "s0", 2, store.Dice{}, "s1"},
		{"the largest dice", sorted(1, 2), "", 2, store.Dice{1<<31 - 1, 1<<31 - 1, 1<<31 - 1}, "s1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			i := store.Choose(tt.candidates, tt.preferred, tt.factor, tt.dice)
			require.Equal(t, tt.want, tt.candidates[i].SessionID)
		})
	}
}

func TestCompareIsByHeadroomThenSession(t *testing.T) {
	t.Parallel()
	a := store.Candidate{SessionID: "a", ClientID: "z", Headroom: 2}
	b := store.Candidate{SessionID: "b", ClientID: "y", Headroom: 2}
	less := store.Candidate{SessionID: "c", ClientID: "x", Headroom: 1}
	require.Negative(t, store.Compare(a, b))
	require.Positive(t, store.Compare(b, a))
	require.Zero(t, store.Compare(a, a))
	require.Negative(t, store.Compare(less, a))
	require.Positive(t, store.Compare(b, less))
}

func FuzzChoose(f *testing.F) {
	figures := func(headrooms ...float64) (raw []byte) {
		for _, h := range headrooms {
			raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(h))
		}
		return raw
	}
	f.Add(figures(0), 0, 1.0, uint32(0), uint32(0), uint32(0))
	f.Add(figures(0, 0), 1, 1.0, uint32(1), uint32(1), uint32(1))
	f.Add(figures(1e18, math.MaxFloat64, 0), 2, 2.0, uint32(7), uint32(1<<31-1), uint32(1))
	f.Add(figures(math.MaxFloat64, math.MaxFloat64), 0, math.MaxFloat64, uint32(3), uint32(9), uint32(0))
	f.Add(figures(math.SmallestNonzeroFloat64, 1, 1), 9, 1.5, uint32(2), uint32(2), uint32(2))
	f.Fuzz(func(t *testing.T, raw []byte, preferred int, factor float64, d0, d1, d2 uint32) {
		var headrooms []float64
		for ; len(raw) >= 8; raw = raw[8:] {
			h := math.Float64frombits(binary.LittleEndian.Uint64(raw))
			if h >= 0 && h <= math.MaxFloat64 { // what a worker may report
				headrooms = append(headrooms, h)
			}
		}
		if len(headrooms) == 0 || !(factor >= 1) {
			return
		}
		candidates := sorted(headrooms...)
		name := fmt.Sprintf("s%d", preferred)
		dice := store.Dice{d0 >> 1, d1 >> 1, d2 >> 1}
		i := store.Choose(candidates, name, factor, dice)
		require.GreaterOrEqual(t, i, 0)
		require.Less(t, i, len(candidates))
		require.Equal(t, i, store.Choose(candidates, name, factor, dice), "it depends on nothing else")

		best := candidates[len(candidates)-1].Headroom
		for j, c := range candidates {
			if c.SessionID == name && c.Headroom*factor >= best {
				require.Equal(t, j, i, "the preferred one is within the guard")
				return
			}
		}
		// Of two different ones the better was taken: never the worst of all.
		if len(candidates) > 1 && candidates[0].Headroom < candidates[1].Headroom {
			require.NotZero(t, i)
		}
	})
}

// fill places n ids, each taking one unit, and counts them by session.
func fill(candidates []store.Candidate, n int) map[string]int {
	rng := rand.New(rand.NewPCG(1, 2)) // a fixed sequence
	got := map[string]int{}
	for range n {
		dice := store.Dice{rng.Uint32() >> 1, rng.Uint32() >> 1, rng.Uint32() >> 1}
		c := &candidates[store.Choose(candidates, "", 2, dice)]
		got[c.SessionID]++
		c.Headroom = max(0, c.Headroom-1)
		slices.SortFunc(candidates, store.Compare)
	}
	return got
}

func TestEqualWorkersShareEvenly(t *testing.T) {
	t.Parallel()
	for _, headroom := range []float64{1e6, 1100, 0, 1e18} {
		const workers, draws = 10, 10_000
		candidates := sorted(slices.Repeat([]float64{headroom}, workers)...)
		got := fill(candidates, draws)
		require.Len(t, got, workers)
		for session, n := range got {
			require.Less(t, float64(n), 1.35*draws/workers, "%s of those with %g", session, headroom)
		}
	}
}

func TestMoreHeadroomGetsMore(t *testing.T) {
	t.Parallel()
	candidates := sorted(300, 300, 300, 300, 300, 100, 100, 100, 100, 100)
	got := fill(candidates, 500)
	roomy := got["s0"] + got["s1"] + got["s2"] + got["s3"] + got["s4"]
	require.Greater(t, roomy, 2*(500-roomy))
}
