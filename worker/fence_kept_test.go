package worker

import (
	"runtime"
	"strconv"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

// An instance that lives for long, of which only a stream is left, keeps the fence
// that it was let in by. That one is forgotten like the others, and must not hold on
// to all those that stood behind it in the queue since.
func TestAForgottenFenceThatIsKeptKeepsNoOthers(t *testing.T) {
	t.Parallel()
	const lifetime = 30 * time.Second
	f := newFences(func() time.Duration { return lifetime / 2 })
	now := time.Hour
	kept, ref := f.admitBy(nil, key{"/c", "kept"}, 1, now)
	require.Nil(t, ref)
	next, _ := f.admitBy(nil, key{"/c", "next"}, 1, now)
	behind := weak.Make(next)
	next = nil
	for i := range 10 {
		now += lifetime + 1
		require.Nil(t, f.admit(key{"/c", strconv.Itoa(i)}, 1, now))
	}
	require.True(t, kept.forgotten)
	require.Len(t, f.byID, 1)
	runtime.GC()
	require.Nil(t, behind.Value(), "it is nobody's any more")
	runtime.KeepAlive(kept)
	runtime.KeepAlive(f)
}
