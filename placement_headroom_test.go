package pinboard

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// C54: weights that are all zero, or far apart, neither stop placements nor
// send them all to the first worker.
func TestOddHeadroomsPlaceEveryIDAndFavourNobodyByChance(t *testing.T) {
	t.Parallel()
	const ids = 300
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		workers := []*regWorker{n.ready(0, "/a"), n.ready(0, "/a"), n.ready(0, "/a")}
		place := func(round string) map[string]int {
			placed := map[string]int{}
			for i := range ids {
				rt, err := n.resolve(fmt.Sprint(round, "-", i), nil)
				require.NoError(t, err)
				placed[rt.lease.ID]++
			}
			return placed
		}
		zero := place("zero")
		for _, w := range workers {
			require.Positive(t, zero[w.session], "zero stays eligible")
			require.LessOrEqual(t, zero[w.session], ids/2)
		}
		for _, most := range []float64{1e18, 1e308} {
			workers[2].report(most)
			far := place(fmt.Sprint(most))
			require.Greater(t, far[workers[2].session], ids/2, "in two of three pairs")
			require.Equal(t, ids, far[workers[0].session]+far[workers[1].session]+far[workers[2].session])
			require.InDelta(t, most-ids, workers[2].listed()["headroom"], most/1e12)
		}
	})
}
