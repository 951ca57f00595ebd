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

func TestTheLeasesContextEndsWithTheLeaseAndSaysWhy(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		require.ErrorIs(t, context.Cause(h.w.LeaseContext()), ErrLeaseLost, "nothing was granted yet")
		require.Equal(t, Lease{Expired: true}, h.w.Lease())
		h.start()
		held := h.w.LeaseContext()
		require.NoError(t, held.Err())
		h.after(7 * time.Second) // two heartbeats later
		require.Same(t, held, h.w.LeaseContext(), "one context as long as the lease lives")

		renewed := h.pb.last(t, wire.PathHeartbeat).at
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
		h.after(renewed + 15*time.Second - 1 - h.since())
		require.NoError(t, held.Err())
		require.False(t, h.w.Lease().Healthy)
		require.False(t, h.w.Lease().Expired)
		h.after(1)
		require.ErrorIs(t, context.Cause(held), ErrLeaseLost)
		require.True(t, h.w.Lease().Expired)
		require.ErrorIs(t, context.Cause(h.w.LeaseContext()), ErrLeaseLost)

		h.pb.on(nil)
		h.after(3 * time.Second)
		require.NoError(t, h.w.LeaseContext().Err(), "restored")
		require.Error(t, held.Err(), "what was lost stays lost")
	})
}

// The timers of a suspended machine have not run when it wakes.
func TestASuspendEndsTheLeasesContextNoLaterThanTheNextLook(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(h *harness){
		"asked":   func(h *harness) { h.w.LeaseContext() },
		"renewed": func(h *harness) { h.w.lease.renewed(h.now(), 15*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				held := h.w.LeaseContext()
				h.wallStep.Store(int64(time.Hour))
				look(h)
				require.ErrorIs(t, context.Cause(held), ErrLeaseLost)
			})
		})
	}
}

func TestTheLeasesContextEndsWithTheWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		h.start()
		held := h.w.LeaseContext()
		h.stop()
		require.ErrorIs(t, context.Cause(held), ErrClosed)
		require.ErrorIs(t, context.Cause(h.w.LeaseContext()), ErrClosed)
	})
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		held := h.w.LeaseContext()
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusConflict, body: object{"error": "by epoch 2", "superseded": true}})
		h.after(3 * time.Second)
		require.True(t, h.w.Superseded())
		require.ErrorIs(t, context.Cause(held), ErrSuperseded)
		require.ErrorIs(t, context.Cause(h.w.LeaseContext()), ErrSuperseded)
	})
}

func TestAnInstancesLeaseContextEndsWithEither(t *testing.T) {
	t.Parallel()
	var made []*Instance
	host := func(inst *Instance) (http.Handler, error) {
		made = append(made, inst)
		return echo(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.get("/c/2")
		first, second := made[0].LeaseContext(), made[1].LeaseContext()
		require.Same(t, first, made[0].LeaseContext())
		made[0].Abort()
		synctest.Wait()
		require.ErrorIs(t, context.Cause(first), ErrAborted)
		require.NoError(t, second.Err())

		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
		h.after(20 * time.Second)
		require.ErrorIs(t, context.Cause(second), ErrLeaseLost)
		require.NoError(t, made[1].Context().Err(), "the instance is kept")
		require.ErrorIs(t, context.Cause(made[1].LeaseContext()), ErrLeaseLost)
		require.True(t, made[1].Lease().Expired)
		h.pb.on(nil)
		h.after(3 * time.Second)
		require.NoError(t, made[1].LeaseContext().Err())
		require.WithinDuration(t, time.Now().Add(15*time.Second), made[1].Lease().ExpiresAt, 3*time.Second)
	})
}
