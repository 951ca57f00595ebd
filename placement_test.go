package pinboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// ready records a worker that takes placements.
func (n *regNode) ready(headroom float64, namespaces ...string) *regWorker {
	n.t.Helper()
	w := n.workerAt("")
	w.url = "http://127.0.0.1/" + w.client
	w.record(namespaces...)
	w.report(headroom)
	return w
}

// report is a beat that goes past the registry, and activates.
func (w *regWorker) report(headroom float64) {
	w.n.t.Helper()
	_, err := w.n.store.Heartbeat(context.Background(), store.Beat{SessionID: w.session, Headroom: headroom})
	require.NoError(w.n.t, err)
}

func (n *regNode) resolve(id string, key func() (string, bool)) (route, error) {
	if key == nil {
		key = func() (string, bool) { return "", false }
	}
	return n.pb.placer.resolve(context.Background(), ask{instance: instance{"/a", id}, key: key})
}

// inPlacingBubble runs f in virtual time, on a node whose namespace /a has its
// quarantine behind it.
func inPlacingBubble(t *testing.T, opts Options, f func(t *testing.T, n *regNode)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, opts, nil)
		n.awaitQuarantine("/a")
		f(t, n)
	})
}

func requireRefusal(t *testing.T, err error, status int) *refusal {
	t.Helper()
	ref, ok := errors.AsType[*refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, status, ref.status)
	return ref
}

func TestAnIdIsPlacedOnceAndThenFound(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		first, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, w.session, first.lease.ID)
		require.Positive(t, first.epoch)
		n.ready(1000, "/a") // a better one changes nothing
		for range 3 {
			again, err := n.resolve("x", nil)
			require.NoError(t, err)
			require.True(t, first.same(again))
		}
		require.EqualValues(t, 4, n.pb.counters.resolves.Load())
		// The first one was asked before anything was known of the namespace.
		require.EqualValues(t, 2, n.pb.counters.cacheHits.Load())
	})
}

func TestWhatCannotBePlacedIsRefusedAsTheProtocolSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		_, err := n.resolve("x", nil)
		require.Equal(t, "unknown namespace", requireRefusal(t, err, http.StatusNotFound).message)
		w := n.ready(10, "/a")
		_, err = n.resolve("x", nil)
		require.Equal(t, 15*time.Second, requireRefusal(t, err, http.StatusServiceUnavailable).retryAfter)
		time.Sleep(14 * time.Second) // virtual time
		w.report(10)
		_, err = n.resolve("x", nil)
		require.Equal(t, time.Second, requireRefusal(t, err, http.StatusServiceUnavailable).retryAfter)
		time.Sleep(time.Second)
		require.NoError(t, n.store.SetDegraded(t.Context(), w.session, true))
		_, err = n.resolve("x", nil)
		require.ErrorIs(t, err, errNoCandidate)
		require.NoError(t, n.store.SetDegraded(t.Context(), w.session, false))
		_, err = n.resolve("x", nil)
		require.NoError(t, err)

		// Another process on the owner's URL: nobody is called until the lease
		// has ended, but not told to wait longer than a shutdown takes.
		thief := n.workerAt(w.url)
		thief.record("/a")
		_, err = n.resolve("x", nil)
		require.Equal(t, 3*time.Second, requireRefusal(t, err, http.StatusServiceUnavailable).retryAfter)
		time.Sleep(13 * time.Second)
		thief.report(10)
		_, err = n.resolve("x", nil)
		require.Equal(t, time.Second, requireRefusal(t, err, http.StatusServiceUnavailable).retryAfter)
		time.Sleep(time.Second)
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, thief.session, rt.lease.ID)
	})
}

func TestIdsWithOneKeyPreferOneWorkerWhileTheBalanceAllows(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		for range 5 {
			n.ready(1000, "/a")
		}
		owners := map[string]int{}
		for i := range 64 {
			rt, err := n.resolve(fmt.Sprint("same", i), func() (string, bool) { return "198.51.100.7", true })
			require.NoError(t, err)
			owners[rt.lease.ClientID]++
		}
		require.Len(t, owners, 1)
		// Other keys, and no key, spread.
		for i := range 64 {
			rt, err := n.resolve(fmt.Sprint("other", i), func() (string, bool) { return fmt.Sprint("key", i), true })
			require.NoError(t, err)
			owners[rt.lease.ClientID]++
		}
		require.Len(t, owners, 5)
		for _, none := range []func() (string, bool){nil, func() (string, bool) { return "", true }, func() (string, bool) { return "x", false }} {
			owners := map[string]int{}
			for i := range 64 {
				rt, err := n.resolve(fmt.Sprintf("none%p-%d", none, i), none)
				require.NoError(t, err)
				owners[rt.lease.ClientID]++
			}
			require.Greater(t, len(owners), 2)
		}
	})
}

func TestThePreferenceGivesWayToTheBalance(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{Affinity: Affinity{BalanceFactor: 4}}, func(t *testing.T, n *regNode) {
		key := func() (string, bool) { return "key", true }
		one, two := n.ready(100, "/a"), n.ready(100, "/a")
		rt, err := n.resolve("first", key)
		require.NoError(t, err)
		preferred, other := one, two
		if rt.lease.ID == two.session {
			preferred, other = two, one
		}
		preferred.report(25)
		other.report(100)
		rt, err = n.resolve("second", key)
		require.NoError(t, err)
		require.Equal(t, preferred.session, rt.lease.ID, "25 times 4 is enough")
		preferred.report(24)
		other.report(100)
		rt, err = n.resolve("third", key)
		require.NoError(t, err)
		require.Equal(t, other.session, rt.lease.ID)
	})
}

func TestAClusterCallPrefersTheCallersWorker(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		workers := []*regWorker{n.ready(1000, "/a"), n.ready(1000, "/a"), n.ready(1000, "/a")}
		for i, w := range workers {
			for j := range 8 {
				rt, err := n.pb.placer.resolve(t.Context(), ask{
					instance: instance{"/a", fmt.Sprint(i, "-", j)}, prefer: w.session,
					key: func() (string, bool) { t.Error("not needed"); return "", false },
				})
				require.NoError(t, err)
				require.Equal(t, w.session, rt.lease.ID)
			}
		}
	})
}

func TestTheKeyIsAskedForOnceAndOnlyForAPlacement(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		asked := 0
		key := func() (string, bool) { asked++; return "k", true }
		_, err := n.resolve("x", key)
		require.NoError(t, err)
		require.Equal(t, 1, asked)
		_, err = n.resolve("x", key)
		require.NoError(t, err)
		require.Equal(t, 1, asked)
		// Workers that come and go meanwhile cost no second question.
		n.store.intercept(func(_ context.Context, op string) error {
			if op == "Candidates" {
				n.ready(10, "/a")
			}
			return nil
		})
		_, err = n.resolve("y", key)
		require.NoError(t, err)
		require.Equal(t, 2, asked)
	})
}

func TestSimultaneousLookUpsOfOneIdShareOneQuestion(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		goOn := make(chan struct{})
		var asked atomic.Int64
		n.store.intercept(func(_ context.Context, op string) error {
			if op == "Resolve" {
				asked.Add(1)
				<-goOn
			}
			return nil
		})
		first, leave := context.WithCancel(t.Context())
		const simultaneous = 256
		answers := make(chan error, simultaneous)
		for i := range simultaneous {
			ctx := t.Context()
			if i == 0 {
				ctx = first
			}
			go func() {
				rt, err := n.pb.placer.resolve(ctx, ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }})
				if err == nil && rt.lease.ID != w.session {
					err = errors.New("another owner")
				}
				answers <- err
			}()
			synctest.Wait()
		}
		leave() // who asked first does not take the others along
		require.ErrorIs(t, <-answers, context.Canceled)
		close(goOn)
		for range simultaneous - 1 {
			require.NoError(t, <-answers)
		}
		require.EqualValues(t, 1, asked.Load())
	})
}

func TestARequestWaitsForASessionThatIsAboutToBeActive(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.workerAt("http://127.0.0.1:2")
		w.record("/a")
		_, err := n.resolve("x", nil)
		require.ErrorIs(t, err, errNoCandidate)
		settled := n.pb.leases.activating([]string{"/a"})
		go func() {
			time.Sleep(time.Second) // virtual time
			if err := n.store.Activate(context.Background(), w.session); err != nil {
				t.Error(err)
			}
			settled()
		}()
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, w.session, rt.lease.ID)
	})
}

// Protocol §5: known placements inside their lease are served while the store
// is away; anything else is 503.
func TestKnownRoutesServeInsideTheirLeaseWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		known, err := n.resolve("x", nil)
		require.NoError(t, err)
		n.store.freeze()
		// Clients that leave while the store is silent take nothing along.
		impatient, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		_, err = n.pb.placer.resolve(impatient, ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for range 3 {
			rt, err := n.resolve("x", nil)
			require.NoError(t, err)
			require.True(t, known.same(rt))
			_, err = n.resolve("y", nil)
			require.ErrorIs(t, err, errStoreAway)
		}
		require.EqualValues(t, 3, n.pb.counters.cacheHits.Load())
		// A worker that has just refused the id is not asked again.
		_, err = n.pb.placer.resolve(t.Context(), ask{
			instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false },
			refused: &store.Refused{SessionID: known.lease.ID, ClientID: known.lease.ClientID, Epoch: known.epoch},
		})
		require.ErrorIs(t, err, errStoreAway)
		time.Sleep(15 * time.Second) // virtual time
		_, err = n.resolve("x", nil)
		require.ErrorIs(t, err, errStoreAway)
	})
}

// A session that is renewed says nothing of a single id: it may have been given
// up, and placed elsewhere, since this node last asked for it.
func TestARouteThatWasNotConfirmedForALeaseIsNotServedWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		old, err := n.resolve("old", nil)
		require.NoError(t, err)
		for range 6 {
			time.Sleep(3 * time.Second) // virtual time
			w.report(10)
			_, err = n.resolve("young", nil)
			require.NoError(t, err)
		}
		require.Positive(t, n.pb.leases.left(old.lease), "the owner's lease is known to run")
		n.store.freeze()
		_, err = n.resolve("old", nil)
		require.ErrorIs(t, err, errStoreAway)
		_, err = n.resolve("young", nil)
		require.NoError(t, err)
	})
}

func TestARefusedPlacementGoesToAnotherClient(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		one, two := n.ready(10, "/a"), n.ready(10, "/a")
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		other := one
		if rt.lease.ID == one.session {
			other = two
		}
		again, err := n.pb.placer.resolve(t.Context(), ask{
			instance: instance{"/a", "x"}, key: func() (string, bool) { return "k", true },
			refused: &store.Refused{SessionID: rt.lease.ID, ClientID: rt.lease.ClientID, Epoch: rt.epoch},
		})
		require.NoError(t, err)
		require.Equal(t, other.session, again.lease.ID)
		require.Greater(t, again.epoch, rt.epoch)
		found, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.True(t, again.same(found))
	})
}

func TestARendezvousAgreesEverywhereAndMovesLittle(t *testing.T) {
	t.Parallel()
	var all []store.Candidate
	for i := range 10 {
		all = append(all, store.Candidate{SessionID: fmt.Sprint("session", i), ClientID: fmt.Sprint("client", i)})
	}
	require.Empty(t, rendezvous("k", nil, nil))
	counts := map[string]int{}
	moved := 0
	const keys = 5000
	for i := range keys {
		key := fmt.Sprint("198.51.100.", i)
		winner := rendezvous(key, all, nil)
		counts[winner]++
		require.Equal(t, winner, rendezvous(key, append(all[5:10:10], all[:5]...), nil), "the order of the candidates is all one")
		fewer := rendezvous(key, all[:9], nil)
		if winner == "session9" {
			moved++
		} else {
			require.Equal(t, winner, fewer, "only what the tenth had moves")
		}
		refused := &store.Refused{ClientID: "client9"}
		require.Equal(t, fewer, rendezvous(key, all, refused), "who refused is left out")
	}
	require.Len(t, counts, 10)
	for who, count := range counts {
		require.InDelta(t, keys/10, count, keys/40, who)
	}
	require.Equal(t, counts["session9"], moved)
	// All nodes of a fleet must agree on the weight: nodes of another version
	// would send ids with one key elsewhere.
	require.EqualValues(t, uint64(0x6b0df71781a30337), weight("198.51.100.7", "client1"))
	require.NotEqual(t, weight("ab", "c"), weight("a", "bc"))
}

func TestADieIsFair(t *testing.T) {
	t.Parallel()
	var high [3]int
	for range 1000 {
		for i, d := range rollDice() {
			require.Less(t, d, uint32(1)<<31)
			if d >= 1<<30 {
				high[i]++
			}
		}
	}
	for _, count := range high {
		require.InDelta(t, 500, count, 150)
	}
}

func TestAKeyThatPanicsIsNoKeyAndIsLogged(t *testing.T) {
	t.Parallel()
	var seen Client
	opts := Options{Affinity: Affinity{Key: func(r *http.Request, c Client) (string, bool) {
		seen = c
		if r.URL.Path == "/panic" {
			panic("no thread")
		}
		return r.URL.Path, true
	}}}
	n := newRegNode(t, opts, nil)
	c := Client{Addr: peer(from("192.0.2.1:1"))}
	key, ok := n.pb.affinityKey(httptest.NewRequest("GET", "/panic", nil), c)
	require.False(t, ok)
	require.Empty(t, key)
	require.Equal(t, c, seen)
	require.Contains(t, n.said.String(), "no thread")
	key, ok = n.pb.affinityKey(httptest.NewRequest("GET", "/k", nil), c)
	require.True(t, ok)
	require.Equal(t, "/k", key)
}

func TestTheDefaultKeyIsTheClientsAddress(t *testing.T) {
	t.Parallel()
	key, ok := clientAddress(nil, Client{Addr: peer(from("[::ffff:192.0.2.1]:1"))})
	require.True(t, ok)
	require.Equal(t, "192.0.2.1", key)
	_, ok = clientAddress(nil, Client{})
	require.False(t, ok)
}
