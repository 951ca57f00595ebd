package worker

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// windDownEvents notes what an OnWindDown hook can see whenever it is called.
func windDownEvents(events *record) Constructor {
	return func(inst *Instance) (http.Handler, error) {
		inst.OnWindDown(func() {
			deadline, ok := inst.EvictionDeadline()
			left := time.Duration(0)
			if ok {
				left = time.Until(deadline).Round(time.Second)
			}
			events.add("%v %v %v", inst.WindingDown(), ok, left)
		})
		inst.Go(untilDone) // so that it does not end at once
		return echo(inst)
	}
}

func TestOnWindDownTellsEveryChange(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(h *harness, inst *Instance)
		want   []string
	}{
		"own, without a deadline": {func(_ *harness, inst *Instance) { inst.WindDown(NoDeadline) }, []string{"true false 0s"}},
		"own, with one":           {func(_ *harness, inst *Instance) { inst.WindDown(time.Minute) }, []string{"true true 1m0s"}},
		"the earlier counts, and is told once": {func(_ *harness, inst *Instance) {
			inst.WindDown(time.Minute)
			synctest.Wait()
			inst.WindDown(time.Hour)
			inst.WindDown(NoDeadline)
			synctest.Wait()
			inst.WindDown(time.Second)
		}, []string{"true true 1m0s", "true true 1s"}},
		"a drain and its revocation": {func(h *harness, _ *Instance) {
			h.w.dir.setDrain(ownDrain, drainWithin(h.now().mono, time.Minute))
			synctest.Wait()
			h.w.Undrain()
		}, []string{"true true 1m0s", "false false 0s"}},
		"an operator's, and its revocation, beside its own": {func(h *harness, inst *Instance) {
			inst.WindDown(time.Hour)
			synctest.Wait()
			h.pb.answer(wire.PathHeartbeat, message("1", 60))
			h.after(3 * time.Second)
			h.pb.answer(wire.PathHeartbeat, message("1", nil))
			h.after(3 * time.Second)
		}, []string{"true true 1h0m0s", "true true 1m0s", "true true 59m54s"}},
		"nothing": {func(*harness, *Instance) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var events record
			var inst *Instance
			host := func(i *Instance) (http.Handler, error) { inst = i; return windDownEvents(&events)(i) }
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				tc.change(h, inst)
				synctest.Wait()
				require.Equal(t, tc.want, events.all())
			})
		})
	}
}

func TestAnOnWindDownHookThatComesLateIsToldAtOnce(t *testing.T) {
	t.Parallel()
	var events record
	var inst *Instance
	host := func(i *Instance) (http.Handler, error) { inst = i; i.Go(untilDone); return echo(i) }
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		inst.WindDown(NoDeadline)
		inst.OnWindDown(func() { panic("mine") })
		inst.OnWindDown(func() { events.add("told") })
		synctest.Wait()
		require.Equal(t, []string{"told"}, events.all(), "also beside one that panics")
		require.True(t, h.logged("OnWindDown hook panicked"))
	})
}

func TestAnInstanceWindsItselfDown(t *testing.T) {
	t.Parallel()
	var inst *Instance
	host := func(i *Instance) (http.Handler, error) { inst = i; i.Go(untilDone); return echo(i) }
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		inst.WindDown(time.Minute)
		require.True(t, inst.WindingDown())
		h.pb.answer(wire.PathHeartbeat, message("1", nil))
		h.after(time.Minute - 1)
		require.True(t, h.live("/c", "1"), "its work goes on until the deadline, and no operator revokes it")
		h.after(1)
		require.False(t, h.live("/c", "1"))
		require.Len(t, h.pb.to(wire.PathRelease), 1)

		h.epoch++
		h.get("/c/1")
		inst.WindDown(-time.Second)
		synctest.Wait()
		require.False(t, h.live("/c", "1"), "no time is no time")
		inst.WindDown(time.Second) // one that has ended
	})
}

func TestOnIdleDecidesWhetherAnIdleInstanceEnds(t *testing.T) {
	t.Parallel()
	var events record
	var end atomic.Bool
	var began time.Time
	host := func(i *Instance) (http.Handler, error) {
		began = time.Now()
		i.OnIdle(func() bool {
			events.add("%v", time.Since(began))
			return end.Load()
		})
		return echo(i)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(700 * time.Second)
		require.Equal(t, []string{"5m0s", "10m0s"}, events.all(), "asked once in each idle timeout")
		require.True(t, h.live("/c", "1"))
		end.Store(true)
		h.after(200 * time.Second)
		require.False(t, h.live("/c", "1"))
		require.Len(t, h.pb.to(wire.PathRelease), 1)
	})
}

func TestAPanicOfOnIdleAgreesToTheEnd(t *testing.T) {
	t.Parallel()
	host := func(i *Instance) (http.Handler, error) {
		i.OnIdle(func() bool { panic("mine") })
		return echo(i)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.after(300 * time.Second)
		require.False(t, h.live("/c", "1"))
		require.True(t, h.logged("OnIdle hook panicked"))
	})
}

func TestAnInstanceThatWindsDownIsNotAskedWhenIdle(t *testing.T) {
	t.Parallel()
	var inst *Instance
	var events record
	host := func(i *Instance) (http.Handler, error) {
		inst = i
		i.OnIdle(func() bool { events.add("asked"); return false })
		return echo(i)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		inst.WindDown(NoDeadline)
		synctest.Wait()
		require.False(t, h.live("/c", "1"))
		require.Empty(t, events.all())
	})
}

// A request that came while the hook was thinking makes its answer void.
func TestOnIdlesAnswerCountsOnlyForTheIdlenessItWasAskedAbout(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	var asked atomic.Int64
	host := func(i *Instance) (http.Handler, error) {
		i.OnIdle(func() bool { asked.Add(1); <-gate; return true })
		return echo(i)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		h.get("/c/1")
		h.after(310 * time.Second)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		close(gate)
		h.after(299 * time.Second)
		require.True(t, h.live("/c", "1"))
		require.EqualValues(t, 1, asked.Load())
		h.after(time.Second)
		require.False(t, h.live("/c", "1"))
		require.EqualValues(t, 2, asked.Load())
	})
}

func TestAnInstancesOwnStats(t *testing.T) {
	t.Parallel()
	reports := map[string]func() map[string]any{
		"plain":   func() map[string]any { return map[string]any{"members": 3, "id": "forged"} },
		"panics":  func() map[string]any { panic("mine") },
		"no JSON": func() map[string]any { return map[string]any{"f": func() {}} },
	}
	host := func(i *Instance) (http.Handler, error) {
		for name, report := range reports {
			if i.ID() == name[:2] {
				i.SetStats(report)
			}
		}
		return echo(i)
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		for _, id := range []string{"pl", "pa", "no", "none"} {
			h.get("/c/" + id)
		}
		r := h.request(http.MethodGet, wire.PathStats)
		r.Header = http.Header{wire.HeaderProxySecret: {h.w.reg.secret.Reveal()}}
		rec := h.do(r)
		require.Equal(t, http.StatusOK, rec.Code, rec.Body.String())
		var body struct{ Instances []object }
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &body))
		require.Len(t, body.Instances, 4)
		for _, row := range body.Instances {
			require.Contains(t, row, "idleMs")
			if row["id"] == "pl" {
				require.EqualValues(t, 3, row["members"])
			} else {
				require.NotContains(t, row, "members")
			}
		}
		require.NotContains(t, rec.Body.String(), "forged")
		require.Equal(t, 2, h.logs.FilterMessage("stats of an instance failed").Len())
	})
}
