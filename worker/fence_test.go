package worker

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestFences(t *testing.T) {
	t.Parallel()
	k, other := key{"/c", "1"}, key{"/c", "2"}
	type step struct {
		after time.Duration
		do    string // admit, or giveUp
		epoch int64
		want  string // reason
	}
	const s = time.Second
	for name, steps := range map[string][]step{
		"a lower epoch is stale":               {{0, "admit", 5, ""}, {0, "admit", 4, wire.RefusalStaleEpoch}, {0, "admit", 5, ""}, {0, "admit", 6, ""}, {0, "admit", 5, wire.RefusalStaleEpoch}},
		"a released epoch is over":             {{0, "admit", 5, ""}, {0, "giveUp", 5, ""}, {0, "admit", 5, wire.RefusalReleasedEpoch}, {0, "admit", 6, ""}},
		"released without being seen":          {{0, "giveUp", 5, ""}, {0, "admit", 5, wire.RefusalReleasedEpoch}, {0, "admit", 4, wire.RefusalStaleEpoch}},
		"giving an old one up changes nothing": {{0, "admit", 6, ""}, {0, "giveUp", 5, ""}, {0, "admit", 6, ""}},
		"forgotten two leases later":           {{0, "giveUp", 5, ""}, {30 * s, "admit", 5, wire.RefusalReleasedEpoch}, {1, "admit", 5, ""}},
		"a refusal does not prolong it":        {{0, "giveUp", 5, ""}, {29 * s, "admit", 5, wire.RefusalReleasedEpoch}, {2 * s, "admit", 4, ""}},
		"a use prolongs it":                    {{0, "admit", 5, ""}, {29 * s, "admit", 5, ""}, {29 * s, "admit", 4, wire.RefusalStaleEpoch}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFences(func() time.Duration { return 15 * s })
			now := time.Hour
			for i, step := range steps {
				now += step.after
				if step.do == "giveUp" {
					f.giveUp(k, step.epoch, now)
					continue
				}
				ref := f.admit(k, step.epoch, now)
				if step.want == "" {
					require.Nil(t, ref, i)
				} else {
					require.NotNil(t, ref, i)
					require.Equal(t, step.want, ref.reason, i)
				}
				require.Nil(t, f.admit(other, 1, now), "ids do not meet")
			}
		})
	}
}

func TestFencesDoNotPileUp(t *testing.T) {
	t.Parallel()
	ttl := time.Duration(0)
	f := newFences(func() time.Duration { return ttl })
	now := time.Hour
	for i := range 1000 {
		f.giveUp(key{"/c", string(rune('a' + i))}, 1, now)
	}
	f.giveUp(key{"/c", "a"}, 2, now+time.Minute) // still the first one to look at
	require.NotNil(t, f.admit(key{"/c", "b"}, 1, now+60*time.Second), "30 s stand in for a lease time not known yet")
	ttl = 15 * time.Second
	later := now + 80*time.Second
	require.Nil(t, f.admit(key{"/c", "new"}, 1, later))
	require.Equal(t, 1000-(sweepStep-1)+1, len(f.byID), "a use looks at a few, however many there are, and one was used again")
	for range 1000 / sweepStep {
		require.Nil(t, f.admit(key{"/c", "new"}, 1, later))
	}
	require.Len(t, f.byID, 2, "the new one, and the one that was used again")
	require.NotNil(t, f.admit(key{"/c", "a"}, 1, later))
}

func TestARequestOfAnOldPlacementIsFenced(t *testing.T) {
	t.Parallel()
	var inst *Instance
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) { inst = i; return echo(i) }), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.EqualValues(t, 100, inst.Epoch())
		h.epoch = 105
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.EqualValues(t, 105, inst.Epoch(), "placed here anew: it rises in place")
		h.epoch = 104
		refused(t, h.get("/c/1"), wire.RefusalStaleEpoch)
		require.EqualValues(t, 105, inst.Epoch())
		h.epoch = 105
		inst.Abort()
		synctest.Wait()
		refused(t, h.get("/c/1"), wire.RefusalReleasedEpoch)
		require.False(t, h.live("/c", "1"))
		require.Equal(t, []object{{"sessionId": "session-1", "namespace": "/c", "id": "1", "epoch": "105"}},
			h.pb.last(t, wire.PathRelease).list(t))
		h.epoch = 106
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
	})
}

// What pinboard frees after a refusal may live elsewhere a moment later. A node
// of pinboard that has not heard of it must not find the id here again.
func TestAPlacementThatWasRefusedIsNeverServed(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		h.pb.answer(wire.PathHeartbeat, reply{status: 503})
		h.after(10 * time.Second)
		rec := h.get("/c/1")
		refused(t, rec, wire.RefusalLeaseUnhealthy)
		require.True(t, wire.GivesUp(rec.Header().Get(wire.HeaderRefusal)))
		h.pb.on(nil)
		h.after(3 * time.Second)
		require.Equal(t, http.StatusOK, h.get("/c/2").Code)
		refused(t, h.get("/c/1"), wire.RefusalReleasedEpoch)
		h.epoch++
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
	})
}
