package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// gated is a constructor that waits until its gate is opened, or its instance ends.
type gated struct {
	gate        chan struct{}
	constructed atomic.Int64
	running     atomic.Int64
	most        atomic.Int64
	ended       atomic.Int64
}

func newGated() *gated { return &gated{gate: make(chan struct{})} }

func (g *gated) construct(inst *Instance) (http.Handler, error) {
	g.constructed.Add(1)
	g.most.Store(max(g.most.Load(), g.running.Add(1)))
	defer g.running.Add(-1)
	select {
	case <-g.gate:
		return echo(inst)
	case <-inst.Context().Done():
		g.ended.Add(1)
		return nil, context.Cause(inst.Context())
	}
}

func TestRacingFirstRequestsShareOneActivation(t *testing.T) {
	t.Parallel()
	var g *gated
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		var all []*pending
		for range 50 {
			all = append(all, h.beginGet("/c/1"))
		}
		other := h.beginGet("/c/2")
		require.EqualValues(t, 2, g.constructed.Load())
		h.after(time.Hour) // a constructor may take as long as it takes
		for _, p := range all {
			require.False(t, p.ended())
		}
		close(g.gate)
		synctest.Wait()
		for _, p := range append(all, other) {
			require.True(t, p.ended())
			require.Equal(t, http.StatusOK, p.rec.Code)
		}
		require.EqualValues(t, 2, g.constructed.Load())
		require.EqualValues(t, 2, h.w.Stats().Namespaces["/c"].Activations)
	})
}

func TestAFailedActivationFailsItsRequestsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fail func() (http.Handler, error)
		want int
	}{
		"error":      {func() (http.Handler, error) { return nil, errors.New("no store") }, http.StatusServiceUnavailable},
		"no handler": {func() (http.Handler, error) { return nil, nil }, http.StatusServiceUnavailable},
		"panic":      {func() (http.Handler, error) { panic("mine") }, http.StatusInternalServerError},
		"goexit":     {func() (http.Handler, error) { runtime.Goexit(); return nil, nil }, http.StatusInternalServerError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gate chan struct{}
			var closed, tasks atomic.Int64
			broken := true
			host := func(inst *Instance) (http.Handler, error) {
				if !broken {
					return echo(inst)
				}
				inst.OnClose(func(context.Context) error { closed.Add(1); return nil })
				inst.Go(func(ctx context.Context) {
					<-ctx.Done()
					if errors.Is(context.Cause(ctx), ErrActivation) {
						tasks.Add(1)
					}
				})
				<-gate
				return tc.fail()
			}
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				gate = make(chan struct{})
				h.start()
				a, b := h.beginGet("/c/1"), h.beginGet("/c/1")
				close(gate)
				synctest.Wait()
				for _, p := range []*pending{a, b} {
					require.True(t, p.ended())
					require.Equal(t, tc.want, p.rec.Code)
					require.Empty(t, p.rec.Header().Get(wire.HeaderRefusal))
					require.NotContains(t, p.rec.Body.String(), "store", "internals go to the log")
				}
				require.False(t, h.live("/c", "1"))
				require.EqualValues(t, 1, closed.Load(), "what was opened is closed")
				require.EqualValues(t, 1, tasks.Load())
				require.Empty(t, h.pb.to(wire.PathRelease), "the placement stays")
				require.Zero(t, h.w.Stats().Namespaces["/c"].Activations)
				require.Zero(t, h.w.Stats().Namespaces["/c"].Evictions)
				broken = false
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "the next request tries again")
			})
		})
	}
}

func TestActivationsAreBoundedAndTheQueueIsShort(t *testing.T) {
	t.Parallel()
	var g *gated
	opts := Options{MaxConcurrentActivations: 2}
	inBubble(t, opts, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		running := []*pending{h.beginGet("/c/1"), h.beginGet("/c/2")}
		first := h.beginGet("/c/queued")
		h.after(600 * time.Millisecond)
		second := h.beginGet("/c/queued")
		require.EqualValues(t, 2, g.constructed.Load())
		h.after(400 * time.Millisecond)
		for _, p := range []*pending{first, second} {
			require.True(t, p.ended(), "the id is given up for all who wait for it")
			refused(t, p.rec, wire.RefusalActivationQueue)
		}
		require.False(t, running[0].ended(), "what has begun may take longer")
		require.False(t, h.live("/c", "queued"))

		// It was given up: the placement is never served, whoever asks late.
		close(g.gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, running[0].rec.Code)
		require.Equal(t, http.StatusOK, running[1].rec.Code)
		refused(t, h.get("/c/queued"), wire.RefusalReleasedEpoch)
		require.EqualValues(t, 2, g.constructed.Load())
		require.EqualValues(t, 2, g.most.Load())
		h.epoch++
		require.Equal(t, http.StatusOK, h.get("/c/queued").Code)
	})
}

func TestAQueuedActivationBeginsWhenASlotIsFree(t *testing.T) {
	t.Parallel()
	opts := Options{MaxConcurrentActivations: 3}
	var most, running atomic.Int64
	host := func(inst *Instance) (http.Handler, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		<-time.After(100 * time.Millisecond)
		return echo(inst)
	}
	inBubble(t, opts, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		var all []*pending
		for i := range 30 {
			all = append(all, h.beginGet(fmt.Sprintf("/c/%d", i)))
		}
		h.after(time.Second)
		for _, p := range all {
			require.Equal(t, http.StatusOK, p.rec.Code)
		}
		require.EqualValues(t, 3, most.Load())
	})
}

func TestCapacityIsRefusedBeforeTheConstructorRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{MaxInstances: 2}, map[string]Constructor{"/c": working, "/d": working}, func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.Equal(t, http.StatusOK, h.get("/d/1").Code)
		refused(t, h.get("/c/2"), wire.RefusalCapacity)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		h.w.dir.abort(key{"/d", "1"}, errOwnAbort)
		synctest.Wait()
		refused(t, h.get("/c/2"), wire.RefusalReleasedEpoch)
		h.epoch++
		require.Equal(t, http.StatusOK, h.get("/c/2").Code)
	})
}

// A client that gives up while it waits takes nothing with it.
func TestAClientThatLeavesDoesNotStopTheActivation(t *testing.T) {
	t.Parallel()
	var g *gated
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		ctx, cancel := context.WithCancel(t.Context())
		gone := h.begin(h.request(http.MethodGet, "/c/1").WithContext(ctx))
		stays := h.beginGet("/c/1")
		cancel()
		synctest.Wait()
		require.True(t, gone.ended())
		require.NotEqual(t, http.StatusOK, gone.rec.Code)
		close(g.gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, stays.rec.Code)
		h.after(300 * time.Second)
		require.False(t, h.live("/c", "1"), "and it is evicted like any other")
	})
}

func TestAnAbortDuringTheActivationEndsTheConstructor(t *testing.T) {
	t.Parallel()
	var g *gated
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		p := h.beginGet("/c/1")
		h.w.dir.abort(key{"/c", "1"}, errDuplicate)
		synctest.Wait()
		require.True(t, p.ended())
		refused(t, p.rec, wire.RefusalClosing)
		require.EqualValues(t, 1, g.ended.Load())
		require.False(t, h.live("/c", "1"))
		require.Len(t, h.pb.to(wire.PathRelease), 1)
		require.Zero(t, h.w.Stats().Namespaces["/c"].Activations)
	})
}

func TestAConstructorThatIgnoresItsEndKeepsItsID(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	host := func(inst *Instance) (http.Handler, error) { <-gate; return echo(inst) }
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		p := h.beginGet("/c/1")
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.after(time.Minute)
		refused(t, p.rec, wire.RefusalClosing)
		require.Empty(t, h.pb.to(wire.PathRelease))
		require.True(t, h.logged("instance does not end: something of it ignores its context"))
		close(gate)
		synctest.Wait()
		require.False(t, h.live("/c", "1"))
	})
}

// A request that waits is let in by what holds when the wait is over.
func TestALeaseThatEndsDuringTheActivationServesNobody(t *testing.T) {
	t.Parallel()
	var g *gated
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		p := h.beginGet("/c/1")
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(15 * time.Second)
		close(g.gate)
		synctest.Wait()
		require.True(t, p.ended())
		refused(t, p.rec, wire.RefusalExpired)
	})
}
