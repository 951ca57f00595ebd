package worker

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// age makes the monotonic clock of a bubble, which begins before the process
// did, as positive as that of any real process.
const age = 80 * 365 * 24 * time.Hour

// Who wants an instance to end is remembered apart: taking one order back leaves
// the others as they were, and the earliest deadline counts.
func TestOrdersToEndAreIndependent(t *testing.T) {
	t.Parallel()
	type step struct {
		order   string
		seconds float64
		winding bool
		left    float64 // 0: no deadline
	}
	const without = -1 // deadline
	for name, steps := range map[string][]step{
		"one own drain":            {{"own", 30, true, 30}, {"own", 60, true, 60}, {"own", 10, true, 10}, {"own ends", 0, false, 0}},
		"one own drain, no end":    {{"own", without, true, 0}, {"own", 30, true, 30}, {"own", without, true, 0}, {"own ends", 0, false, 0}},
		"one operator's drain":     {{"operator", without, true, 0}, {"operator", 30, true, 30}, {"operator", without, true, 0}, {"operator ends", 0, false, 0}},
		"one wind-down":            {{"instance", 30, true, 30}, {"instance", 60, true, 60}, {"instance", 5, true, 5}, {"instance ends", 0, false, 0}},
		"the operator ends first":  {{"own", 30, true, 30}, {"operator", 10, true, 10}, {"operator ends", 0, true, 30}, {"own ends", 0, false, 0}},
		"the worker ends first":    {{"own", 30, true, 30}, {"operator", 5, true, 5}, {"own ends", 0, true, 5}, {"operator ends", 0, false, 0}},
		"the worker ends sooner":   {{"operator", 60, true, 60}, {"own", 30, true, 30}, {"operator", 90, true, 30}, {"own ends", 0, true, 90}},
		"an echo without a bound":  {{"own", 30, true, 30}, {"operator", without, true, 30}, {"own ends", 0, true, 0}, {"operator ends", 0, false, 0}},
		"a drain beside wind-down": {{"own", 30, true, 30}, {"instance", 5, true, 5}, {"instance ends", 0, true, 30}, {"instance", 60, true, 30}, {"own ends", 0, true, 60}},
		"all three":                {{"operator", 60, true, 60}, {"own", 90, true, 60}, {"instance", 30, true, 30}, {"operator ends", 0, true, 30}, {"instance ends", 0, true, 90}, {"own ends", 0, false, 0}},
		"what was never begun":     {{"own ends", 0, false, 0}, {"operator ends", 0, false, 0}, {"instance ends", 0, false, 0}},
		"ended twice":              {{"own", 30, true, 30}, {"own ends", 0, false, 0}, {"own ends", 0, false, 0}, {"own", 7, true, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inst *Instance
			host := func(i *Instance) (http.Handler, error) { inst = i; return working(i) }
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				h.step(age, 0)
				h.start()
				h.get("/c/1")
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // orders are given, not waited for
				within := func(seconds float64) time.Duration {
					if seconds == without {
						return NoDeadline
					}
					return boundedDuration(seconds)
				}
				for i, step := range steps {
					switch step.order {
					case "own":
						require.ErrorIs(t, h.w.Drain(ctx, within(step.seconds)), context.Canceled)
					case "own ends":
						h.w.Undrain()
					case "operator":
						h.w.dir.setDrain(operatorsDrain, drainWithin(h.now().mono, within(step.seconds)))
					case "operator ends":
						h.w.dir.setDrain(operatorsDrain, drain{})
					case "instance":
						h.w.dir.windDown(inst.key, boundedDuration(step.seconds))
					case "instance ends":
						h.w.dir.resume(inst.key)
					}
					require.Equal(t, step.winding, inst.WindingDown(), "step %d", i)
					end, has := inst.EvictionDeadline()
					require.Equal(t, step.left > 0, has, "step %d", i)
					if has {
						require.Equal(t, step.left, end.Sub(h.now().wall).Seconds(), "step %d", i)
					}
				}
				// What is left of it is kept to the moment.
				last := steps[len(steps)-1]
				if last.left == 0 {
					h.after(2 * time.Minute)
					require.True(t, h.live("/c", "1"))
					return
				}
				h.after(time.Duration(last.left)*time.Second - 1)
				require.True(t, h.live("/c", "1"))
				h.after(1)
				require.False(t, h.live("/c", "1"))
			})
		})
	}
}

// The longest Duration stands for "without an end", on a clock that has run too.
func TestTheLongestDurationIsNoEnd(t *testing.T) {
	t.Parallel()
	const forever = NoDeadline
	for name, tc := range map[string]struct {
		opts  Options
		order func(h *harness)
		host  Constructor
	}{
		"idle":        {opts: Options{IdleTimeout: forever}, host: echo},
		"detached":    {opts: Options{DetachedTimeout: forever}, host: working},
		"own drain":   {host: working, order: func(h *harness) { go func() { _ = h.w.Drain(h.t.Context(), forever) }() }},
		"nearly that": {host: working, order: func(h *harness) { go func() { _ = h.w.Drain(h.t.Context(), forever-time.Hour) }() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, tc.opts, hosting(tc.host), func(t *testing.T, h *harness) {
				h.step(age, 0)
				h.start()
				require.Equal(t, http.StatusOK, h.get("/c/1").Code)
				if tc.order != nil {
					tc.order(h)
				}
				h.after(time.Hour)
				require.True(t, h.live("/c", "1"))
				require.True(t, h.w.Ready())
				require.Equal(t, tc.order != nil, h.w.Draining())
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				synctest.Wait()
				require.False(t, h.live("/c", "1"))
			})
		})
	}
}

func TestServeDrainsWithoutAnEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := func(inst *Instance) (http.Handler, error) {
			inst.Go(func(ctx context.Context) { pause(ctx, time.Hour) })
			return echo(inst)
		}
		h := newHarness(t, Options{DrainDeadline: NoDeadline}, hosting(host))
		h.step(age, 0)
		s := h.serve()
		h.get("/c/1")
		began := h.since()
		s.cancel()
		require.NoError(t, <-s.ended)
		require.Equal(t, time.Hour+linger, h.since()-began)
	})
}

// What a drain's deadline does to whoever comes, and when.
func TestADrainToTheMoment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after   time.Duration // since the drain of 8 s began
		path    string
		refused string // "" if it is served
	}{
		"a new id at once":             {0, "/c/new", wire.RefusalDraining},
		"a live id at once":            {0, "/c/1", ""},
		"a live id just before":        {8*time.Second - 1, "/c/1", ""},
		"a live id at the deadline":    {8 * time.Second, "/c/1", wire.RefusalReleasedEpoch},
		"a new id at the deadline":     {8 * time.Second, "/c/new", wire.RefusalDraining},
		"a live id when it has lapsed": {15 * time.Second, "/c/1", wire.RefusalExpired},
		"a new id when it has lapsed":  {15 * time.Second, "/c/new", wire.RefusalExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable}) // the lease is as it was
				go func() { _ = h.w.Drain(t.Context(), 8*time.Second) }()
				h.after(tc.after)
				rec := h.get(tc.path)
				if tc.refused == "" {
					require.Equal(t, http.StatusOK, rec.Code)
				} else {
					refused(t, rec, tc.refused)
				}
			})
		})
	}
}

func TestTheWindowOfAnInstanceWithoutClients(t *testing.T) {
	t.Parallel()
	const h24 = 24 * time.Hour
	for name, tc := range map[string]struct {
		window time.Duration // 0: the default
		meets  func(h *harness, inst *Instance)
		ends   time.Duration // since the first request
	}{
		"a day, if nothing is said": {0, func(*harness, *Instance) {}, h24},
		"a window of its own":       {time.Hour, func(*harness, *Instance) {}, time.Hour},
		"work that comes and goes": {time.Hour, func(h *harness, inst *Instance) {
			for range 11 {
				inst.Go(func(ctx context.Context) { pause(ctx, time.Minute) })
				h.after(5 * time.Minute)
			}
		}, time.Hour},
		"a client that comes again": {time.Hour, func(h *harness, _ *Instance) { h.after(50 * time.Minute); h.get("/c/1") }, 110 * time.Minute},
		"a stream, until it ends": {time.Hour, func(h *harness, _ *Instance) {
			ctx, leave := context.WithCancel(h.t.Context())
			h.begin(h.request(http.MethodGet, "/c/1/stream").WithContext(ctx))
			h.after(3 * time.Hour)
			require.True(h.t, h.live("/c", "1"))
			leave()
			synctest.Wait()
		}, 4 * time.Hour},
		"a refused request is none": {time.Hour, func(h *harness, _ *Instance) {
			h.after(50 * time.Minute)
			r := h.request(http.MethodGet, "/c/1")
			r.Header.Set(wire.HeaderEpoch, "x")
			require.Equal(h.t, http.StatusBadRequest, h.do(r).Code)
		}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inst *Instance
			host := func(i *Instance) (http.Handler, error) {
				inst = i
				i.Go(untilDone)
				return serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/stream" {
						w.(http.Flusher).Flush()
						<-r.Context().Done()
					}
				})(i)
			}
			inBubble(t, Options{DetachedTimeout: tc.window, HeartbeatInterval: 4 * time.Second}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				began := h.since()
				tc.meets(h, inst)
				h.after(tc.ends - (h.since() - began) - 1)
				require.True(t, h.live("/c", "1"))
				h.after(1)
				require.False(t, h.live("/c", "1"))
				require.ErrorIs(t, context.Cause(inst.Context()), errDetached)
				h.epoch++
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "the next request finds a new one")
			})
		})
	}
}
