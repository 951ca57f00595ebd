package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAnIdleInstanceIsEvictedAndReleased(t *testing.T) {
	t.Parallel()
	var made []*Instance
	host := func(inst *Instance) (http.Handler, error) { made = append(made, inst); return echo(inst) }
	inBubble(t, Options{IdleTimeout: time.Minute}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(59 * time.Second)
		h.get("/c/1")
		h.after(59 * time.Second)
		require.True(t, h.live("/c", "1"), "a request starts the time anew")
		h.after(time.Second)
		require.False(t, h.live("/c", "1"))
		require.ErrorIs(t, context.Cause(made[0].Context()), ErrEvicted)
		require.NotErrorIs(t, context.Cause(made[0].Context()), ErrAborted)
		require.Equal(t, []object{{"sessionId": "session-1", "namespace": "/c", "id": "1", "epoch": "100"}},
			h.pb.last(t, wire.PathRelease).list(t))
		require.Equal(t, NamespaceStats{Activations: 1, Evictions: 1}, h.w.Stats().Namespaces["/c"])
		h.get("/c/2")
		h.w.dir.abort(key{"/c", "2"}, errOwnAbort)
		require.Empty(t, h.w.dir.timetable.queue, "nothing of it is kept until it would have been due")
	})
}

func TestWhatHoldsAnIdleInstance(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"a plain request": "/plain", "a stream": "/flush", "an event stream": "/events", "a task": "/task"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gate chan struct{}
			host := serving(func(inst *Instance, w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/task":
					inst.Go(func(context.Context) { <-gate })
					return
				case "/flush":
					w.(http.Flusher).Flush()
				case "/events":
					w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
					w.WriteHeader(http.StatusOK)
				}
				<-gate
			})
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				gate = make(chan struct{})
				h.start()
				h.beginGet("/c/1" + path)
				h.after(time.Hour)
				require.True(t, h.live("/c", "1"))
				close(gate)
				h.after(300*time.Second - time.Millisecond)
				require.True(t, h.live("/c", "1"))
				h.after(time.Millisecond)
				require.False(t, h.live("/c", "1"))
			})
		})
	}
}

func message(id string, deadline any) reply {
	return beating(object{"messages": []any{object{"msgId": "m", "type": "wind_down", "ns": "/c", "id": id, "deadline": deadline}}})
}

func TestAWindDownOfOneInstance(t *testing.T) {
	t.Parallel()
	var made []*Instance
	host := func(inst *Instance) (http.Handler, error) {
		made = append(made, inst)
		if inst.ID() == "busy" {
			inst.Go(untilDone)
		}
		return serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stream" {
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
			_, _ = io.WriteString(w, "served")
		})(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/busy")
		h.get("/c/idle")
		stream := h.beginGet("/c/streaming/stream")
		tell := func(id string, deadline any) {
			h.pb.answer(wire.PathHeartbeat, message(id, deadline))
			h.after(3 * time.Second)
			h.pb.on(nil)
		}
		require.False(t, made[0].WindingDown())
		_, has := made[0].EvictionDeadline()
		require.False(t, has)

		tell("idle", 60)
		require.False(t, h.live("/c", "idle"), "what nothing holds goes at once")
		tell("streaming", 60)
		require.False(t, h.live("/c", "streaming"), "a stream does not hold it: its client connects again, elsewhere")
		require.True(t, stream.ended())
		tell("busy", 60)
		require.True(t, made[0].WindingDown())
		at, has := made[0].EvictionDeadline()
		require.True(t, has)
		require.Equal(t, h.now().wall.Add(60*time.Second), at)
		require.Equal(t, "served", h.get("/c/busy").Body.String(), "it is still served")
		require.Equal(t, http.StatusOK, h.get("/c/other").Code, "and so is everything else")

		tell("busy", nil)
		require.False(t, made[0].WindingDown(), "revoked")
		h.after(2 * time.Minute)
		require.True(t, h.live("/c", "busy"))

		tell("busy", 6)
		tell("busy", 30) // moved
		h.after(30*time.Second - time.Millisecond)
		require.True(t, h.live("/c", "busy"))
		h.after(time.Millisecond)
		require.False(t, h.live("/c", "busy"))
		require.ErrorIs(t, context.Cause(made[0].Context()), errDeadline)
		tell("busy", 0) // nothing there: nothing to do
		require.Equal(t, http.StatusOK, h.get("/c/other").Code)
	})
}

func TestADrainClosesWhatIsIdleAndWaitsForTheRest(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	var made []*Instance
	host := func(inst *Instance) (http.Handler, error) {
		made = append(made, inst)
		return serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-gate
			}
		})(inst)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		h.get("/c/idle")
		waits := h.beginGet("/c/busy/wait")
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), time.Minute) }()
		synctest.Wait()
		require.True(t, h.w.Draining())
		require.False(t, h.w.Drained())
		require.True(t, h.w.Ready(), "live instances are served")
		require.False(t, h.live("/c", "idle"))
		require.True(t, made[1].WindingDown())
		rec := h.get("/c/new")
		refused(t, rec, wire.RefusalDraining)
		require.Equal(t, wire.DetailHostDraining, detail(t, rec))
		require.Equal(t, http.StatusOK, h.get("/c/busy").Code)
		h.after(20 * time.Second)
		require.Empty(t, drained)
		close(gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, waits.rec.Code)
		require.NoError(t, <-drained)
		require.True(t, h.w.Drained())
		h.after(time.Hour)
		require.NotEmpty(t, h.pb.to(wire.PathHeartbeat), "a drained worker stays registered")
	})
}

func TestADrainAbortsWhatIsLeftAtItsDeadlineAndCapsTheLease(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), 20*time.Second) }()
		h.after(20*time.Second - time.Millisecond)
		require.True(t, h.live("/c", "1"))
		require.True(t, h.w.Ready())
		h.after(time.Millisecond)
		require.False(t, h.live("/c", "1"))
		require.NoError(t, <-drained)
		require.False(t, h.w.Ready())
		refused(t, h.get("/c/1"), wire.RefusalExpired)
		h.after(time.Minute)
		require.False(t, h.w.Ready(), "heartbeats do not prolong it")
		require.Zero(t, h.w.Stats().LeaseFlaps)
		h.w.Undrain()
		h.after(3 * time.Second)
		require.True(t, h.w.Ready())
		h.epoch++
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
	})
}

func TestADrainThatIsRevokedOrWaitedForTooLong(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, h.w.Drain(ctx, time.Minute), context.DeadlineExceeded)
		require.True(t, h.w.Draining(), "it goes on")
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), 10*time.Second) }()
		h.after(5 * time.Second)
		h.w.Undrain()
		require.ErrorIs(t, <-drained, ErrDrainRevoked)
		h.after(time.Hour)
		require.True(t, h.live("/c", "1"), "and its deadlines are gone")
		require.Equal(t, http.StatusOK, h.get("/c/2").Code)
	})
}

func TestADrainWithoutTimeAbortsAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		began := h.since()
		require.NoError(t, h.w.Drain(t.Context(), -time.Second))
		require.Equal(t, began, h.since())
		require.False(t, h.live("/c", "1"))
	})
}

// A request that waited for its activation when the drain began is served.
func TestADrainServesWhatIsBeingActivated(t *testing.T) {
	t.Parallel()
	var g *gated
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { return g.construct(i) }), func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		p := h.beginGet("/c/1")
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), time.Minute) }()
		h.after(time.Second)
		close(g.gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, p.rec.Code)
		require.NoError(t, <-drained)
	})
}

// A response that turns out to be a stream no longer holds a winding-down
// instance.
func TestAResponseThatBecomesAStreamStopsHolding(t *testing.T) {
	t.Parallel()
	for name, becomes := range map[string]func(w http.ResponseWriter){
		"by a flush":          func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"by its content type": func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream"); w.WriteHeader(200) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
				<-time.After(5 * time.Second)
				becomes(w)
				<-r.Context().Done()
			})
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				p := h.beginGet("/c/1")
				began := h.since()
				require.NoError(t, h.w.Drain(t.Context(), time.Minute))
				require.Equal(t, 5*time.Second, h.since()-began)
				synctest.Wait()
				require.Equal(t, http.StatusOK, p.rec.Code)
			})
		})
	}
}

// A process that was stopped finds requests and timers due at the same moment.
func TestADeadlineCountsBeforeItsTimerHasRun(t *testing.T) {
	t.Parallel()
	var g *gated
	hosts := map[string]Constructor{"/c": working, "/slow": func(i *Instance) (http.Handler, error) { return g.construct(i) }}
	inBubble(t, Options{}, hosts, func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		h.get("/c/1")
		waits := h.beginGet("/slow/1")
		d := h.w.dir
		d.mu.Lock()
		for _, inst := range d.instances {
			inst.windDowns[operatorsDrain] = drain{on: true, hasDeadline: true, deadline: d.clock().mono}
		}
		d.mu.Unlock()
		refused(t, h.get("/c/1"), wire.RefusalClosing)
		close(g.gate)
		synctest.Wait()
		refused(t, waits.rec, wire.RefusalClosing)
	})
}

func TestATimerOfARevokedDrainEndsNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.w.dir.drainOver() // it had fired already when the drain was revoked
		h.w.dir.setDrain(ownDrain, drainWithin(h.now().mono, time.Minute))
		h.w.dir.drainOver() // or moved
		synctest.Wait()
		require.True(t, h.live("/c", "1"))
	})
}

// An instance may abort itself from wherever it notices that it must.
func TestAnInstanceAbortsItself(t *testing.T) {
	t.Parallel()
	host := serving(func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		inst.Abort()
		<-r.Context().Done()
		if !errors.Is(context.Cause(r.Context()), ErrAborted) {
			panic("the cause says why")
		}
		http.Error(w, "sorry", http.StatusGone)
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusGone, h.get("/c/1").Code, "its own answer counts")
		synctest.Wait()
		require.False(t, h.live("/c", "1"))
	})
}

// Whatever is put when, the timetable gives everything out no later than due.
func TestTheTimetableMissesNothing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	table := timetable{expired: func() {}, stopped: true}
	d := &directory{clock: func() instant { return instant{} }}
	want := map[*Instance]time.Duration{}
	var all []*Instance
	for i := range 300 {
		all = append(all, &Instance{dir: d, key: key{"/c", fmt.Sprint(i)}, index: -1})
	}
	for now := range time.Duration(2000) {
		inst := all[random.IntN(len(all))]
		switch due := now + time.Duration(random.IntN(100)); random.IntN(4) {
		case 0:
			table.remove(inst)
			delete(want, inst)
		default:
			table.put(inst, due)
			if earlier, ok := want[inst]; !ok || due < earlier {
				want[inst] = due
			}
		}
		table.put(inst, never) // asks for nothing
		for inst := table.pop(now); inst != nil; inst = table.pop(now) {
			require.LessOrEqual(t, want[inst], now)
			delete(want, inst)
		}
		for _, due := range want {
			require.Greater(t, due, now, "it was due and is still there")
		}
		require.Len(t, table.queue, len(want))
	}
}

// The lease is cut short by the drain, while every heartbeat is accepted: that is no
// fault of the network's, and nobody is to be alarmed.
func TestADrainsDeadlineIsNoUnhealthyLease(t *testing.T) {
	t.Parallel()
	var told record
	opts := Options{OnUnhealthy: func() { told.add("unhealthy") }, OnRestored: func() { told.add("restored") }}
	host := serving(func(_ *Instance, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	inBubble(t, opts, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		p := h.beginGet("/c/1")
		go func() { _ = h.w.Drain(t.Context(), 20*time.Second) }()
		synctest.Wait()
		held := h.w.LeaseContext()
		h.after(20*time.Second - 1)
		require.False(t, p.ended())
		require.False(t, h.w.Lease().Expired)
		h.after(1)
		require.True(t, p.ended())
		require.True(t, h.w.Lease().Expired, "serving ends all the same")
		require.ErrorIs(t, context.Cause(held), ErrLeaseLost)
		h.after(time.Minute) // of heartbeats that are accepted
		require.True(t, h.w.Lease().Expired)
		require.True(t, h.w.lease.beats())
		h.w.Undrain()
		h.after(5 * time.Second)
		require.True(t, h.w.Lease().Healthy)
		require.Empty(t, told.all())
		require.Zero(t, h.w.lease.flaps())
		require.Zero(t, h.logs.FilterMessage("lease unhealthy: no heartbeat was accepted in time").Len())

		// What is amiss is announced, also while a drain's deadline is near.
		go func() { _ = h.w.Drain(t.Context(), 14*time.Second) }()
		h.after(4 * time.Second) // so that a heartbeat was cut
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusBadGateway})
		h.after(9500 * time.Millisecond)
		require.False(t, h.w.Lease().Expired)
		require.False(t, h.w.lease.beats())
		require.Equal(t, []string{"unhealthy"}, told.all())
		require.Equal(t, 1, h.w.lease.flaps())
	})
}
