package worker

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// What pinboard grants may be over when its answer is read: then so is the
// lease before it, and all that hangs on it.
func TestARenewalThatIsOverAlreadyEndsTheLeasesContext(t *testing.T) {
	t.Parallel()
	told := 0
	l := newLease(systemClock, &Options{LeaseBuffer: time.Second, Logger: zap.NewNop(), OnUnhealthy: func() { told++ }})
	defer l.end()
	l.renewed(systemClock(), time.Hour)
	held := l.context()
	l.renewed(systemClock(), 0)
	require.True(t, l.look().Expired)
	require.Error(t, held.Err())
	require.Equal(t, 1, l.flaps())
	require.Equal(t, 1, told)
}

// Past its deadline, an operator's drain comes with 0 s left in every answer.
func TestADrainWhoseDeadlineHasPassedIsNoNewOrder(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		var left atomic.Int64
		left.Store(5)
		h.pb.on(func(c call) (reply, bool) {
			if c.path != wire.PathHeartbeat {
				return reply{}, false
			}
			out := reply{status: http.StatusOK, body: object{"expiresInMs": 15000, "draining": true, "drainDeadline": left.Load()}}
			left.Store(max(left.Load()-3, 0))
			return out, true
		})
		h.after(time.Minute)
		require.Equal(t, 1, h.logs.FilterMessage("operator's drain: refusing new instances").Len())
		left.Store(20)
		h.after(4 * time.Second)
		require.Equal(t, 2, h.logs.FilterMessage("operator's drain: refusing new instances").Len())
	})
}

// A callback that ends its goroutine, as a failed test does, does not end the
// heartbeats with it.
func TestACallbackThatExitsItsGoroutineCostsNoLease(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"Headroom":   {Headroom: func() float64 { runtime.Goexit(); return 1 }},
		"OnRestored": {OnRestored: runtime.Goexit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, opts, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				unhealthy(h)
				h.pb.on(nil)
				h.after(30 * time.Second)
				require.True(t, h.w.Lease().Healthy)
			})
		})
	}
}
