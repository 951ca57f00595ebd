//go:build !race && !leakcheck

package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
	"github.com/pinboard-go/pinboard/internal/store"
)

// Not parallel: it counts what the whole process allocates, the client included.
func TestAPlacementAllocatesLittle(t *testing.T) {
	d := openCounted(t)
	d.do1(t, "HSET", d.keys.bucket("/counters", 0).meta(), "quarantine", "0")
	req := store.Request{
		Namespace: "/counters", Unless: "p.example", Preferred: d.joined(t, "a"), View: store.AnyView, BalanceFactor: 2,
	}
	ids := make([]string, allocs.Calls)
	for i := range ids {
		ids[i] = fmt.Sprint("new-", i)
	}
	var err error
	next := 0
	n := allocs.PerCall(t, func() {
		req.ID = ids[next]
		next++
		if _, failed := d.Resolve(t.Context(), req); failed != nil {
			err = failed
		}
	})
	require.NoError(t, err)
	require.LessOrEqual(t, n, 25.0+allocs.Margin)
}
