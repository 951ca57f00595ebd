package pinboard

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// inWatchedBubble runs f in virtual time, on a node that watches sessions, with
// a worker that has a session and an open request.
func inWatchedBubble(t *testing.T, f func(t *testing.T, n *regNode, w *regWorker, open *flow)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		n.get("/healthz", "") // the first request starts the watch
		f(t, n, w, n.openFlow(w.session))
	})
}

// beatUntil renews the worker's session in the store for a time.
func (w *regWorker) beatUntil(d time.Duration) {
	w.n.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) { // virtual time
		_, err := w.n.store.Heartbeat(context.Background(), store.Beat{SessionID: w.session})
		require.NoError(w.n.t, err)
	}
}

func TestALivingSessionsFlowsStayOpen(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, w *regWorker, open *flow) {
		w.beatUntil(time.Minute)
		require.NoError(t, open.Err())
		require.Greater(t, n.pb.leases.left(n.pb.leases.byID[w.session]), 12*time.Second, "the watch keeps up with the lease")
	})
}

func TestALapsedSessionsFlowsAreCutWithinOneHeartbeat(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, _ *regWorker, open *flow) {
		time.Sleep(14 * time.Second)
		require.NoError(t, open.Err())
		time.Sleep(4 * time.Second) // 3 s after the lease
		require.Equal(t, errOwnerEnded, open.cause())
		require.Contains(t, n.said.String(), "session ended")
	})
}

func TestASessionThatEndedOnAnotherNodeIsCutHere(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, w *regWorker, open *flow) {
		require.NoError(t, n.store.Deregister(t.Context(), w.session))
		time.Sleep(3 * time.Second)
		require.Equal(t, errOwnerEnded, open.cause())
	})
}

func TestASuccessorFromAnotherNodeKeepsTheFlowsAsLongAsItLives(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, w *regWorker, open *flow) {
		first := w.session
		for range 3 {
			w.record("/a")
			w.beatUntil(20 * time.Second)
			require.NoError(t, open.Err())
			require.Zero(t, n.pb.leases.left(n.pb.leases.byID[first]), "no new request for the old session")
		}
		time.Sleep(18 * time.Second)
		require.Equal(t, errOwnerEnded, open.cause())
	})
}

func TestAStoreThatIsAwayCutsNothing(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, _ *regWorker, open *flow) {
		n.store.freeze()
		time.Sleep(time.Minute)
		require.NoError(t, open.Err())
		require.Contains(t, n.said.String(), "sessions not checked")
		n.store.fail(errStoreTest)
		time.Sleep(time.Minute)
		require.NoError(t, open.Err())
		n.store.intercept(nil)
		time.Sleep(3 * time.Second)
		require.Equal(t, errOwnerEnded, open.cause(), "it has lapsed meanwhile")
	})
}

// wipe has the store forget everything. In a bubble, while nobody is in a call.
func (s *regStore) wipe() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Store = MemoryStore().backend.Open(store.Config{Prefix: "p", LeaseTTL: 15 * time.Second, Shards: 1})
}

func TestAWipedStoreCutsNothingWithinTheLease(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, w *regWorker, open *flow) {
		n.store.wipe()
		time.Sleep(10 * time.Second)
		require.NoError(t, open.Err())
		w.record("/a") // in time, and its clients are still there
		w.beatUntil(30 * time.Second)
		require.NoError(t, open.Err())
		n.store.wipe()
		time.Sleep(18 * time.Second)
		require.Equal(t, errOwnerEnded, open.cause())
	})
}

func TestRecordsThatNobodyUsesAreForgotten(t *testing.T) {
	t.Parallel()
	inWatchedBubble(t, func(t *testing.T, n *regNode, w *regWorker, _ *flow) {
		idle, ended := n.workerAt("http://127.0.0.1:2"), n.workerAt("http://127.0.0.1:3")
		idle.record("/a")
		ended.record("/a")
		for _, other := range []*regWorker{idle, ended} {
			_, err := n.pb.leases.get(t.Context(), other.session)
			require.NoError(t, err)
		}
		n.pb.leases.end(ended.session)
		w.beatUntil((forget - 2) * watchEvery)
		_, err := n.pb.leases.get(t.Context(), idle.session)
		require.NoError(t, err, "in use again")
		w.beatUntil(4 * watchEvery)
		known := func() (ids []string) {
			n.pb.leases.mu.Lock()
			defer n.pb.leases.mu.Unlock()
			for id := range n.pb.leases.byID {
				ids = append(ids, id)
			}
			return ids
		}
		require.ElementsMatch(t, []string{w.session, idle.session}, known())
		w.beatUntil(forget * watchEvery)
		require.Equal(t, []string{w.session}, known(), "one with an open request is never forgotten")
	})
}

// A lease may be longer than the time for which records are kept that nobody uses.
func TestAPlacementIsServedWithoutTheStoreWhileItsOwnersLeaseRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, func(h *hit) { h.ok("") }, func(t *testing.T, b *limited) {
		get := func() int {
			resp, _ := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
			return resp.StatusCode
		}
		require.Equal(t, http.StatusOK, get())
		registered := time.Now()
		time.Sleep(b.pb.opts.LeaseTTL - time.Minute) // nobody asks for it
		away := &stuck{Store: b.store}
		away.set(errPlanted)
		b.pb.placer.store = away
		require.Equal(t, http.StatusOK, get())
		time.Sleep(time.Until(registered.Add(b.pb.opts.LeaseTTL)))
		require.Equal(t, http.StatusServiceUnavailable, get())
		time.Sleep((forget + 1) * watchEvery)
		b.pb.leases.mu.Lock()
		defer b.pb.leases.mu.Unlock()
		require.Empty(t, b.pb.leases.byID, "and then it is forgotten")
	})
}

func TestTheWatchAsksNothingWhenNothingIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		asked := 0
		n.store.intercept(func(_ context.Context, op string) error {
			if op == "States" {
				asked++
			}
			return nil
		})
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		n.know(w)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Zero(t, asked)
		n.openFlow(w.session)
		time.Sleep(3*time.Second + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 3, asked)
	})
}

// know has the node know a session that has nothing open.
func (n *regNode) know(w *regWorker) {
	n.get("/healthz", "")
	_, err := n.pb.leases.get(n.t.Context(), w.session)
	require.NoError(n.t, err)
}

func TestTheSweepGoesOnWhileThereIsMoreAndRestsOtherwise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		var at []time.Time
		more := 5
		n.store.sweep = func(context.Context) (int, bool, error) {
			at = append(at, time.Now())
			more--
			if more == 0 {
				return 1, false, errStoreTest
			}
			return 1, more > 0, nil
		}
		n.get("/healthz", "")
		time.Sleep(time.Minute)
		synctest.Wait()
		for i := 1; i < 5; i++ {
			require.Equal(t, sweepPause, at[i].Sub(at[i-1]), "in steps, with pauses") // virtual time
		}
		for i := 5; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), sweepEvery/2)
			require.LessOrEqual(t, at[i].Sub(at[i-1]), 2*sweepEvery)
		}
		require.Greater(t, len(at), 10)
		require.Contains(t, n.said.String(), "clean-up failed")
	})
}
