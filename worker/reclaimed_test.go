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

// reclaiming scripts a pinboard that forgets the first session, and whose answer
// to the next registration tells epochs.
func (h *harness) reclaiming(epochs any, delay time.Duration) func(c call) (reply, bool) {
	losing := h.losing()
	return func(c call) (reply, bool) {
		out, ok := losing(c)
		if c.path == wire.PathRegister {
			out.body.(object)["epochs"], out.delay = epochs, delay
		}
		return out, ok
	}
}

// releasesOf returns the epochs by which an id was released from a session.
func (h *harness) releasesOf(session, id string) (epochs []any) {
	for _, c := range h.pb.to(wire.PathRelease) {
		for _, item := range c.list(h.t) {
			if item["sessionId"] == session && item["id"] == id {
				epochs = append(epochs, item["epoch"])
			}
		}
	}
	return epochs
}

// Nobody asks for the ids behind the registration: their rows go by the epochs
// that it told, or stay for as long as the worker lives.
func TestARegistrationTellsTheEpochsOfWhatItClaims(t *testing.T) {
	t.Parallel()
	made := map[string]*Instance{}
	var saved *record
	host := func(inst *Instance) (http.Handler, error) {
		made[inst.ID()] = inst
		inst.OnClose(func(context.Context) error { saved.add("%s %d", inst.ID(), inst.Epoch()); return nil })
		return echo(inst)
	}
	inBubble(t, Options{IdleTimeout: 20 * time.Second}, hosting(host), func(t *testing.T, h *harness) {
		saved = &record{}
		h.start()
		for _, id := range []string{"higher", "equal", "lower", "untold"} {
			require.Equal(t, http.StatusOK, h.get("/c/"+id).Code)
		}
		h.pb.on(h.reclaiming(object{"/c": object{"higher": "200", "equal": "100", "lower": "99"}}, 0))
		h.after(3 * time.Second)
		require.Equal(t, "session-2", h.w.reg.sessionID())
		require.Equal(t, int64(200), made["higher"].Epoch())
		for _, id := range []string{"equal", "lower", "untold"} {
			require.Equal(t, int64(100), made[id].Epoch(), id)
		}
		refused(t, h.get("/c/higher"), wire.RefusalStaleEpoch)
		require.Equal(t, http.StatusOK, h.get("/c/equal").Code)
		require.Equal(t, http.StatusOK, h.get("/c/lower").Code)
		require.Empty(t, saved.all(), "they live on")

		h.after(25 * time.Second)
		require.ElementsMatch(t, []string{"higher 200", "equal 100", "lower 100", "untold 100"}, saved.all())
		for id, epoch := range map[string]string{"higher": "200", "equal": "100", "lower": "100", "untold": "100"} {
			require.Equal(t, []any{epoch}, h.releasesOf("session-2", id), id)
		}
		h.epoch = 200
		refused(t, h.get("/c/higher"), wire.RefusalReleasedEpoch)
	})
}

// An instance that closes saves by the epoch that it served by: another owner may
// have come and gone since. Its row goes all the same.
func TestAnInstanceThatClosesAsItIsClaimedKeepsItsEpoch(t *testing.T) {
	t.Parallel()
	var gate chan struct{}
	var saved int64
	host := func(inst *Instance) (http.Handler, error) {
		inst.OnClose(func(context.Context) error { <-gate; saved = inst.Epoch(); return nil })
		return echo(inst)
	}
	inBubble(t, Options{CloseTimeout: time.Hour}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		h.get("/c/1")
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.pb.on(h.reclaiming(object{"/c": object{"1": "200"}}, 0))
		h.after(4 * time.Second)
		require.Equal(t, object{"/c": []any{"1"}}, h.pb.last(t, wire.PathRegister).body["instances"])
		close(gate)
		synctest.Wait()
		require.Equal(t, int64(100), saved)
		require.Equal(t, []any{"200"}, h.releasesOf("session-2", "1"))
		h.epoch = 200
		refused(t, h.get("/c/1"), wire.RefusalReleasedEpoch)
	})
}

// The registration claimed an id whose release was under way, or that had gone
// by the time of the answer: what was released is the placement before.
func TestWhatEndsWhileItIsClaimedIsReleasedByTheEpochThatItGot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		release  time.Duration // takes as long
		register time.Duration
	}{
		"before the answer": {0, 2 * time.Second}, "behind the answer": {3 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.get("/c/lives")
				reclaiming := h.reclaiming(object{"/c": object{"1": "200", "lives": "200"}}, tc.register)
				h.pb.on(func(c call) (reply, bool) {
					if c.path == wire.PathRelease && c.list(t)[0]["sessionId"] == "session-1" {
						return reply{status: http.StatusOK, body: object{"released": 0}, delay: tc.release}, true
					}
					return reclaiming(c)
				})
				if tc.register == 0 {
					h.after(2500 * time.Millisecond)
					h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
					h.after(600 * time.Millisecond)
				} else {
					h.after(4 * time.Second)
					h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				}
				require.ElementsMatch(t, []any{"1", "lives"}, h.pb.last(t, wire.PathRegister).body["instances"].(object)["/c"])
				h.after(5 * time.Second)
				require.False(t, h.live("/c", "1"))
				require.Contains(t, h.releasesOf("session-2", "1"), "200")
				require.Empty(t, h.releasesOf("session-2", "lives"))
				h.epoch = 200
				refused(t, h.get("/c/1"), wire.RefusalReleasedEpoch)
				require.Equal(t, http.StatusOK, h.get("/c/lives").Code)
				h.epoch = 201
				require.Equal(t, http.StatusOK, h.get("/c/1").Code, "placed here again")
			})
		})
	}
}

// What is not understood of the epochs changes nothing else.
func TestMalformedEpochsArePassedOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		epochs any
		raised bool
		logged bool
	}{
		"null":                {epochs: nil},
		"none":                {epochs: object{}},
		"a text":              {epochs: "200", logged: true},
		"a list":              {epochs: []any{object{"ns": "/c", "id": "1"}}, logged: true},
		"not by id":           {epochs: object{"/c": "200"}, logged: true},
		"a number":            {epochs: object{"/c": object{"1": 200}}, logged: true},
		"not decimal":         {epochs: object{"/c": object{"1": "0xC8"}}, logged: true},
		"zero":                {epochs: object{"/c": object{"1": "0"}}, logged: true},
		"out of range":        {epochs: object{"/c": object{"1": "99999999999999999999"}}, logged: true},
		"good beside the bad": {epochs: object{"/c": object{"1": "200", "2": nil}}, raised: true, logged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var one *Instance
			host := func(inst *Instance) (http.Handler, error) { one = inst; return echo(inst) }
			inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.on(h.reclaiming(tc.epochs, 0))
				h.after(3 * time.Second)
				require.True(t, h.w.Ready())
				require.Equal(t, "session-2", h.w.reg.sessionID())
				require.Equal(t, tc.raised, one.Epoch() == 200)
				require.Equal(t, tc.logged, h.logged("registration answered with malformed epochs"))
			})
		})
	}
}
