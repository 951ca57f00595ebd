package worker

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestARegistrationSaysWhoTheWorkerIs(t *testing.T) {
	t.Parallel()
	hosts := map[string]Constructor{"/b": echo, "/a": echo}
	inBubble(t, Options{AdvertiseURL: "HTTP://Worker:8000/base/"}, hosts, func(t *testing.T, h *harness) {
		h.pb.worker.base = "" // the fake pinboard probes without it
		require.False(t, h.w.Ready())
		require.Empty(t, h.pb.calls, "New does no network I/O")
		h.start()
		require.True(t, h.w.Ready())
		c := h.pb.last(t, wire.PathRegister)
		require.Equal(t, "Bearer planted-token-of-a-worker", c.header.Get("Authorization"))
		require.Equal(t, "application/json", c.header.Get("Content-Type"))
		require.Regexp(t, `^[0-9a-f]{32}$`, c.body["clientId"])
		require.Regexp(t, `^[0-9a-f]{64}$`, c.body["secret"])
		for _, minted := range []string{"clientId", "secret", "challenge", "challengeValue"} {
			delete(c.body, minted)
		}
		require.Equal(t, object{
			"namespaces": []any{"/a", "/b"}, "advertiseUrl": "http://worker:8000/base", "headroom": 1024.0, "draining": false,
		}, c.body)
		parsed, err := wire.ParseRegister(c.raw)
		require.NoError(t, err, "pinboard's own parser takes it")
		require.Equal(t, []string{"/a", "/b"}, parsed.Namespaces)
	})
}

func TestEachAttemptCarriesAFreshPairThatIsAnswerableWhenTheCallIsMade(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		challenges := map[any]bool{}
		fails := 3
		h.pb.on(func(c call) (reply, bool) {
			if c.path != wire.PathRegister && c.path != wire.PathHeartbeat {
				return reply{}, false
			}
			if !h.pb.probe(c) {
				t.Errorf("the challenge of %s is not answered yet", c.path)
			}
			challenges[c.body["challenge"]] = true
			if fails--; fails >= 0 {
				return reply{err: errors.New("no route")}, true
			}
			return reply{}, false
		})
		h.start()
		h.after(time.Minute)
		require.True(t, h.w.Ready())
		require.Len(t, challenges, len(h.pb.to(wire.PathRegister))+len(h.pb.to(wire.PathHeartbeat)))
		require.NotContains(t, challenges, "")
	})
}

func TestARegistrationThatFailsIsTriedAgainWithBackOff(t *testing.T) {
	t.Parallel()
	ok := object{"sessionId": "s", "expiresInMs": 15000, "draining": false}
	for name, tc := range map[string]struct {
		out  reply
		next []float64 // seconds at which attempts are made, with the longest jitter
		log  string
	}{
		"connection error":     {reply{err: errors.New("no route")}, []float64{0, 6, 18, 42, 72}, "registration failed"},
		"401":                  {reply{status: 401, body: ok}, []float64{0, 6, 18}, "registration rejected with 401: check the deployment token (PINBOARD_TOKEN)"},
		"403":                  {reply{status: 403, body: object{"error": "no"}}, []float64{0, 6, 18}, "registration rejected"},
		"409":                  {reply{status: 409, body: object{"error": "no"}}, []float64{0, 6, 18}, "registration rejected"},
		"500 with a good body": {reply{status: 500, body: ok}, []float64{0, 6, 18}, "registration rejected"},
		"503":                  {reply{status: 503, retryAfter: "2"}, []float64{0, 2, 6, 14, 30, 60}, "registration deferred"},
		"503 without seconds":  {reply{status: 503}, []float64{0, 1, 3, 7}, "registration deferred"},
		"redirect":             {reply{status: 307, location: "http://pinboard:8080/elsewhere"}, []float64{0, 6, 18}, "registration rejected"},
		"not JSON":             {reply{status: 200, raw: "<html>"}, []float64{0, 6, 18}, "registration answered without a session or a lease time"},
		"a list":               {reply{status: 200, raw: "[]"}, []float64{0, 6, 18}, "registration answered without a session or a lease time"},
		"null":                 {reply{status: 200, raw: "null"}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"no session":           {reply{status: 200, body: object{"expiresInMs": 15000}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"empty session":        {reply{status: 200, body: object{"sessionId": "", "expiresInMs": 15000}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"session a number":     {reply{status: 200, body: object{"sessionId": 7, "expiresInMs": 15000}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"lease a string":       {reply{status: 200, body: object{"sessionId": "s", "expiresInMs": "15000"}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"lease null":           {reply{status: 200, body: object{"sessionId": "s", "expiresInMs": nil}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"other case":           {reply{status: 200, body: object{"SessionId": "s", "ExpiresInMs": 15000}}, []float64{0, 6}, "registration answered without a session or a lease time"},
		"no answer":            {reply{status: 200, body: ok, delay: time.Hour}, []float64{0, 6, 18}, "registration failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.pb.answer(wire.PathRegister, tc.out)
				h.start()
				h.after(time.Duration(tc.next[len(tc.next)-1])*time.Second + 100*time.Millisecond)
				require.False(t, h.w.Ready())
				require.True(t, h.logged(tc.log))
				var at []float64
				for _, c := range h.pb.to(wire.PathRegister) {
					at = append(at, c.at.Seconds())
				}
				require.InDeltaSlice(t, tc.next, at, 0.001)
				require.Empty(t, h.pb.to("/elsewhere"), "no redirect is followed: it would carry the secret")
				h.pb.on(nil)
				h.after(30 * time.Second)
				require.True(t, h.w.Ready(), "and it succeeds in the end")
			})
		})
	}
}

func TestAnEndlessAnswerIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	for status, limit := range map[int]int{200: maxAnswer, 409: maxErrorAnswer} {
		inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
			// A whole JSON value, and then more than is ever read.
			body := `{"sessionId":"s","expiresInMs":15000}` + strings.Repeat(" ", limit)
			h.pb.answer(wire.PathRegister, reply{status: status, raw: body})
			h.start()
			require.False(t, h.w.Ready())
			require.True(t, h.logged("registration failed"))
		})
	}
}

// OnRestored runs while the lease is renewed: that late, no request may get
// to an instance that another session owns.
func TestDuplicatesAreClosingWhenTheLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	var inst *Instance
	var open []bool
	opts := Options{OnRestored: func() { open = append(open, inst.Go(untilDone)) }}
	inBubble(t, opts, hosting(func(i *Instance) (http.Handler, error) { inst = i; return echo(i) }), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/theirs")
		h.pb.answer(wire.PathHeartbeat, reply{err: errors.New("no route")})
		h.after(12 * time.Second)
		h.pb.on(func(c call) (reply, bool) {
			if c.path == wire.PathHeartbeat {
				return reply{status: 409, body: object{"reregister": true}}, true
			}
			return reply{status: 200, body: object{
				"sessionId": "again", "expiresInMs": 15000, "duplicates": []any{object{"ns": "/c", "id": "theirs"}},
			}}, c.path == wire.PathRegister
		})
		h.after(3 * time.Second)
		require.Equal(t, []bool{false}, open)
	})
}

// A handler that was under way when the process lost the id, and that does not
// heed its context, must not answer in the next session either.
func TestAnInstanceThatWasLostAnswersNothing(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	host := serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) {
		<-gate
		_, _ = w.Write([]byte("an answer"))
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		kept, lost := h.beginGet("/c/kept"), h.beginGet("/c/lost")
		h.pb.on(func(c call) (reply, bool) {
			if c.path == wire.PathHeartbeat {
				return reply{status: 409, body: object{"reregister": true}}, true
			}
			return reply{status: 200, body: object{
				"sessionId": "again", "expiresInMs": 15000, "duplicates": []any{object{"ns": "/c", "id": "lost"}},
			}}, c.path == wire.PathRegister
		})
		h.after(3 * time.Second)
		require.True(t, h.w.Ready())
		close(gate)
		synctest.Wait()
		require.Equal(t, http.StatusOK, kept.rec.Code, "what was claimed again goes on")
		require.Equal(t, http.StatusServiceUnavailable, lost.rec.Code)
		require.NotContains(t, lost.rec.Body.String(), "an answer")
		require.Empty(t, lost.rec.Header().Get(wire.HeaderRefusal))
	})
}

func TestALostSessionIsRegisteredAgainAtOnceWithItsInstances(t *testing.T) {
	t.Parallel()
	hosts := map[string]Constructor{"/c": echo, "/d": echo, "/empty": echo}
	inBubble(t, Options{}, hosts, func(t *testing.T, h *harness) {
		h.start()
		first := h.pb.last(t, wire.PathRegister)
		require.NotContains(t, first.body, "prevSessionId")
		require.NotContains(t, first.body, "instances")
		h.get("/c/1")
		h.get("/c/2")
		h.get("/d/1")
		h.pb.answer(wire.PathHeartbeat, reply{status: 409, body: object{"error": "unknown", "reregister": true}})
		h.after(3 * time.Second)
		second := h.pb.last(t, wire.PathRegister)
		require.Equal(t, 3*time.Second, second.at, "in the same moment as the heartbeat")
		require.Equal(t, "session-1", second.body["prevSessionId"])
		require.Equal(t, first.body["clientId"], second.body["clientId"])
		require.Equal(t, first.body["secret"], second.body["secret"])
		instances := second.body["instances"].(object)
		require.Len(t, instances, 2)
		require.ElementsMatch(t, []any{"1", "2"}, instances["/c"])
		require.Equal(t, []any{"1"}, instances["/d"])
		require.EqualValues(t, 1, h.w.Stats().Reregistrations)
		require.True(t, h.live("/c", "1"), "instances are kept")
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.EqualValues(t, 2, h.w.Stats().Namespaces["/c"].Activations, "none was activated again")
	})
}

func TestASessionThatCannotRegisterAgainKeepsItsInstancesAndItsName(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		token := h.mint(attest.Claims{})
		h.pb.on(func(c call) (reply, bool) {
			if c.path == wire.PathHeartbeat {
				return reply{status: 409, body: object{"reregister": true}}, true
			}
			return reply{status: 503, retryAfter: "1"}, c.path == wire.PathRegister
		})
		h.after(4 * time.Second)
		require.False(t, h.w.Ready())
		r := httptest.NewRequest(http.MethodGet, "/c/1", nil)
		r.Header.Set(wire.HeaderAttestation, token)
		require.Equal(t, http.StatusForbidden, h.do(r).Code, "the lost session's attestations are void")
		h.pb.on(nil)
		h.after(30 * time.Second)
		require.Equal(t, "session-1", h.pb.last(t, wire.PathRegister).body["prevSessionId"], "also at a later attempt")
		require.True(t, h.w.Ready())
		require.True(t, h.live("/c", "1"))
	})
}

func TestASupersededWorkerAbortsEverythingAndStopsForGood(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.get("/c/2")
		h.pb.answer(wire.PathHeartbeat, reply{status: 409, body: object{"error": "displaced by x", "superseded": true, "reregister": true}})
		h.after(3 * time.Second)
		require.True(t, h.w.Superseded())
		require.False(t, h.w.Ready())
		require.False(t, h.live("/c", "1"))
		var freed int
		for _, c := range h.pb.to(wire.PathRelease) {
			for _, item := range c.list(t) {
				require.Equal(t, "session-1", item["sessionId"])
				freed++
			}
		}
		require.Equal(t, 2, freed, "its rows are its own until it releases them")
		refused(t, h.get("/c/1"), wire.RefusalReleasedEpoch)
		refused(t, h.get("/c/new"), wire.RefusalDraining)
		h.pb.on(nil)
		h.after(time.Hour)
		require.Len(t, h.pb.to(wire.PathHeartbeat), 1)
		require.Len(t, h.pb.to(wire.PathRegister), 1)
		require.ErrorIs(t, h.w.AwaitReady(t.Context()), ErrSuperseded)
	})
}

func TestWhatCouldNotBeReleasedWithoutASessionIsReleasedAfterTheNextRegistration(t *testing.T) {
	t.Parallel()
	var inst *Instance
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { inst = i; return echo(i) }), func(t *testing.T, h *harness) {
		h.start()
		h.get("/c/1")
		h.pb.on(func(c call) (reply, bool) {
			if c.path == wire.PathHeartbeat {
				return reply{status: 409, body: object{"reregister": true}}, true
			}
			return reply{status: 500}, c.path == wire.PathRegister
		})
		h.after(3 * time.Second)
		inst.Abort()
		synctest.Wait()
		require.False(t, h.live("/c", "1"))
		require.Empty(t, h.pb.to(wire.PathRelease))
		h.pb.on(nil)
		h.after(30 * time.Second)
		require.NotContains(t, h.pb.last(t, wire.PathRegister).body, "instances", "it is not claimed again")
		require.Equal(t, h.pb.last(t, wire.PathRegister).at, h.pb.last(t, wire.PathRelease).at, "at once")
		released := h.pb.last(t, wire.PathRelease).list(t)
		require.Equal(t, []object{{"sessionId": "session-2", "namespace": "/c", "id": "1", "epoch": "100"}}, released)
	})
}

func TestALeaseTooShortToActivateIsSaid(t *testing.T) {
	t.Parallel()
	for ms, said := range map[int]bool{8000: true, 8001: false} {
		inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
			h.pb.answer(wire.PathRegister, reply{status: 200, body: object{"sessionId": "s", "expiresInMs": ms}})
			h.start()
			require.Equal(t, said, h.logged("the lease is not longer than LeaseBuffer and HeartbeatInterval together: activations will be refused"))
		})
	}
}

func TestAwaitReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, h.w.AwaitReady(ctx), context.DeadlineExceeded)
		h.pb.answer(wire.PathRegister, reply{status: 503, retryAfter: "7"})
		require.NoError(t, h.w.Start())
		began := h.since()
		go func() { <-time.After(time.Second); h.pb.on(nil) }()
		require.NoError(t, h.w.AwaitReady(t.Context()))
		require.Equal(t, 7*time.Second, h.since()-began)
		h.stop()
		require.ErrorIs(t, h.w.AwaitReady(t.Context()), ErrClosed)
	})
}

func TestNoSecretIsLogged(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		outs := []reply{
			{err: errors.New("no route")},
			{status: 401, raw: `{"error":"bad"}`},
			{status: 500, raw: "a gateway's page with the request in it: Bearer planted-token-of-a-worker"},
			{status: 200, raw: `{"error":"planted-token-of-a-worker"`},
		}
		h.pb.on(func(c call) (reply, bool) {
			if c.path != wire.PathRegister || len(outs) == 0 {
				return reply{}, false
			}
			out := outs[0]
			outs = outs[1:]
			return out, true
		})
		h.start()
		h.after(2 * time.Minute)
		require.True(t, h.w.Ready())
		require.NotZero(t, h.logs.Len())
		for _, entry := range h.logs.All() {
			var line strings.Builder
			line.WriteString(entry.Message)
			for k, v := range entry.ContextMap() {
				line.WriteString(" " + k + "=")
				if s, ok := v.(string); ok {
					line.WriteString(s)
				}
			}
			require.NotContains(t, line.String(), "planted-token-of-a-worker")
			require.NotContains(t, line.String(), h.w.reg.secret.Reveal())
		}
	})
}
