package worker

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// A release and a deregistration are tried three times, whatever comes but a 200.
func TestReleaseAndDeregisterAreTriedThreeTimes(t *testing.T) {
	t.Parallel()
	const pauses = 600 * time.Millisecond
	for name, tc := range map[string]struct {
		out   reply
		fails int
		calls int
		takes time.Duration
	}{
		"a 200":                     {reply{}, 0, 1, 0},
		"a 200 that is not JSON":    {reply{status: 200, raw: "<html>"}, 9, 1, 0},
		"a 200 that freed nothing":  {reply{status: 200, raw: `{"released":0}`}, 9, 1, 0},
		"one failure":               {reply{status: 500}, 1, 2, attemptPause},
		"two failures":              {reply{status: 500}, 2, 3, pauses},
		"no connection":             {reply{err: errors.New("no route")}, 9, 3, pauses},
		"500":                       {reply{status: 500}, 9, 3, pauses},
		"503, whatever it asks for": {reply{status: 503, retryAfter: "60"}, 9, 3, pauses},
		"401":                       {reply{status: 401}, 9, 3, pauses},
		"409 that asks to register": {reply{status: 409, body: object{"reregister": true}}, 9, 3, pauses},
		"a redirect":                {reply{status: 307, location: "http://pinboard:8080/elsewhere"}, 9, 3, pauses},
	} {
		for _, path := range []string{wire.PathRelease, wire.PathDeregister} {
			t.Run(path+" "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t, Options{HeartbeatInterval: time.Minute, LeaseTTL: time.Hour}, hosting(echo))
					h.start()
					h.get("/c/1")
					h.after(answerTime)
					h.pb.on(func(c call) (reply, bool) {
						return tc.out, c.path == path && len(h.pb.to(path)) <= tc.fails
					})
					began := h.since()
					failed := tc.fails >= releaseAttempts && tc.calls == releaseAttempts
					err := h.w.Shutdown(t.Context())
					require.Equal(t, failed && path == wire.PathDeregister, errors.Is(err, ErrNotDeregistered), "%v", err)
					require.Equal(t, began+tc.takes+linger, h.since())
					require.Len(t, h.pb.to(path), tc.calls)
					require.Empty(t, h.pb.to("/elsewhere"))
					require.Len(t, h.pb.to(wire.PathRegister), 1)
					for _, c := range h.pb.to(wire.PathRelease) {
						require.Equal(t, []object{{"sessionId": "session-1", "namespace": "/c", "id": "1", "epoch": "100"}}, c.list(t))
					}
					for _, c := range h.pb.to(wire.PathDeregister) {
						require.Equal(t, object{"sessionId": "session-1"}, c.body)
					}
					require.Equal(t, failed, h.logged("call failed after some attempts; pinboard frees the placements when the lease lapses"))
				})
			})
		}
	}
}

// Closing waits for one release at most; what it did not free, the
// deregistration does.
func TestAShutdownWaitsForSilenceNoLongerThanItsCallsDo(t *testing.T) {
	t.Parallel()
	for path, takes := range map[string]time.Duration{
		wire.PathRelease:    releaseWait,
		wire.PathDeregister: 3*callTimeout + 3*attemptPause,
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, Options{}, hosting(echo))
			h.start()
			h.get("/c/1")
			h.after(answerTime)
			h.pb.answer(path, reply{status: http.StatusOK, delay: time.Hour})
			began := h.since()
			err := h.w.Shutdown(t.Context())
			require.Equal(t, path == wire.PathDeregister, errors.Is(err, ErrNotDeregistered), "%v", err)
			require.Equal(t, began+takes+linger, h.since(), path)
			require.NotEmpty(t, h.pb.to(wire.PathDeregister))
		})
	}
}

// Without a session there is nothing to release from or to end.
func TestNothingIsEndedAtPinboardWithoutASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		h.pb.answer(wire.PathRegister, reply{status: http.StatusServiceUnavailable})
		h.start()
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.Empty(t, h.pb.to(wire.PathDeregister))
		require.Empty(t, h.pb.to(wire.PathRelease))
	})
}

// A release that was under way when the session was lost names the old session.
// The registration that went on beside it claimed the id once more, for the new
// one, out of its reach.
func TestAReleaseThatCrossesARegistrationIsSentFromTheNewSessionToo(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		losing := h.losing()
		h.pb.on(func(c call) (reply, bool) {
			if c.path == wire.PathRelease && c.list(t)[0]["sessionId"] == "session-1" {
				return reply{status: http.StatusOK, body: object{"released": 0}, delay: time.Second}, true
			}
			return losing(c)
		})
		h.after(2500 * time.Millisecond)
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.after(600 * time.Millisecond)
		require.Equal(t, object{"/c": []any{"1"}}, h.pb.last(t, wire.PathRegister).body["instances"])
		h.after(4 * time.Second)
		require.Len(t, h.pb.to(wire.PathRelease), 2)
		require.Equal(t, []object{{"sessionId": "session-2", "namespace": "/c", "id": "1", "epoch": "100"}},
			h.pb.last(t, wire.PathRelease).list(t))
		h.after(time.Minute)
		require.Len(t, h.pb.to(wire.PathRelease), 2, "once")
	})
}

// What the worker gave back, or refused as one that gives it up, it never serves
// again by that epoch; what it kept, it does.
func TestWhatGivesAPlacementUp(t *testing.T) {
	t.Parallel()
	end := func(order func(h *harness)) func(h *harness) string {
		return func(h *harness) string {
			require.Equal(h.t, http.StatusOK, h.get("/c/1").Code)
			order(h)
			return ""
		}
	}
	refusal := func(h *harness) string { return h.get("/c/1").Header().Get(wire.HeaderRefusal) }
	for name, tc := range map[string]struct {
		ends     func(h *harness) (reason string)
		refused  string
		released bool
		again    string // what the same epoch gets then
	}{
		"its own abort":   {ends: end(func(h *harness) { h.w.dir.abort(key{"/c", "1"}, errOwnAbort) }), released: true, again: wire.RefusalReleasedEpoch},
		"a wind-down":     {ends: end(func(h *harness) { h.w.dir.windDown(key{"/c", "1"}, 0) }), released: true, again: wire.RefusalReleasedEpoch},
		"a drain":         {ends: end(func(h *harness) { _ = h.w.Drain(h.t.Context(), 0); h.w.Undrain() }), released: true, again: wire.RefusalReleasedEpoch},
		"another's claim": {ends: end(func(h *harness) { h.w.dir.abort(key{"/c", "1"}, errDuplicate) }), released: true, again: wire.RefusalReleasedEpoch},
		"idleness":        {ends: end(func(h *harness) { h.after(time.Minute) }), released: true, again: wire.RefusalReleasedEpoch},
		"a lost session":  {ends: end(func(h *harness) { h.pb.on(h.losing()) })},
		"a refusal while draining": {ends: func(h *harness) string {
			_ = h.w.Drain(h.t.Context(), time.Minute)
			defer h.w.Undrain()
			return refusal(h)
		}, refused: wire.RefusalDraining, again: wire.RefusalReleasedEpoch},
		"a refusal in the lease's last moments": {ends: func(h *harness) string {
			h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
			h.after(14 * time.Second)
			defer h.pb.on(nil)
			return refusal(h)
		}, refused: wire.RefusalLeaseUnhealthy, again: wire.RefusalReleasedEpoch},
		"a refusal past the lease": {ends: func(h *harness) string {
			h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
			h.after(15 * time.Second)
			defer h.pb.on(nil)
			return refusal(h)
		}, refused: wire.RefusalExpired},
		"a refusal for lack of room": {ends: func(h *harness) string {
			h.get("/c/other")
			h.get("/c/more")
			defer h.w.dir.abort(key{"/c", "more"}, errOwnAbort)
			return refusal(h)
		}, refused: wire.RefusalCapacity, again: wire.RefusalReleasedEpoch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{IdleTimeout: time.Minute, MaxInstances: 2}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				require.Equal(t, tc.refused, tc.ends(h))
				require.Equal(t, tc.again != "" && tc.refused != "", wire.GivesUp(tc.refused))
				h.after(4 * time.Second)
				released := 0
				for _, c := range h.pb.to(wire.PathRelease) {
					for _, item := range c.list(t) {
						if item["id"] == "1" {
							require.Equal(t, "100", item["epoch"])
							released++
						}
					}
				}
				require.Equal(t, tc.released, released == 1)
				rec := h.get("/c/1")
				if tc.again == "" {
					require.Equal(t, http.StatusOK, rec.Code)
				} else {
					refused(t, rec, tc.again)
				}
				h.epoch++
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "placed here anew")
			})
		})
	}
}

// An upgrade is refused as any other request: before it, with the marker, and
// nothing of the instance sees it.
func TestAnUpgradeIsRefusedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	var events record
	inBubble(t, Options{}, hosting(hijacker(&events)), func(t *testing.T, h *harness) {
		h.start()
		client := h.network()
		upgrade := func(id string) *http.Response {
			r := h.outgoing(t.Context(), "/c/"+id+"/returns")
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "websocket")
			res, err := client.Do(r)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			return res
		}
		require.Equal(t, http.StatusSwitchingProtocols, upgrade("live").StatusCode)
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusServiceUnavailable})
		h.after(14 * time.Second)
		require.Equal(t, http.StatusSwitchingProtocols, upgrade("live").StatusCode, "what lives is served until the end")
		res := upgrade("new")
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Equal(t, wire.RefusalLeaseUnhealthy, res.Header.Get(wire.HeaderRefusal))
		require.Equal(t, "1", res.Header.Get("Retry-After"))
		h.after(time.Second)
		require.Equal(t, wire.RefusalExpired, upgrade("live").Header.Get(wire.HeaderRefusal))
		require.False(t, h.live("/c", "new"))
		require.Empty(t, events.all())
	})
}

// Constructors that wait for their turn, or take it, are no burden to what lives.
func TestLiveInstancesAreServedWhileAllSlotsAreTaken(t *testing.T) {
	t.Parallel()
	var g *gated
	hosts := map[string]Constructor{"/c": echo, "/slow": func(i *Instance) (http.Handler, error) { return g.construct(i) }}
	inBubble(t, Options{MaxConcurrentActivations: 1}, hosts, func(t *testing.T, h *harness) {
		g = newGated()
		h.start()
		h.get("/c/1")
		first := h.beginGet("/slow/1")
		other := h.beginGet("/c/2")
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.False(t, first.ended())
		require.False(t, other.ended(), "the slots are those of all namespaces")
		close(g.gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, first.rec.Code)
		require.Equal(t, http.StatusOK, other.rec.Code)
	})
}
