//go:build !race

package pinboard

import (
	"net/http"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Not parallel: it counts what the whole process allocates. What Redis is asked
// takes goroutines of its client's, so that these numbers are bounds.
func TestAllocationsOfLookUps(t *testing.T) {
	for name, limit := range map[string]struct{ hit, miss float64 }{
		"memory": {3, 20},
		"redis":  {3, 135},
	} {
		pb := measuredNode(t, stores[name](t))
		pb.look(t, "alice")
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() { pb.look(t, "alice") }), limit.hit, "hit, %s", name)
		n := 0
		require.LessOrEqual(t, testing.AllocsPerRun(200, func() {
			n++
			pb.look(t, strconv.Itoa(n))
		}), limit.miss, "miss, %s", name)
	}
}

func TestAllocationsOfAffinity(t *testing.T) {
	for _, n := range []int{10, 100, 1000} {
		all := candidates(n)
		require.Zero(t, testing.AllocsPerRun(100, func() { rendezvous("198.51.100.7", all, nil) }), n)
	}
}

func TestAllocationsOfTheHeaderCleanUp(t *testing.T) {
	r, from, buf := fromABrowser(), netip.MustParseAddr("192.0.2.1"), make([]byte, 0, 4096)
	trusted := proxies{netip.MustParsePrefix("192.0.2.0/24")}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { buf = trusted.appendFields(buf[:0], r, from, nil) }), 4.0)
	answer := anAnswer()
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { copyFields(http.Header{}, answer) }), 5.0)
}
