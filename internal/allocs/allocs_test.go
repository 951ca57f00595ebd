//go:build !race && !leakcheck

package allocs_test

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
)

var kept []byte

func TestAllocationsThatEachCallMakesAreCountedAndNoOthers(t *testing.T) {
	calls := 0
	each := func() {
		calls++
		kept = make([]byte, 8)
		kept = make([]byte, 8)
	}
	require.InDelta(t, 2, allocs.PerCall(t, each), 0)
	require.Equal(t, allocs.Calls, calls)

	calls = 0
	require.InDelta(t, 2, allocs.PerCall(t, func() {
		if each(); calls <= allocs.Calls/2 { // in some rounds, others than these
			for range 10 {
				kept = make([]byte, 8)
			}
		}
	}), 0)
}

func TestNoGarbageIsCollectedWhileAllocationsAreCounted(t *testing.T) {
	collections := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumGC
	}
	runtime.GC()
	before := collections()
	require.InDelta(t, 1, allocs.PerCall(t, func() { kept = make([]byte, 64<<10) }), 0)
	require.Equal(t, before, collections())
	require.Positive(t, debug.SetGCPercent(debug.SetGCPercent(100)), "it is collected again")
}
