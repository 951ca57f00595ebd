package pinboard

import (
	"context"
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// comeBack registers the worker's process anew, with the ids that it holds.
func (w *regWorker) comeBack(ids ...string) {
	w.n.t.Helper()
	w.session = rand.Text()
	_, err := w.n.store.Register(context.Background(), store.Registration{
		SessionID: w.session, ClientID: w.client, Secret: wire.NewSecret(w.secret), Namespaces: []string{"/a"},
		AdvertiseURL: w.url, BackendHosts: []string{"*"}, Instances: map[string][]string{"/a": ids},
	})
	require.NoError(w.n.t, err)
	w.report(10)
}

// outage has the store fail for so long, while ids are asked for.
func (n *regNode) outage(d time.Duration) {
	n.t.Helper()
	n.store.fail(errStoreTest)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(min(time.Second, time.Until(end))) { // virtual time
		_, err := n.resolve("asked", nil)
		require.Error(n.t, err)
	}
	n.store.intercept(nil)
}

// Leases run on while the store is away. An owner whose lease ended shortly before
// its next heartbeat must not lose its instances to whoever asks for them first.
func TestAfterAnOutageOwnersComeBackBeforeTheirIDsArePlacedElsewhere(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		late := n.ready(10, "/a")
		x, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, x.lease.ID)
		time.Sleep(6 * time.Second) // virtual time
		n.ready(1, "/a")

		n.outage(10 * time.Second)
		// The first look-up, too, that finds the store back. And the one for a
		// cluster call, and whatever this node has no memory of.
		for range 2 {
			for id, prefer := range map[string]string{"x": "", "new": "", "called": late.session} {
				_, err = n.pb.placer.resolve(t.Context(), ask{
					instance: instance{"/a", id}, prefer: prefer, key: func() (string, bool) { return "key", true },
				})
				ref := requireRefusal(t, err, http.StatusServiceUnavailable)
				require.True(t, ref.moving)
				require.LessOrEqual(t, ref.retryAfter, 4*time.Second, "a heartbeat and a second")
			}
		}
		time.Sleep(3 * time.Second) // virtual time
		late.comeBack("x")
		again, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, again.lease.ID, "its instance is kept")

		time.Sleep(time.Second) // virtual time
		_, err = n.resolve("new", nil)
		require.NoError(t, err)
	})
}

func TestDuringTheComebackPlacementsThatAreRefusedStillMove(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		n.ready(10, "/a")
		x, err := n.resolve("x", nil)
		require.NoError(t, err)
		n.outage(10 * time.Second)
		refused := &store.Refused{SessionID: x.lease.ID, ClientID: x.lease.ClientID, Epoch: x.epoch}
		moved, err := n.pb.placer.resolve(t.Context(), ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }, refused: refused})
		require.NoError(t, err)
		require.NotEqual(t, x.lease.ID, moved.lease.ID)
	})
}

func TestOnlyALongOutageDelaysPlacements(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(n *regNode){
		"a short one": func(n *regNode) { n.outage(7 * time.Second) },
		"a moment, after a minute in which nobody asked": func(n *regNode) {
			time.Sleep(time.Minute) // virtual time
			n.pb.sweepOnce(n.t.Context())
			n.outage(time.Second)
		},
		"two moments": func(n *regNode) {
			n.outage(time.Second)
			time.Sleep(10 * time.Second) // virtual time; nobody asks
		},
		"failures with successes in between": func(n *regNode) {
			for range 4 {
				n.outage(3 * time.Second)
				_, err := n.pb.placer.resolve(n.t.Context(), ask{
					instance: instance{"/a", "known"}, fresh: true, key: func() (string, bool) { return "", false },
				})
				require.NoError(n.t, err)
			}
		},
		"clients that leave": func(n *regNode) {
			n.store.freeze()
			for range 200 {
				ctx, leave := context.WithTimeout(n.t.Context(), 50*time.Millisecond)
				_, err := n.pb.placer.resolve(ctx, ask{
					instance: instance{"/a", "known"}, key: func() (string, bool) { return "", false },
					refused: &store.Refused{SessionID: "s", ClientID: "c", Epoch: 1},
				})
				require.Error(n.t, err)
				leave()
			}
			n.store.intercept(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
				w := n.ready(10, "/a")
				_, err := n.resolve("known", nil)
				require.NoError(t, err)
				away(n)
				w.comeBack()
				_, err = n.resolve("new", nil)
				require.NoError(t, err)
			})
		})
	}
}

// Workers beat as often when the lease is long.
func TestALongLeaseDelaysPlacementsNoLongerThanAHeartbeatTakes(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{LeaseTTL: time.Hour}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		n.outage(40 * time.Minute)
		_, err := n.resolve("new", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(maxGrace) // virtual time
		rt, err := n.resolve("new", nil)
		require.NoError(t, err)
		require.Equal(t, w.session, rt.lease.ID)
	})
}

// A node that serves no clients at all learns of an outage from the heartbeats
// that it can't record.
func TestHeartbeatsTellOfAnOutage(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		n.store.fail(errStoreTest, "Heartbeat")
		for range 4 {
			require.Equal(t, http.StatusServiceUnavailable, w.heartbeat().status)
			time.Sleep(3 * time.Second) // virtual time
		}
		n.store.intercept(nil)
		_, err := n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
	})
}

// A store that is full, or a replica, answers questions all the while.
func TestAStoreThatTakesNoWritesCostsNoInstances(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		late := n.ready(10, "/a")
		x, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, x.lease.ID)
		first := n.ready(1, "/a")
		n.store.fail(errStoreTest, "Heartbeat", "Ping", "Register", "Activate")
		for range 8 {
			time.Sleep(3 * time.Second) // virtual time
			for _, w := range []*regWorker{first, late} {
				w.heartbeat().requireRefusal(t, http.StatusServiceUnavailable, "the store")
			}
			if _, err := n.resolve("x", nil); err != nil {
				requireRefusal(t, err, http.StatusServiceUnavailable)
			}
			require.Equal(t, http.StatusServiceUnavailable, n.get("/healthz", "").status)
		}
		_, err = n.store.Session(t.Context(), late.session)
		require.ErrorIs(t, err, store.ErrNoSession, "its lease has ended")

		n.store.intercept(nil)
		require.Equal(t, true, first.heartbeat().field(t, "reregister"))
		_, err = n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		first.comeBack()
		_, err = n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(3 * time.Second) // virtual time
		require.Equal(t, true, late.heartbeat().field(t, "reregister"))
		late.comeBack("x")
		again, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, again.lease.ID, "its instance is kept")
		time.Sleep(time.Second) // virtual time
		_, err = n.resolve("new", nil)
		require.NoError(t, err)
	})
}

// The first failures come late: a question that is never answered is given up after a
// while, and before that, nobody may have asked.
func TestAnOutageBeginsWithTheLastAnswer(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		_, err := n.resolve("known", nil)
		require.NoError(t, err)
		time.Sleep(5 * time.Second) // virtual time; nobody asks
		n.outage(3 * time.Second)
		_, err = n.resolve("new", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
	})
}

// What the node asks by itself may go to another part of the store.
func TestACleanUpTellsOfNoEndOfAnOutage(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		n.store.fail(errStoreTest, "Heartbeat")
		for range 4 {
			require.Equal(t, http.StatusServiceUnavailable, w.heartbeat().status)
			n.pb.sweepOnce(t.Context())
			time.Sleep(3 * time.Second) // virtual time
		}
		n.store.intercept(nil)
		_, err := n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
	})
}

// Nobody knows for how long the store has been away that a node finds away at its start.
func TestANodeThatStartsDuringAnOutageTakesItForALongOne(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		n.pb.placer.back = comeback{lease: n.pb.placer.back.lease}
		n.outage(time.Second)
		_, err := n.resolve("new", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(maxGrace) // virtual time
		w.report(10)
		_, err = n.resolve("new", nil)
		require.NoError(t, err)
	})
}

// All nodes may have been away, and the store not: leases have ended, and who comes back
// first must not get what the others still hold.
func TestANodeThatStartsAmongYoungSessionsAwaitsTheOthers(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		late := n.ready(10, "/a")
		x, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, x.lease.ID)
		time.Sleep(20 * time.Second) // virtual time
		starts := func() { n.pb.placer.back = comeback{lease: n.pb.placer.back.lease} }
		starts()
		first := n.ready(10, "/a")
		_, err = n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(3 * time.Second) // virtual time
		_, err = n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		late.comeBack("x")
		again, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, late.session, again.lease.ID, "its instance is kept")
		time.Sleep(maxGrace) // virtual time
		first.report(10)
		_, err = n.resolve("new", nil)
		require.NoError(t, err)
		starts()
		n.ready(10, "/a")
		_, err = n.resolve("newer", nil)
		require.NoError(t, err, "among older ones a young one tells of nothing")
	})
}
