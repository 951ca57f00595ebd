package worker

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/resources"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// reported returns the headroom of every attempt so far.
func reported(h *harness) (figures []any) {
	for _, path := range []string{wire.PathRegister, wire.PathHeartbeat} {
		for _, c := range h.pb.to(path) {
			figures = append(figures, c.body["headroom"])
		}
	}
	return figures
}

func TestHeadroomNeverStopsTheHeartbeat(t *testing.T) {
	t.Parallel()
	answers := []func() float64{
		func() float64 { panic("mine") },
		func() float64 { return 7.5 },
		func() float64 { return -1 },
		math.NaN,
		func() float64 { return math.Inf(1) },
		func() float64 { panic("mine") },
		func() float64 { runtime.Goexit(); return 1 },
		func() float64 { return 0 },
		func() float64 { return math.NaN() },
		func() float64 { return 1e300 },
	}
	asked := 0
	opts := Options{Headroom: func() float64 { asked++; return answers[(asked-1)%len(answers)]() }}
	inBubble(t, opts, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.after(27 * time.Second)
		require.Equal(t, []any{0.0, 7.5, 7.5, 7.5, 7.5, 7.5, 7.5, 0.0, 0.0, 1e300}, reported(h))
		require.Equal(t, 2, h.logs.FilterMessage("callback panicked").Len())
		require.Equal(t, 5, h.logs.FilterMessage("Headroom returned no finite number of at least 0").Len())
	})
}

func TestAHeadroomThatHangsDelaysOneHeartbeatAndIsNotCalledTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, release := 0, make(chan struct{})
		h := newHarness(t, Options{Headroom: func() float64 {
			if asked++; asked == 2 {
				<-release
			}
			return float64(asked)
		}}, hosting(echo))
		defer h.stop()
		h.start()
		h.after(60 * time.Second)
		require.Equal(t, 2, asked)
		at := beats(h)
		require.Len(t, at, 20)
		require.InDeltaSlice(t, []float64{4, 6, 9, 12}, at[:4], 0.001)
		require.Equal(t, 1, h.logs.FilterMessage("Headroom does not return: sending its last good answer until it does").Len())
		require.Zero(t, h.w.Stats().LeaseFlaps)
		for _, figure := range reported(h) {
			require.InDelta(t, 1, figure, 0, "the last good one")
		}

		close(release)
		h.after(9 * time.Second)
		// The late answer first. The third comes in time, unseen by any
		// heartbeat, and from then on they are fresh again.
		require.Equal(t, []any{2.0, 4.0, 5.0}, reported(h)[21:])
		require.InDeltaSlice(t, []float64{63, 66, 69}, beats(h)[20:], 0.001)
	})
}

func TestAHeadroomThatIsAlwaysSlowDelaysOneHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0.0
		h := newHarness(t, Options{Headroom: func() float64 {
			asked++
			mine := asked
			<-time.After(2 * time.Second)
			return mine
		}}, hosting(echo))
		h.start()
		h.after(12 * time.Second)
		require.InDelta(t, 1, h.pb.to(wire.PathRegister)[0].at.Seconds(), 0.001)
		require.InDeltaSlice(t, []float64{3, 6, 9, 12}, beats(h), 0.001)
		require.Equal(t, []any{0.0, 1.0, 2.0, 3.0, 4.0}, reported(h), "0 before the first answer")
		h.stop()
		h.after(2 * time.Second) // for the last call to return
	})
}

// With short intervals, a whole second would cost the lease.
func TestAHeadroomIsWaitedForNoLongerThanAThirdOfTheInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := newHarness(t, Options{
			HeartbeatInterval: 300 * time.Millisecond, Headroom: func() float64 { <-release; return 1 },
		}, hosting(echo))
		defer h.stop()
		defer close(release)
		h.start()
		h.after(650 * time.Millisecond)
		require.InDelta(t, 0.1, h.pb.to(wire.PathRegister)[0].at.Seconds(), 0.001)
		require.InDeltaSlice(t, []float64{0.3, 0.6}, beats(h), 0.001)
	})
}

func TestTheLeaseIsCountedFromAfterHeadroomAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := newHarness(t, Options{Headroom: func() float64 { <-release; return 1 }}, hosting(echo))
		defer h.stop()
		defer close(release)
		h.start()
		h.after(time.Second)
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(15*time.Second - time.Millisecond)
		require.True(t, h.w.Ready(), "sent at 1 s, for 15 s")
		h.after(time.Millisecond)
		require.False(t, h.w.Ready())
	})
}

func TestShutdownDoesNotWaitForHeadroom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ running, takes time.Duration }{
		"in the first second of the call": {500 * time.Millisecond, 0},
		"later, with a session":           {time.Minute, linger},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				h := newHarness(t, Options{Headroom: func() float64 { <-release; return 1 }}, hosting(echo))
				h.start()
				h.after(tc.running)
				began := h.since()
				require.NoError(t, h.w.Shutdown(context.Background()))
				require.Equal(t, began+tc.takes, h.since())
			})
		})
	}
}

// Two readings in a row differ little; the machine may be busy in between.
func TestByDefaultTheAvailableMemoryIsReported(t *testing.T) {
	t.Parallel()
	o := complete().withDefaults(none)
	require.Eventually(t, func() bool {
		want := float64(resources.AvailableMB("/"))
		return math.Abs(o.Headroom()-want) <= want/100
	}, 30*time.Second, time.Millisecond)
}
