package worker

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// leaseLeft is how long the worker may still serve.
func (h *harness) leaseLeft() time.Duration {
	now := h.now()
	h.w.lease.mu.Lock()
	defer h.w.lease.mu.Unlock()
	return h.w.lease.deadline.mono - now.mono
}

// drainState is the operator's drain as the directory has it.
func (h *harness) drainState() (on bool, left time.Duration) {
	now := h.now()
	h.w.dir.mu.Lock()
	defer h.w.dir.mu.Unlock()
	d := h.w.dir.drains[operatorsDrain]
	if !d.hasDeadline {
		return d.on, 0
	}
	return d.on, (d.deadline - now.mono).Round(time.Millisecond)
}

func TestAHeartbeatsAnswerIsTakenFieldByField(t *testing.T) {
	t.Parallel()
	const (
		s       = time.Second
		before  = 12 * s // of the registration's 15 s
		renewed = 15 * s
	)
	for name, tc := range map[string]struct {
		answer   string
		left     time.Duration
		draining bool
		deadline time.Duration
		log      string
	}{
		"all good":                         {answer: `{"expiresInMs":15000,"draining":false}`, left: renewed},
		"no more than a lease":             {answer: `{"expiresInMs":15000}`, left: renewed},
		"a fraction of a millisecond":      {answer: `{"expiresInMs":15000.5}`, left: renewed + 500*time.Microsecond},
		"a shorter lease than before":      {answer: `{"expiresInMs":6000}`, left: 6 * s},
		"a lease of nothing":               {answer: `{"expiresInMs":0}`, left: 0},
		"a lease that is over":             {answer: `{"expiresInMs":-5000}`, left: -5 * s},
		"a lease out of range":             {answer: `{"expiresInMs":1e300}`, left: 30 * 24 * time.Hour},
		"degraded":                         {answer: `{"expiresInMs":15000,"degraded":true}`, left: renewed},
		"fields of another time":           {answer: `{"expiresInMs":15000,"new":{"draining":true},"duplicates":[{"ns":"/c","id":"1"}]}`, left: renewed},
		"a 200 that asks to register":      {answer: `{"expiresInMs":15000,"reregister":true}`, left: renewed},
		"a 200 that says superseded":       {answer: `{"expiresInMs":15000,"superseded":true}`, left: renewed},
		"the last of two leases":           {answer: `{"expiresInMs":1,"expiresInMs":15000}`, left: renewed},
		"draining":                         {answer: `{"expiresInMs":15000,"draining":true}`, left: renewed, draining: true},
		"draining until then":              {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":60.5}`, left: renewed, draining: true, deadline: 60500 * time.Millisecond},
		"draining, deadline out of range":  {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":1e300}`, left: renewed, draining: true, deadline: 30 * 24 * time.Hour},
		"draining, deadline null":          {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":null}`, left: renewed, draining: true},
		"draining, deadline a text":        {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":"9"}`, left: renewed, draining: true, log: "pinboard answered with a malformed drainDeadline"},
		"draining, deadline a bool":        {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":true}`, left: renewed, draining: true, log: "pinboard answered with a malformed drainDeadline"},
		"draining, deadline negative":      {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":-1}`, left: renewed, draining: true, log: "pinboard answered with a malformed drainDeadline"},
		"draining, deadline no number":     {answer: `{"expiresInMs":15000,"draining":true,"drainDeadline":1e999}`, left: renewed, draining: true, log: "pinboard answered with a malformed drainDeadline"},
		"a deadline of no drain":           {answer: `{"expiresInMs":15000,"draining":false,"drainDeadline":9}`, left: renewed},
		"draining a text":                  {answer: `{"expiresInMs":15000,"draining":"true"}`, left: renewed},
		"draining a number":                {answer: `{"expiresInMs":15000,"draining":1}`, left: renewed},
		"draining null":                    {answer: `{"expiresInMs":15000,"draining":null}`, left: renewed},
		"messages null":                    {answer: `{"expiresInMs":15000,"messages":null}`, left: renewed},
		"messages an object":               {answer: `{"expiresInMs":15000,"messages":{}}`, left: renewed, log: "heartbeat answered with malformed messages"},
		"a message without a lease":        {answer: `{"draining":true,"messages":[{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0}]}`, left: before, log: "heartbeat answered without a lease time"},
		"no lease":                         {answer: `{"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease null":                       {answer: `{"expiresInMs":null,"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease a text":                     {answer: `{"expiresInMs":"15000","draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease a bool":                     {answer: `{"expiresInMs":true,"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease a list":                     {answer: `{"expiresInMs":[15000],"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease of a number without a size": {answer: `{"expiresInMs":1e999,"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"lease in another case":            {answer: `{"ExpiresInMs":15000,"draining":true}`, left: before, log: "heartbeat answered without a lease time"},
		"nothing":                          {answer: ` `, left: before, log: "heartbeat answered without a lease time"},
		"a list":                           {answer: `[{"expiresInMs":15000}]`, left: before, log: "heartbeat answered without a lease time"},
		"two values":                       {answer: `{"expiresInMs":15000}{}`, left: before, log: "heartbeat answered without a lease time"},
		"a cut value":                      {answer: `{"expiresInMs":15000`, left: before, log: "heartbeat answered without a lease time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusOK, raw: tc.answer})
				h.after(3 * time.Second)
				require.Equal(t, tc.left, h.leaseLeft())
				require.Equal(t, tc.left > 0, h.w.Ready())
				on, deadline := h.drainState()
				require.Equal(t, tc.draining, on)
				require.Equal(t, tc.deadline, deadline)
				require.True(t, h.live("/c", "1"))
				require.False(t, h.w.Superseded())
				require.Len(t, h.pb.to(wire.PathRegister), 1)
				if tc.log != "" {
					require.True(t, h.logged(tc.log))
				}
				h.pb.on(nil)
				h.after(6 * time.Second)
				require.True(t, h.w.Ready(), "a good answer mends it")
				require.NotContains(t, h.pb.last(t, wire.PathHeartbeat).body, "acks")
			})
		})
	}
}

// Only what a heartbeat is answered with for certain ends a session.
func TestWhatARefusedHeartbeatDoes(t *testing.T) {
	t.Parallel()
	const (
		keeps     = "keeps the session"
		registers = "registers again"
		stops     = "stops for good"
	)
	for name, tc := range map[string]struct {
		status int
		body   string
		want   string
		log    string
	}{
		"400":                           {400, `{"error":"no"}`, keeps, "heartbeat rejected"},
		"401":                           {401, `{"error":"no"}`, keeps, "heartbeat rejected with 401: check the deployment token (PINBOARD_TOKEN)"},
		"403":                           {403, `{"error":"no"}`, keeps, "heartbeat rejected"},
		"404 of a gateway":              {404, `<html>`, keeps, "heartbeat rejected"},
		"409 that says no more":         {409, `{"error":"no"}`, keeps, "heartbeat rejected"},
		"409 without a body":            {409, ` `, keeps, "heartbeat rejected"},
		"409 reregister":                {409, `{"error":"unknown","reregister":true}`, registers, "pinboard does not know the session: registering again, instances are kept"},
		"409 reregister false":          {409, `{"error":"no","reregister":false}`, keeps, "heartbeat rejected"},
		"409 reregister a text":         {409, `{"reregister":"true"}`, keeps, "heartbeat rejected"},
		"409 reregister a number":       {409, `{"reregister":1}`, keeps, "heartbeat rejected"},
		"409 superseded":                {409, `{"error":"displaced by pr2","superseded":true}`, stops, "superseded by a worker of a higher epoch: stopping for good"},
		"409 superseded and reregister": {409, `{"superseded":true,"reregister":true}`, stops, "superseded by a worker of a higher epoch: stopping for good"},
		"409 superseded null":           {409, `{"superseded":null,"reregister":true}`, registers, "pinboard does not know the session: registering again, instances are kept"},
		"409 superseded a text":         {409, `{"superseded":"yes"}`, keeps, "heartbeat rejected"},
		"503 superseded":                {503, `{"superseded":true}`, keeps, "heartbeat rejected"},
		"410 reregister":                {410, `{"reregister":true}`, registers, "pinboard does not know the session: registering again, instances are kept"},
		"201":                           {201, `{"expiresInMs":15000}`, keeps, "heartbeat rejected"},
		"204":                           {204, ` `, keeps, "heartbeat rejected"},
		"307":                           {307, `{"reregister":false}`, keeps, "heartbeat rejected"},
		"500":                           {500, `{"error":"no"}`, keeps, "heartbeat rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(working), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.on(func(c call) (reply, bool) {
					first := len(h.pb.to(wire.PathHeartbeat)) == 1
					return reply{status: tc.status, raw: tc.body}, c.path == wire.PathHeartbeat && first
				})
				h.after(3 * time.Second)
				got := keeps
				switch {
				case h.w.Superseded():
					got = stops
				case len(h.pb.to(wire.PathRegister)) == 2:
					got = registers
				}
				require.Equal(t, tc.want, got)
				entries := h.logs.FilterMessage(tc.log).All()
				require.Len(t, entries, 1)
				if why, told := entries[0].ContextMap()["error"]; told {
					var sent wire.Error
					_ = json.Unmarshal([]byte(tc.body), &sent) // as much of it as there is
					require.Equal(t, sent.Error, why)
				}
				require.Equal(t, tc.want != stops, h.live("/c", "1"))
				require.Equal(t, tc.want != stops, h.w.Ready())
				h.after(3 * time.Second)
				require.Equal(t, tc.want != stops, h.w.Ready())
				if tc.want == keeps {
					require.Equal(t, "session-1", h.pb.last(t, wire.PathHeartbeat).body["sessionId"])
					require.Equal(t, 15*time.Second, h.leaseLeft(), "the next beat renews it")
				}
			})
		})
	}
}

func TestAMessageReachesTheInstanceThatItNames(t *testing.T) {
	t.Parallel()
	type seen struct{ c, d bool } // what lives afterwards
	for name, tc := range map[string]struct {
		message string
		want    seen
	}{
		"of one namespace":              {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0}`, seen{d: true}},
		"of the other":                  {`{"msgId":"m","type":"wind_down","ns":"/d","id":"1","deadline":0}`, seen{c: true}},
		"of a part of a name":           {`{"msgId":"m","type":"wind_down","ns":"c","id":"1","deadline":0}`, seen{true, true}},
		"of another id":                 {`{"msgId":"m","type":"wind_down","ns":"/c","id":"11","deadline":0}`, seen{true, true}},
		"of an empty id":                {`{"msgId":"m","type":"wind_down","ns":"/c","id":"","deadline":0}`, seen{true, true}},
		"of no namespace":               {`{"msgId":"m","type":"wind_down","id":"1","deadline":0}`, seen{true, true}},
		"of an empty namespace":         {`{"msgId":"m","type":"wind_down","ns":"","id":"1","deadline":0}`, seen{true, true}},
		"of another type":               {`{"msgId":"m","type":"abort","ns":"/c","id":"1","deadline":0}`, seen{true, true}},
		"of a deadline below nothing":   {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":-1e300}`, seen{d: true}},
		"of a deadline without a size":  {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":1e999}`, seen{true, true}},
		"twice":                         {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0},{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0}`, seen{d: true}},
		"without a name of its own":     {`{"type":"wind_down","ns":"/c","id":"1","deadline":0}`, seen{d: true}},
		"behind one that fails":         {`{"msgId":"n","type":"?"},{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0}`, seen{d: true}},
		"revoked in the same answer":    {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":9},{"msgId":"n","type":"wind_down","ns":"/c","id":"1","deadline":null}`, seen{true, true}},
		"given again once it was ended": {`{"msgId":"m","type":"wind_down","ns":"/c","id":"1","deadline":0},{"msgId":"n","type":"wind_down","ns":"/c","id":"1","deadline":null}`, seen{d: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, map[string]Constructor{"/c": working, "/d": working}, func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.get("/d/1")
				h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusOK, raw: `{"expiresInMs":15000,"messages":[` + tc.message + `]}`})
				h.after(3 * time.Second) // delivered again and again
				h.after(6 * time.Second)
				h.pb.on(nil)
				h.after(9 * time.Second)
				require.Equal(t, tc.want, seen{h.live("/c", "1"), h.live("/d", "1")})
				h.epoch++
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "the worker does not drain: the id may live here again")
				require.True(t, h.w.Ready())
			})
		})
	}
}
