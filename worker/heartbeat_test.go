package worker

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func beats(h *harness) (at []float64) {
	for _, c := range h.pb.to(wire.PathHeartbeat) {
		at = append(at, c.at.Seconds())
	}
	return at
}

// beating answers heartbeats with fields added to a good answer.
func beating(extra object) reply {
	body := object{"expiresInMs": 15000, "draining": false}
	maps.Copy(body, extra)
	return reply{status: http.StatusOK, body: body}
}

func TestHeartbeatsKeepTheirRateWhateverTheAnswerTakes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		out  reply
		want []float64
	}{
		"at once":               {beating(nil), []float64{3, 6, 9, 12, 15}},
		"slow answers":          {reply{status: 200, body: object{"expiresInMs": 15000}, delay: 2 * time.Second}, []float64{3, 6, 9, 12, 15}},
		"longer than the rate":  {reply{status: 200, body: object{"expiresInMs": 15000}, delay: 4 * time.Second}, []float64{3, 7, 11, 15}},
		"no answer within 5 s":  {reply{status: 200, delay: time.Hour}, []float64{3, 8, 13}},
		"connection errors":     {reply{err: errors.New("no route")}, []float64{3, 6, 9, 12, 15}},
		"401":                   {reply{status: 401}, []float64{3, 6, 9, 12, 15}},
		"403":                   {reply{status: 403, body: object{"error": "no"}}, []float64{3, 6, 9, 12, 15}},
		"409 that says no more": {reply{status: 409, body: object{"error": "no"}}, []float64{3, 6, 9, 12, 15}},
		"503":                   {reply{status: 503, retryAfter: "60"}, []float64{3, 6, 9, 12, 15}},
		"malformed":             {reply{status: 200, raw: "{"}, []float64{3, 6, 9, 12, 15}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathHeartbeat, tc.out)
				h.after(15*time.Second + 100*time.Millisecond)
				require.InDeltaSlice(t, tc.want, beats(h), 0.001)
				require.True(t, h.live("/c", "1"), "whatever comes, instances are kept")
				require.Len(t, h.pb.to(wire.PathRegister), 1)
			})
		})
	}
}

func TestTheLeaseIsCountedFromWhenTheHeartbeatWasSent(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.pb.on(func(c call) (reply, bool) {
			// One more answer, 2 s late, and then no more.
			out := reply{status: 200, body: object{"expiresInMs": 15000}, delay: 2 * time.Second}
			if len(h.pb.to(wire.PathHeartbeat)) > 1 {
				out = reply{err: errors.New("no route")}
			}
			return out, c.path == wire.PathHeartbeat
		})
		h.after(3*time.Second + 10*time.Second - time.Millisecond)
		require.Equal(t, http.StatusOK, h.get("/c/new").Code)
		h.after(time.Millisecond)
		refused(t, h.get("/c/another"), wire.RefusalLeaseUnhealthy)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code, "live instances are served until the end")
		h.after(5*time.Second - time.Millisecond)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		h.after(time.Millisecond)
		refused(t, h.get("/c/1"), wire.RefusalExpired)
		require.Equal(t, wire.DetailLeaseExpired, detail(t, h.get("/c/1")))
		require.True(t, h.live("/c", "1"))
		h.pb.on(nil)
		h.after(3 * time.Second)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code, "and serve again after the next accepted heartbeat")
		require.Equal(t, 1, h.w.Stats().LeaseFlaps)
	})
}

func TestADrainIsToldAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.after(time.Second)
		require.NoError(t, h.w.Drain(t.Context(), time.Minute))
		synctest.Wait()
		c := h.pb.last(t, wire.PathHeartbeat)
		require.Equal(t, time.Second, c.at)
		require.Equal(t, true, c.body["draining"])
		h.w.Undrain()
		synctest.Wait()
		c = h.pb.last(t, wire.PathHeartbeat)
		require.Equal(t, time.Second, c.at)
		require.Equal(t, false, c.body["draining"])
		h.after(5 * time.Second)
		require.InDeltaSlice(t, []float64{1, 1, 4}, beats(h), 0.001)
	})
}

// A drain that begins while a heartbeat is under way is not in that heartbeat.
func TestADrainDuringAHeartbeatIsToldRightAfterIt(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.pb.on(func(c call) (reply, bool) {
			return reply{status: 200, body: object{"expiresInMs": 15000}, delay: time.Second}, c.path == wire.PathHeartbeat
		})
		h.after(3500 * time.Millisecond)
		require.NoError(t, h.w.Drain(t.Context(), time.Minute))
		h.after(600 * time.Millisecond)
		c := h.pb.last(t, wire.PathHeartbeat)
		require.Equal(t, 4*time.Second, c.at)
		require.Equal(t, true, c.body["draining"])
	})
}

func TestARegistrationOfADrainingWorkerSaysSo(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		require.NoError(t, h.w.Drain(t.Context(), time.Minute))
		h.start()
		require.Equal(t, true, h.pb.last(t, wire.PathRegister).body["draining"])
		refused(t, h.get("/c/1"), wire.RefusalDraining)
	})
}

func TestControlMessagesAreAckedUpToTheFirstThatFails(t *testing.T) {
	t.Parallel()
	wind := func(id string, fields object) object {
		m := object{"msgId": id, "type": "wind_down", "ns": "/c", "id": "nobody", "deadline": 5}
		for k, v := range fields {
			if v == nil {
				delete(m, k)
			} else {
				m[k] = v
			}
		}
		return m
	}
	var null *int
	for name, tc := range map[string]struct {
		messages any
		acks     []any
	}{
		"none":               {nil, nil},
		"not a list":         {"x", nil},
		"all good":           {[]any{wind("a", nil), wind("b", object{"deadline": 0}), wind("c", object{"deadline": null})}, []any{"a", "b", "c"}},
		"negative deadline":  {[]any{wind("a", object{"deadline": -3})}, []any{"a"}},
		"unknown type":       {[]any{wind("a", nil), wind("b", object{"type": "reboot"}), wind("c", nil)}, []any{"a"}},
		"no deadline":        {[]any{wind("a", nil), wind("b", object{"deadline": nil}), wind("c", nil)}, []any{"a"}},
		"deadline a bool":    {[]any{wind("a", object{"deadline": true})}, nil},
		"deadline a string":  {[]any{wind("a", object{"deadline": "5"})}, nil},
		"no id":              {[]any{wind("a", object{"id": nil})}, nil},
		"id null":            {[]any{wind("a", object{"id": null})}, nil},
		"unknown namespace":  {[]any{wind("a", object{"ns": "/x"})}, nil},
		"namespace a number": {[]any{wind("a", object{"ns": 3})}, nil},
		"without a namespace, of which there is one": {[]any{wind("a", object{"ns": nil})}, []any{"a"}},
		"no message id":         {[]any{wind("a", object{"msgId": nil}), wind("b", nil)}, []any{"b"}},
		"id not a string":       {[]any{wind("a", object{"msgId": 3}), wind("b", nil)}, []any{"b"}},
		"not an object":         {[]any{7, nil, wind("a", nil)}, []any{"a"}},
		"field of another case": {[]any{object{"MsgId": "a", "Type": "wind_down", "Ns": "/c", "Id": "x", "Deadline": 5}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				h.pb.answer(wire.PathHeartbeat, beating(object{"messages": tc.messages}))
				h.after(3 * time.Second)
				h.pb.answer(wire.PathHeartbeat, reply{err: errors.New("lost")})
				h.after(3 * time.Second)
				acks := func() any { return h.pb.last(t, wire.PathHeartbeat).body["acks"] }
				require.Equal(t, tc.acks, orNone(acks()))
				h.after(3 * time.Second)
				require.Equal(t, tc.acks, orNone(acks()), "acks are sent until a heartbeat is answered")
				h.pb.on(nil)
				h.after(3 * time.Second)
				require.Equal(t, tc.acks, orNone(acks()))
				h.after(3 * time.Second)
				require.Nil(t, acks(), "and then no more")
			})
		})
	}
}

func orNone(acks any) []any {
	list, _ := acks.([]any)
	return list
}

func TestAMessageWithoutANamespaceIsNotGuessed(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, map[string]Constructor{"/c": echo, "/d": echo}, func(t *testing.T, h *harness) {
		h.start()
		h.pb.answer(wire.PathHeartbeat, beating(object{"messages": []any{object{"msgId": "a", "type": "wind_down", "id": "x", "deadline": 1}}}))
		h.after(6 * time.Second)
		require.NotContains(t, h.pb.last(t, wire.PathHeartbeat).body, "acks")
	})
}

func TestAcksOfALostSessionAreNotSentInTheNext(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.pb.answer(wire.PathHeartbeat, beating(object{"messages": []any{object{"msgId": "a", "type": "wind_down", "ns": "/c", "id": "x", "deadline": 1}}}))
		h.after(3 * time.Second)
		h.pb.answer(wire.PathHeartbeat, reply{status: 409, body: object{"reregister": true}})
		h.after(3 * time.Second)
		require.Equal(t, []any{"a"}, h.pb.last(t, wire.PathHeartbeat).body["acks"])
		h.pb.on(nil)
		h.after(3 * time.Second)
		require.NotContains(t, h.pb.last(t, wire.PathHeartbeat).body, "acks")
	})
}

func TestAnOperatorsDrainIsObeyedFromTheAnswers(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/busy")
		deadline := func() time.Duration {
			h.w.dir.mu.Lock()
			defer h.w.dir.mu.Unlock()
			at, ok := h.w.dir.drainDeadline()
			if !ok {
				return 0
			}
			return (at - h.w.clock().mono).Round(time.Millisecond)
		}
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true}))
		h.after(3 * time.Second)
		require.True(t, h.w.Draining())
		require.Zero(t, deadline(), "no deadline")
		refused(t, h.get("/c/new"), wire.RefusalDraining)
		require.Equal(t, http.StatusOK, h.get("/c/busy").Code)

		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": 60}))
		h.after(3 * time.Second)
		require.Equal(t, 60*time.Second, deadline())
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": 57.9}))
		h.after(3 * time.Second)
		require.Equal(t, 57*time.Second, deadline(), "a drift of less than a second is the same deadline")
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": 40}))
		h.after(3 * time.Second)
		require.Equal(t, 40*time.Second, deadline())
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": 100}))
		h.after(3 * time.Second)
		require.Equal(t, 100*time.Second, deadline())

		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": "yes"}))
		h.after(3 * time.Second)
		require.Equal(t, 97*time.Second, deadline(), "what is not understood changes nothing")
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": -1}))
		h.after(3 * time.Second)
		require.Zero(t, deadline(), "a deadline that is not understood is none")
		require.True(t, h.logged("pinboard answered with a malformed drainDeadline"))

		h.pb.on(nil)
		h.after(3 * time.Second)
		require.False(t, h.w.Draining())
		refused(t, h.get("/c/new"), wire.RefusalReleasedEpoch)
		h.epoch++
		require.Equal(t, http.StatusOK, h.get("/c/new").Code, "placed here anew")
		require.True(t, h.live("/c", "busy"))
	})
}

func TestTheEarlierOfTwoDrainsCounts(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/busy")
		h.pb.answer(wire.PathHeartbeat, beating(object{"draining": true, "drainDeadline": 10}))
		h.after(3 * time.Second)
		drained := make(chan error, 1)
		go func() { drained <- h.w.Drain(t.Context(), time.Minute) }()
		synctest.Wait()
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(9 * time.Second)
		require.True(t, h.live("/c", "busy"))
		h.after(time.Second)
		require.False(t, h.live("/c", "busy"))
		require.NoError(t, <-drained)
		// The operator's end does not end the worker's own.
		h.pb.on(nil)
		h.after(3 * time.Second)
		require.True(t, h.w.Draining())
	})
}

func TestAWorkerDrainedByRegistrationTakesNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.pb.answer(wire.PathRegister, reply{status: 200, body: object{"sessionId": "s", "expiresInMs": 15000, "draining": true, "drainDeadline": 0}})
		h.start()
		require.True(t, h.w.Draining())
		refused(t, h.get("/c/1"), wire.RefusalDraining)
	})
}

func TestHeartbeatsAreWhatPinboardParses(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.after(3 * time.Second)
		c := h.pb.last(t, wire.PathHeartbeat)
		beat, err := wire.ParseHeartbeat(c.raw)
		require.NoError(t, err)
		require.Equal(t, "session-1", beat.SessionID)
		var fields map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(c.raw, &fields))
		require.NotContains(t, fields, "secret")
	})
}

// working is a constructor whose instances have a task that never ends by itself.
func working(inst *Instance) (http.Handler, error) {
	inst.Go(untilDone)
	return echo(inst)
}
