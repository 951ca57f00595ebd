package worker

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// closings is when instances closed, by id, since the drain began.
type closings map[string]time.Duration

// pacedHost has instances that stream at /stream, work at /work until told not
// to, and note when they close.
func pacedHost(h **harness, began *time.Duration, ends closings) Constructor {
	return func(inst *Instance) (http.Handler, error) {
		inst.OnClose(func(context.Context) error {
			(*h).w.dir.mu.Lock()
			defer (*h).w.dir.mu.Unlock()
			ends[inst.ID()] = (*h).since() - *began
			return nil
		})
		return serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/stream":
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case "/work":
				inst.Go(func(ctx context.Context) { pause(ctx, 7*time.Second) })
			case "/forever":
				inst.Go(untilDone)
			}
		})(inst)
	}
}

func (c closings) perSecond(until int) []int {
	counts := make([]int, until)
	for _, at := range c {
		counts[min(int(at/time.Second), until-1)]++
	}
	return counts
}

// A deploy is no stampede: so many ids a second and no more have to be activated
// elsewhere.
func TestADrainClosesInstancesAtItsRate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate     float64
		deadline time.Duration
		count    int
		want     []int // in each second
	}{
		"there is time":          {10, time.Minute, 45, []int{10, 10, 10, 10, 5}},
		"there is no end":        {10, NoDeadline, 45, []int{10, 10, 10, 10, 5}},
		"slower than one":        {0.5, time.Minute, 3, []int{1, 0, 1, 0, 1}},
		"the deadline is near":   {2, 10 * time.Second, 90, []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 0}},
		"no rate":                {0, time.Minute, 45, []int{45}},
		"no time":                {10, 0, 45, []int{45}},
		"a rate above the count": {1000, time.Minute, 45, []int{45}},
	} {
		for who, order := range map[string]func(h *harness){
			"its own": func(h *harness) { go func() { _ = h.w.Drain(h.t.Context(), tc.deadline) }() },
			"the operator's": func(h *harness) {
				h.w.dir.setDrain(operatorsDrain, drainWithin(h.now().mono, tc.deadline))
			},
		} {
			t.Run(name+", "+who, func(t *testing.T) {
				t.Parallel()
				var of *harness
				var began time.Duration
				ends := closings{}
				inBubble(t, Options{DrainRate: tc.rate}, hosting(pacedHost(&of, &began, ends)), func(t *testing.T, h *harness) {
					of = h
					h.step(age, 0)
					h.start()
					for i := range tc.count {
						require.Equal(t, http.StatusOK, h.get(fmt.Sprintf("/c/%d", i)).Code)
					}
					began = h.since()
					order(h)
					h.after(30 * time.Second)
					require.Len(t, ends, tc.count)
					require.Equal(t, tc.want, ends.perSecond(len(tc.want)))
					require.Zero(t, h.w.dir.remaining())
				})
			})
		}
	}
}

func TestADrainAtARateTakesWhatNobodyUsesFirst(t *testing.T) {
	t.Parallel()
	var of *harness
	var began time.Duration
	ends := closings{}
	inBubble(t, Options{DrainRate: 1}, hosting(pacedHost(&of, &began, ends)), func(t *testing.T, h *harness) {
		of = h
		h.start()
		h.get("/c/works-on/forever")
		h.beginGet("/c/streams/stream")
		for _, id := range []string{"oldest", "older", "newest"} {
			h.get("/c/" + id)
			h.after(time.Second)
		}
		h.get("/c/works/work")
		began = h.since()
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), 20*time.Second) }()
		h.after(time.Millisecond)
		refused(t, h.get("/c/new"), wire.RefusalDraining)
		require.Equal(t, http.StatusOK, h.get("/c/newest").Code, "what waits for its turn is served")
		h.after(2500 * time.Millisecond)
		require.Equal(t, http.StatusOK, h.get("/c/streams").Code)
		require.NoError(t, <-drained)
		require.Equal(t, closings{
			"oldest": 0, "older": time.Second, "newest": 2 * time.Second, "streams": 3 * time.Second,
			"works": 7 * time.Second, "works-on": 20 * time.Second,
		}, ends)
	})
}

// What is ordered while a drain goes on at its rate.
func TestAPacedDrainThatChanges(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		then func(t *testing.T, h *harness)
		want []time.Duration // of ten instances
	}{
		"nothing": {func(*testing.T, *harness) {}, inSeconds(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)},
		"ordered again and again": {func(_ *testing.T, h *harness) {
			for range 10 {
				h.order(time.Minute)
			}
		}, inSeconds(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)},
		"a nearer deadline": {func(_ *testing.T, h *harness) { h.order(2 * time.Second) },
			inSeconds(0, 1, 2, 2.757, 3.014, 3.271, 3.529, 3.786, 4.043, 4.3)},
		"revoked": {func(t *testing.T, h *harness) {
			h.w.Undrain()
			h.after(time.Minute)
			require.Equal(t, 7, h.w.dir.remaining())
			h.order(time.Minute)
		}, inSeconds(0, 1, 2, 62.5, 63.5, 64.5, 65.5, 66.5, 67.5, 68.5)},
		"one is wound down by itself": {func(_ *testing.T, h *harness) { h.w.dir.windDown(key{"/c", "9"}, time.Minute) },
			inSeconds(0, 1, 2, 2.5, 3, 4, 5, 6, 7, 8)},
		"shut down": {func(_ *testing.T, h *harness) { h.w.dir.refuseAll(errShutdown) },
			inSeconds(0, 1, 2, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5, 2.5)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var of *harness
			var began time.Duration
			ends := closings{}
			inBubble(t, Options{DrainRate: 1}, hosting(pacedHost(&of, &began, ends)), func(t *testing.T, h *harness) {
				of = h
				h.start()
				for i := range 10 {
					h.get(fmt.Sprintf("/c/%d", i))
				}
				began = h.since()
				h.order(time.Minute)
				h.after(2500 * time.Millisecond)
				tc.then(t, h)
				h.after(90 * time.Second)
				var at []time.Duration
				for _, end := range ends {
					at = append(at, end)
				}
				slices.Sort(at)
				for i := range at {
					at[i] = at[i].Round(time.Millisecond)
				}
				require.Equal(t, tc.want, at)
			})
		})
	}
}

func inSeconds(of ...float64) (list []time.Duration) {
	for _, s := range of {
		list = append(list, time.Duration(s*float64(time.Second)))
	}
	return list
}

// order drains the worker and does not wait.
func (h *harness) order(deadline time.Duration) {
	ctx, cancel := context.WithCancel(h.t.Context())
	cancel()
	require.ErrorIs(h.t, h.w.Drain(ctx, deadline), context.Canceled)
}

// An instance that idles out anyway does not wait for its turn.
func TestAPacedDrainKeepsNothingBeyondItsIdleTimeout(t *testing.T) {
	t.Parallel()
	var of *harness
	var began time.Duration
	ends := closings{}
	inBubble(t, Options{DrainRate: 0.01, IdleTimeout: 10 * time.Second}, hosting(pacedHost(&of, &began, ends)), func(t *testing.T, h *harness) {
		of = h
		h.start()
		h.get("/c/1")
		h.get("/c/2")
		began = h.since()
		h.order(NoDeadline)
		h.after(time.Minute)
		require.Equal(t, closings{"1": 0, "2": 10 * time.Second}, ends)
	})
}

// C51: the drain that a SIGTERM starts keeps to the rate and to its deadline.
func TestServeDrainsAtItsRate(t *testing.T) {
	t.Parallel()
	var of *harness
	var began time.Duration
	ends := closings{}
	synctest.Test(t, func(t *testing.T) {
		of = newHarness(t, Options{DrainRate: 4, DrainDeadline: 10 * time.Second}, hosting(pacedHost(&of, &began, ends)))
		s := of.serve()
		for i := range 20 {
			s.get(fmt.Sprintf("/c/%d", i))
		}
		s.get("/c/0/forever")
		began = s.since()
		s.cancel()
		require.NoError(t, <-s.ended)
		require.Equal(t, 10*time.Second, ends["0"])
		require.Equal(t, []int{4, 4, 4, 4, 3, 0, 0, 0, 0, 0, 1}, ends.perSecond(11))
	})
}
