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

// Callbacks that do not return, or that wait for the very Shutdown that waits
// for them, keep Shutdown no longer than its context, and it can be finished
// when they have returned.
func TestAShutdownWaitsForCallbacksNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]struct {
		opts func(opts *Options, hook func())
		inst func(inst *Instance, hook func())
		// reach brings the worker to where it calls the hook.
		reach func(h *harness)
	}{
		"OnIdle": {
			inst: func(inst *Instance, hook func()) { inst.OnIdle(func() bool { hook(); return true }) },
		},
		"OnWindDown": {
			inst: func(inst *Instance, hook func()) {
				inst.Go(untilDone)
				inst.OnWindDown(hook)
				inst.WindDown(time.Hour)
			},
		},
		"OnUnhealthy": {opts: func(opts *Options, hook func()) { opts.OnUnhealthy = hook }, reach: unhealthy},
		"OnRestored": {opts: func(opts *Options, hook func()) { opts.OnRestored = hook }, reach: func(h *harness) {
			unhealthy(h)
			h.pb.on(nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var h *harness
				entered, leave := make(chan struct{}), make(chan struct{})
				var inner error
				hook := func() {
					close(entered)
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					inner = h.w.Shutdown(ctx)
					<-leave
				}
				opts := Options{IdleTimeout: time.Second}
				if shape.opts != nil {
					shape.opts(&opts, hook)
				}
				h = newHarness(t, opts, hosting(func(inst *Instance) (http.Handler, error) {
					if shape.inst != nil {
						shape.inst(inst, hook)
					}
					return echo(inst)
				}))
				h.start()
				h.get("/c/1")
				if shape.reach != nil {
					shape.reach(h)
				}
				<-entered
				h.after(10 * time.Second)
				require.ErrorIs(t, inner, context.DeadlineExceeded)
				require.False(t, h.live("/c", "1"))
				refused(t, h.get("/c/1"), wire.RefusalExpired)

				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				require.ErrorContains(t, h.w.Shutdown(ctx), "callback")
				require.Empty(t, h.pb.to(wire.PathDeregister))
				close(leave)
				h.stop()
				require.Len(t, h.pb.to(wire.PathDeregister), 1)
			})
		})
	}
}

// unhealthy lets the heartbeats fail for so long that the lease is unhealthy.
func unhealthy(h *harness) {
	h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
	h.after(11 * time.Second)
}

// Pinboard cuts what is open to a session when it ends. What a handler has
// answered last is on its way for a moment after the handler returned.
func TestAShutdownLetsTheLastAnswersOutBeforeItDeregisters(t *testing.T) {
	t.Parallel()
	host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		stream := h.beginGet("/c/1")
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.True(t, stream.ended())
		require.Equal(t, answerTime, h.pb.last(t, wire.PathDeregister).at-h.pb.last(t, wire.PathRelease).at)
	})
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(time.Second)
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.Equal(t, time.Second, h.pb.last(t, wire.PathDeregister).at, "nothing is on its way")
	})
}

// A worker that was shut down serves nothing, also where something was left.
func TestNothingStartsAfterAShutdownThatFailed(t *testing.T) {
	t.Parallel()
	for name, started := range map[string]bool{"started before": true, "a callback, and never started": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				leave := make(chan struct{})
				h := newHarness(t, Options{}, hosting(func(inst *Instance) (http.Handler, error) {
					inst.OnClose(func(context.Context) error { <-leave; return nil })
					return echo(inst)
				}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if started {
					h.start()
					h.get("/c/1")
				} else {
					h.w.lease.callbacks.Go(func() { <-leave })
				}
				require.Error(t, h.w.Shutdown(ctx))
				require.ErrorIs(t, h.w.Start(), ErrClosed)
				require.ErrorIs(t, h.w.Serve(t.Context(), newPipeListener()), ErrClosed)
				require.False(t, h.logged("serving"))
				close(leave)
				h.stop()
			})
		})
	}
}
