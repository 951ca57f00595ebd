//go:build !race && !leakcheck

package pinboard

import (
	"net/http"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
)

// Not parallel: it counts what the whole process allocates, the client of Redis
// included.
func TestAllocationsOfLookUps(t *testing.T) {
	for name, usual := range map[string]struct{ hit, miss float64 }{
		"memory":            {1, 15},
		"redis":             {3, 40},
		"redis, standalone": {0, 40},
	} {
		pb := measuredNode(t, stores[name](t))
		pb.look(t, "alice")
		require.LessOrEqual(t, allocs.PerCall(t, func() { pb.look(t, "alice") }), usual.hit+allocs.Margin, "hit, %s", name)
		n := 0
		require.LessOrEqual(t, allocs.PerCall(t, func() {
			n++
			pb.look(t, strconv.Itoa(n))
		}), usual.miss+allocs.Margin, "miss, %s", name)
	}
}

func TestAllocationsOfAffinity(t *testing.T) {
	for _, n := range []int{10, 100, 1000} {
		all := candidates(n)
		require.Zero(t, allocs.PerCall(t, func() { rendezvous("198.51.100.7", all, nil) }), n)
	}
}

func TestAllocationsOfTheHeaderCleanUp(t *testing.T) {
	r, from, buf := fromABrowser(), netip.MustParseAddr("192.0.2.1"), make([]byte, 0, 4096)
	trusted := proxies{netip.MustParsePrefix("192.0.2.0/24")}
	require.LessOrEqual(t, allocs.PerCall(t, func() { buf = trusted.appendFields(buf[:0], r, from, nil) }), 4.0)
	answer := anAnswer()
	require.LessOrEqual(t, allocs.PerCall(t, func() { copyFields(http.Header{}, answer) }), 3.0+allocs.Margin)
}
