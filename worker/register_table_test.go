package worker

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// What is wrong in a registration's answer beside session and lease does not
// undo the registration.
func TestARegistrationsAnswerIsTakenFieldByField(t *testing.T) {
	t.Parallel()
	const malformed = "pinboard answered with a malformed drainDeadline"
	for name, tc := range map[string]struct {
		more     string
		draining bool
		deadline time.Duration
		quits    bool // the instance "theirs"
		log      string
		times    int // 0: once, if there is a log
	}{
		"nothing more":                  {},
		"fields of another time":        {more: `,"new":1,"messages":[{"msgId":"m","type":"wind_down","ns":"/c","id":"mine","deadline":0}]`},
		"not draining":                  {more: `,"draining":false`},
		"draining":                      {more: `,"draining":true`, draining: true},
		"draining until then":           {more: `,"draining":true,"drainDeadline":60`, draining: true, deadline: time.Minute},
		"draining null":                 {more: `,"draining":null`},
		"draining a text":               {more: `,"draining":"maybe"`},
		"draining, deadline a text":     {more: `,"draining":true,"drainDeadline":"soon"`, draining: true, log: malformed},
		"draining, deadline negative":   {more: `,"draining":true,"drainDeadline":-0.1`, draining: true, log: malformed},
		"duplicates null":               {more: `,"duplicates":null`},
		"no duplicates":                 {more: `,"duplicates":[]`},
		"a duplicate":                   {more: `,"duplicates":[{"ns":"/c","id":"theirs"}]`, quits: true, log: "placed elsewhere meanwhile: quitting the instance"},
		"a duplicate twice":             {more: `,"duplicates":[{"ns":"/c","id":"theirs"},{"ns":"/c","id":"theirs","x":1}]`, quits: true},
		"a duplicate behind nonsense":   {more: `,"duplicates":[1,"x",null,[],{"ns":"/c"},{"id":"theirs"},{"ns":1,"id":"theirs"},{"ns":"/c","id":null},{"ns":"/c","id":"theirs"}]`, quits: true, log: "registration answered with a malformed duplicate", times: 8},
		"a duplicate in another case":   {more: `,"duplicates":[{"NS":"/c","ID":"theirs"}]`, log: "registration answered with a malformed duplicate"},
		"a duplicate of another's":      {more: `,"duplicates":[{"ns":"/d","id":"theirs"},{"ns":"/c","id":"nobody"},{"ns":"c","id":"theirs"}]`},
		"duplicates a text":             {more: `,"duplicates":"all"`, log: "registration answered with malformed duplicates"},
		"duplicates an object":          {more: `,"duplicates":{"ns":"/c","id":"theirs"}`, log: "registration answered with malformed duplicates"},
		"a duplicate, and a bad drain":  {more: `,"duplicates":[{"ns":"/c","id":"theirs"}],"draining":7`, quits: true},
		"bad duplicates, and a drain":   {more: `,"duplicates":7,"draining":true`, draining: true, log: "registration answered with malformed duplicates"},
		"an error beside what succeeds": {more: `,"error":"no","superseded":true,"reregister":true`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/mine")
				h.get("/c/theirs")
				losing := h.losing()
				h.pb.on(func(c call) (reply, bool) {
					if c.path == wire.PathRegister {
						return reply{status: http.StatusOK, raw: `{"sessionId":"session-2","expiresInMs":15000` + tc.more + `}`}, true
					}
					return losing(c)
				})
				h.after(3 * time.Second)
				require.True(t, h.w.Ready())
				require.False(t, h.w.Superseded())
				require.Equal(t, "session-2", h.w.reg.sessionID())
				require.Equal(t, 15*time.Second, h.leaseLeft())
				on, deadline := h.drainState()
				require.Equal(t, tc.draining, on)
				require.Equal(t, tc.deadline, deadline)
				require.True(t, h.live("/c", "mine"))
				require.Equal(t, tc.quits, !h.live("/c", "theirs"))
				if tc.log != "" {
					require.Equal(t, max(tc.times, 1), h.logs.FilterMessage(tc.log).Len())
				}
			})
		})
	}
}

func TestARegistrationWithoutALeaseLeftServesNothingYet(t *testing.T) {
	t.Parallel()
	for _, ms := range []float64{0, -1, -1e300, 0.0000001} {
		t.Run(fmt.Sprint(ms), func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.pb.answer(wire.PathRegister, reply{status: http.StatusOK, body: object{"sessionId": "s", "expiresInMs": ms}})
				h.start()
				require.False(t, h.w.Ready())
				refused(t, h.get("/c/1"), wire.RefusalExpired)
				h.after(3 * time.Second)
				require.True(t, h.w.Ready(), "it has a session, which the next heartbeat renews")
				require.Equal(t, http.StatusOK, h.get("/c/1").Code)
				require.Len(t, h.pb.to(wire.PathRegister), 1)
			})
		})
	}
}

// A worker that lost its session goes on trying, keeps what lives, and serves
// nothing meanwhile: not within what was left of the lease, since nobody can
// attest for it, and not behind its end.
func TestALostSessionIsRegisteredAgainHoweverLongItTakes(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]reply{
		"no connection":             {err: errors.New("no route")},
		"no answer":                 {status: http.StatusOK, delay: time.Hour},
		"400":                       {status: http.StatusBadRequest, body: object{"error": "no"}},
		"401":                       {status: http.StatusUnauthorized},
		"409":                       {status: http.StatusConflict, body: object{"error": "no"}},
		"409 that asks to register": {status: http.StatusConflict, body: object{"reregister": true}},
		"409 superseded":            {status: http.StatusConflict, body: object{"superseded": true}},
		"500":                       {status: http.StatusInternalServerError},
		"503":                       {status: http.StatusServiceUnavailable, retryAfter: "2"},
		"malformed":                 {status: http.StatusOK, raw: "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				losing := h.losing()
				h.pb.on(func(c call) (reply, bool) {
					if c.path == wire.PathRegister {
						return out, true
					}
					return losing(c)
				})
				h.after(4 * time.Second)
				require.Len(t, h.pb.to(wire.PathHeartbeat), 1)
				require.False(t, h.w.Ready())
				require.Equal(t, http.StatusForbidden, h.get("/c/1").Code)
				h.after(26 * time.Second)
				tried := len(h.pb.to(wire.PathRegister))
				h.after(40 * time.Second)
				require.Greater(t, len(h.pb.to(wire.PathRegister)), tried, "also behind the lease's end")
				require.False(t, h.w.Ready())
				require.False(t, h.w.Superseded(), "only a heartbeat says that")
				require.True(t, h.live("/c", "1"))
				for _, c := range h.pb.to(wire.PathRegister)[1:] {
					require.Equal(t, "session-1", c.body["prevSessionId"])
					require.Equal(t, object{"/c": []any{"1"}}, c.body["instances"])
				}
				h.pb.on(nil)
				h.after(35 * time.Second)
				require.Equal(t, http.StatusOK, h.get("/c/1").Code)
				require.EqualValues(t, 1, h.w.Stats().Namespaces["/c"].Activations)
				require.EqualValues(t, 1, h.w.Stats().Reregistrations)
			})
		})
	}
}

// Operators are told as loudly as they must act.
func TestHowLoudAFailedRegistrationIs(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		out    reply
		log    string
		levels []zapcore.Level
	}{
		"not ready, and ready soon": {reply{status: 503, retryAfter: "1", body: object{"error": "probe"}}, "registration deferred", []zapcore.Level{zapcore.InfoLevel, zapcore.InfoLevel, zapcore.WarnLevel, zapcore.WarnLevel}},
		"refused":                   {reply{status: 409, body: object{"error": "probe"}}, "registration rejected", []zapcore.Level{zapcore.WarnLevel, zapcore.WarnLevel}},
		"no connection":             {reply{err: &net.OpError{Op: "dial", Err: errors.New("probe")}}, "registration failed", []zapcore.Level{zapcore.WarnLevel, zapcore.WarnLevel}},
		"the token is wrong":        {reply{status: 401, body: object{"error": "probe"}}, "registration rejected with 401: check the deployment token (PINBOARD_TOKEN)", []zapcore.Level{zapcore.ErrorLevel, zapcore.ErrorLevel}},
		"malformed":                 {reply{status: 200, raw: "{}"}, "registration answered without a session or a lease time", []zapcore.Level{zapcore.ErrorLevel, zapcore.ErrorLevel}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.pb.answer(wire.PathRegister, tc.out)
				h.start()
				h.after(7 * time.Second)
				entries := h.logs.FilterMessage(tc.log).All()
				require.Len(t, entries, len(tc.levels))
				for i, entry := range entries {
					require.Equal(t, tc.levels[i], entry.Level, "attempt %d", i+1)
					if why, told := entry.ContextMap()["error"]; told {
						require.Contains(t, why, "probe", "it says why")
					}
				}
			})
		})
	}
}

// A registration that got to something else than the registry says where it went.
func TestARegistrationThatMissesTheRegistryHintsAtTheURL(t *testing.T) {
	t.Parallel()
	said := func(why string) string { return `{"error":"` + why + `"}` }
	for name, tc := range map[string]struct {
		out  reply
		hint bool
	}{
		"a 404 page":                    {reply{status: 404, raw: "404 page not found"}, true},
		"a namespace without a worker":  {reply{status: 404, raw: said("unknown namespace")}, true},
		"the data plane, 401":           {reply{status: 401, raw: said(wire.SaidUnauthenticated)}, true},
		"the data plane, 403":           {reply{status: 403, raw: said(wire.SaidForbidden)}, true},
		"a gateway, 401":                {reply{status: 401, raw: "<html>"}, true},
		"a gateway, 403":                {reply{status: 403, raw: `{"detail":"no"}`}, true},
		"the registry, 401":             {reply{status: 401, raw: said("a known bearer token is required")}, false},
		"the registry, no scope":        {reply{status: 403, raw: said("the credential lacks the scope pinboard:worker")}, false},
		"the registry, outside a claim": {reply{status: 403, raw: said("the namespace /c is outside the credential's claims")}, false},
		"the registry, a conflict":      {reply{status: 409, raw: said("another process answers at this advertise URL")}, false},
		"the registry, not yet":         {reply{status: 503, raw: said("the store does not answer")}, false},
		"a gateway, 502":                {reply{status: 502, raw: "bad gateway"}, false},
		"no connection":                 {reply{err: &net.OpError{Op: "dial", Err: errors.New("refused")}}, false},
		"no answer":                     {reply{err: errors.New("cut")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.pb.answer(wire.PathRegister, tc.out)
				h.start()
				told := h.logs.FilterFieldKey("url").All()
				require.Len(t, told, 1)
				require.Equal(t, h.w.opts.PinboardURL+wire.PathRegister, told[0].ContextMap()["url"])
				require.Equal(t, tc.hint, h.logs.FilterFieldKey("hint").Len() == 1)
			})
		})
	}
}
