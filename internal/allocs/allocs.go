//go:build !race && !leakcheck

package allocs

import (
	"math"
	"runtime/debug"
	"testing"
)

const (
	rounds = 5
	runs   = 100 // what happens to the process less often than this adds nothing

	// Calls is how often PerCall calls its function.
	Calls = rounds * (runs + 1)

	// Margin is for counts of what runs in several goroutines, through sockets or in
	// code of others: a bound is what was counted, and so many more. What one
	// goroutine does in code of this module is held exactly.
	Margin = 2
)

// PerCall returns how many allocations of the whole process there are for one call
// of f: the fewest of several rounds, without the fraction. So what else happens
// now and then in the process counts only if it does in each round. Garbage is not
// collected meanwhile, that pools keep what they have.
//
// No parallel test may run at the same time: it panics then. The count is logged.
func PerCall(t testing.TB, f func()) float64 {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	fewest := math.Inf(1)
	for range rounds {
		fewest = min(fewest, testing.AllocsPerRun(runs, f))
	}
	t.Logf("%.0f allocations for a call", fewest)
	return fewest
}
