package worker

import (
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func fixed(value float64) func() float64 { return func() float64 { return value } }

func TestBackoffDoublesUpToItsCapAndJittersBehindIt(t *testing.T) {
	t.Parallel()
	longest := &backoff{interval: 3 * time.Second, jitter: fixed(1)}
	shortest := &backoff{interval: 3 * time.Second, jitter: fixed(0)}
	require.Equal(t, 3*time.Second, longest.delay(), "no failure, no back-off")
	for _, want := range []float64{6, 12, 24, 30, 30, 30} {
		longest.failed()
		shortest.failed()
		require.InDelta(t, want, longest.delay().Seconds(), 1e-6)
		require.InDelta(t, want*0.3, shortest.delay().Seconds(), 1e-6)
	}
	for range 1000 {
		longest.failed()
	}
	require.InDelta(t, 30, longest.delay().Seconds(), 1e-6)
	longest.reset()
	require.Equal(t, 3*time.Second, longest.delay())
}

func TestRetryAfterReplacesTheBaseAndDoubles(t *testing.T) {
	t.Parallel()
	for header, want := range map[string][]float64{
		"2":                             {2, 4, 8, 16, 30, 30},
		"0.5":                           {0.5, 1, 2},
		"0":                             {0.05, 0.1},
		"-3":                            {0.05, 0.1},
		"1e300":                         {30, 30},
		"inf":                           {30, 30},
		"":                              {1, 2, 4},
		"soon":                          {1, 2},
		"nan":                           {1, 2},
		"Fri, 31 Dec 1999 23:59:59 GMT": {1, 2},
	} {
		b := &backoff{interval: 3 * time.Second, jitter: fixed(1)}
		for i, seconds := range want {
			b.deferBy(header)
			require.InDelta(t, seconds, b.delay().Seconds(), 1e-6, "header %q, attempt %d", header, i)
		}
		// Another kind of failure goes on from its own base.
		b.failed()
		require.InDelta(t, min(30, 3*float64(int(1)<<(len(want)+1))), b.delay().Seconds(), 1e-6, "header %q", header)
	}
}

// Whoever starts first, a worker waits for pinboard no longer than it must; a pinboard
// that answers is asked as seldom as it was before.
func TestBackoffIsShortWhileThereIsNothingToConnectTo(t *testing.T) {
	t.Parallel()
	longest := &backoff{interval: time.Second, jitter: fixed(1)}
	shortest := &backoff{interval: time.Second, jitter: fixed(0)}
	for _, want := range []float64{2, 4, 5, 5, 5, 5} {
		longest.unreachable()
		shortest.unreachable()
		require.InDelta(t, want, longest.delay().Seconds(), 1e-6)
		require.InDelta(t, want*0.3, shortest.delay().Seconds(), 1e-6)
	}
	longest.deferBy("3")
	require.InDelta(t, 3, longest.delay().Seconds(), 1e-6, "the first 503")
	longest.failed()
	require.InDelta(t, 4, longest.delay().Seconds(), 1e-6, "the second answer")
	longest.unreachable()
	require.InDelta(t, 2, longest.delay().Seconds(), 1e-6)
	longest.reset()
	require.Equal(t, time.Second, longest.delay())
}

func TestAWorkerThatStartsBeforePinboardIsThereSoonAfterIt(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"refused":   &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
		"no name":   &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "pinboard", IsNotFound: true}},
		"no answer": &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.pb.answer(wire.PathRegister, reply{err: err})
				h.start()
				h.after(2 * time.Minute)
				require.False(t, h.w.Ready())
				require.Len(t, h.pb.to(wire.PathRegister), 25)
				h.pb.answer(wire.PathRegister, reply{status: http.StatusServiceUnavailable, retryAfter: "1", body: object{"error": "probe"}})
				h.after(5 * time.Second)
				require.Equal(t, 1, h.logs.FilterMessage("registration deferred").FilterField(zap.Int("attempt", 1)).Len())
				h.pb.on(nil)
				h.after(time.Second)
				require.True(t, h.w.Ready(), "one Retry-After later")
			})
		})
	}
}

// C49: a fleet that lost its pinboard for three minutes spreads out, at the cap of
// the back-off too, and comes back spread out (fleetdm/fleet#53357,
// gravitational/teleport#6889).
func TestAFleetSpreadsItsRegistrations(t *testing.T) {
	t.Parallel()
	const clients = 200
	for name, c := range map[string]struct {
		answer reply
		cap    int // failures after which the delay is at its cap
	}{
		"bad gateway": {reply{status: http.StatusBadGateway, body: object{"error": "no"}}, 4},                          // 3·2⁴ s
		"not now":     {reply{status: http.StatusServiceUnavailable, body: object{"error": "no"}, retryAfter: "1"}, 6}, // 2⁵ s
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spreads(t, clients, c.answer, c.cap)
		})
	}
}

func spreads(t *testing.T, clients int, answer reply, capped int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		const outage = 3 * time.Minute
		fleet := make([]*harness, clients)
		for i := range fleet {
			h := newHarness(t, Options{}, hosting(echo))
			h.w.reg.backoff.jitter = rand.New(rand.NewPCG(49, uint64(i))).Float64
			h.pb.on(func(c call) (reply, bool) {
				return answer, time.Since(began) < outage
			})
			fleet[i] = h
			require.NoError(t, h.w.Start())
		}
		<-time.After(outage + 31*time.Second)
		synctest.Wait()
		delays, back := map[int]int{}, map[int]int{}
		total := 0
		for _, h := range fleet {
			attempts := h.pb.to(wire.PathRegister)
			for i := 1; i < len(attempts); i++ {
				gap := attempts[i].at - attempts[i-1].at
				require.LessOrEqual(t, gap, 30*time.Second)
				if i >= capped {
					require.GreaterOrEqual(t, gap, 9*time.Second)
					delays[int(gap.Seconds())]++
					total++
				}
			}
			require.True(t, h.w.Ready(), "every client is back within one longest delay")
			back[int(attempts[len(attempts)-1].at.Seconds())]++
			h.stop()
		}
		require.Greater(t, total, 4*clients)
		for second, n := range delays {
			require.Less(t, n, total/10, "delays of %d s at the cap", second)
		}
		require.GreaterOrEqual(t, len(delays), 21, "delays spread over 9 to 30 s")
		for second, n := range back {
			require.Less(t, n, clients/4, "registrations in second %s", strconv.Itoa(second))
		}
	})
}
