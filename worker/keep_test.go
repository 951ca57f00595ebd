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

func TestAnIdleInstancesPlacementIsKept(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{KeepPlacementOnIdle: true}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(300 * time.Second)
		require.False(t, h.live("/c", "1"))
		require.Empty(t, h.pb.to(wire.PathRelease))
		require.Equal(t, http.StatusOK, h.get("/c/1").Code, "activated again at the same epoch")
		require.EqualValues(t, 2, h.w.Stats().Namespaces["/c"].Activations)
		require.EqualValues(t, 1, h.w.Stats().Namespaces["/c"].Evictions)
	})
}

func TestAKeptPlacementIsReleasedByAnyOtherEnd(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(h *harness, inst *Instance){
		"abort":         func(_ *harness, inst *Instance) { inst.Abort() },
		"own wind-down": func(_ *harness, inst *Instance) { inst.WindDown(time.Minute) },
		"operator": func(h *harness, _ *Instance) {
			h.pb.on(func(c call) (reply, bool) { return message("1", 5), c.path == wire.PathHeartbeat })
			h.after(3 * time.Second)
		},
		"drain": func(h *harness, _ *Instance) { require.NoError(h.t, h.w.Drain(h.t.Context(), time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inst *Instance
			host := func(i *Instance) (http.Handler, error) { inst = i; return echo(i) }
			inBubble(t, Options{KeepPlacementOnIdle: true}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				end(h, inst)
				synctest.Wait()
				require.False(t, h.live("/c", "1"))
				require.Len(t, h.pb.to(wire.PathRelease), 1)
			})
		})
	}
}

// A request that comes while an idle instance closes waits for its hooks, and
// then for a new instance; it is not sent away to a placement that is still here.
func TestARequestAtAnInstanceThatIdlesOutActivatesItAnew(t *testing.T) {
	t.Parallel()
	constructed := 0
	host := func(inst *Instance) (http.Handler, error) {
		constructed++
		inst.OnClose(func(context.Context) error { <-time.After(500 * time.Millisecond); return nil })
		return echo(inst)
	}
	inBubble(t, Options{KeepPlacementOnIdle: true}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(300 * time.Second)
		require.True(t, h.live("/c", "1"))
		waiting := h.beginGet("/c/1")
		require.False(t, waiting.ended())
		h.after(500 * time.Millisecond)
		require.True(t, waiting.ended())
		require.Equal(t, http.StatusOK, waiting.rec.Code)
		require.Equal(t, 2, constructed)
		require.Empty(t, h.pb.to(wire.PathRelease))
	})
}

// The worker is told to go while an idle instance's hooks run: then its id must
// not stay behind.
func TestAKeptPlacementIsReleasedWhenTheEndIsForcedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, force := range map[string]func(h *harness, inst *Instance){
		"abort": func(_ *harness, inst *Instance) { inst.Abort() },
		"drain": func(h *harness, _ *Instance) { require.NoError(h.t, h.w.Drain(h.t.Context(), time.Minute)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inst *Instance
			host := func(i *Instance) (http.Handler, error) {
				inst = i
				i.OnClose(func(context.Context) error { <-time.After(5 * time.Second); return nil })
				return echo(i)
			}
			inBubble(t, Options{KeepPlacementOnIdle: true}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.after(300 * time.Second)
				refused(t, h.get("/c/1"), wire.RefusalClosing) // its hooks take longer than a request waits
				force(h, inst)
				h.after(5 * time.Second)
				require.False(t, h.live("/c", "1"))
				require.Len(t, h.pb.to(wire.PathRelease), 1)
			})
		})
	}
}
