package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// recalled looks the id up until the node recalls it, and has the calls since then
// counted anew.
func (n *regNode) recalled(id string) route {
	n.t.Helper()
	for range 3 {
		rt, err := n.resolve(id, nil)
		require.NoError(n.t, err)
		if rt.recalled {
			n.store.called()
			return rt
		}
	}
	require.Fail(n.t, "never recalled")
	return route{}
}

// Invariant 7: not past the owner's lease as this node knows it, also while the
// store would still say otherwise.
func TestNothingIsRecalledPastTheLeaseThatThisNodeKnowsOf(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		n.recalled("x")
		for range 14 { // the watch, which hears of renewals, does not run
			time.Sleep(time.Second) // virtual time
			w.report(10)
			rt, err := n.resolve("x", nil)
			require.NoError(t, err)
			require.True(t, rt.recalled)
			require.False(t, rt.over())
		}
		n.store.called()
		time.Sleep(time.Second)
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.False(t, rt.recalled)
		require.Equal(t, []string{"Resolve"}, n.store.called())
	})
}

func TestTheWatchKeepsUpWithTheLeasesOfRecalledRoutes(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.get("/healthz", "") // the first request starts the watch
		w := n.ready(10, "/a")
		n.recalled("x")
		for range 60 {
			time.Sleep(time.Second) // virtual time
			w.report(10)
			rt, err := n.resolve("x", nil)
			require.NoError(t, err)
			require.True(t, rt.recalled)
		}
		require.NotContains(t, n.store.called(), "Resolve")
	})
}

// doubtful is a store of which a test says what it knows.
type doubtful struct {
	store.Store
	mu   sync.Mutex
	tell func(store.Known, error) (store.Known, error)
}

func (d *doubtful) Known(ctx context.Context, binding, id string) (store.Known, error) {
	known, err := d.Store.Known(ctx, binding, id)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tell == nil {
		return known, err
	}
	return d.tell(known, err)
}

func (d *doubtful) says(tell func(store.Known, error) (store.Known, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell = tell
}

// freezeAt has the store know the row as it is now for ever, and believe that.
func (d *doubtful) freezeAt(ctx context.Context, binding, id string) error {
	now, err := d.Store.Known(ctx, binding, id)
	d.says(func(store.Known, error) (store.Known, error) {
		now.AsOf = time.Now()
		return now, nil
	})
	return err
}

func TestOnlyWhatTheStoreVouchesForIsRecalled(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(store.Known, error) (store.Known, error){
		"too old": func(k store.Known, err error) (store.Known, error) {
			k.AsOf = k.AsOf.Add(-5*time.Second - 1)
			return k, err
		},
		"another generation":  func(k store.Known, err error) (store.Known, error) { k.Generation += "1"; return k, err },
		"no generation":       func(k store.Known, err error) (store.Known, error) { k.Generation = ""; return k, err },
		"no row":              func(k store.Known, err error) (store.Known, error) { k.SessionID, k.Epoch = "", 0; return k, err },
		"an unknown session":  func(k store.Known, err error) (store.Known, error) { k.SessionID = "s"; return k, err },
		"no word from Redis":  func(store.Known, error) (store.Known, error) { return store.Known{}, errStoreTest },
		"nothing is told of":  func(store.Known, error) (store.Known, error) { return store.Known{}, store.ErrNotTracked },
		"the client gave up":  func(store.Known, error) (store.Known, error) { return store.Known{}, context.DeadlineExceeded },
		"as old as it can be": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
				n.ready(10, "/a")
				d := &doubtful{Store: n.pb.placer.store}
				n.pb.placer.store = d
				n.recalled("x")
				if tell == nil {
					d.says(func(k store.Known, err error) (store.Known, error) {
						k.AsOf = k.AsOf.Add(-5 * time.Second)
						return k, err
					})
					n.recalled("x")
					return
				}
				d.says(tell)
				rt, err := n.resolve("x", nil)
				require.NoError(t, err)
				require.False(t, rt.recalled)
				require.Equal(t, []string{"Resolve"}, n.store.called())
			})
		})
	}
}

// What is known without asking says nothing of a store that is away: others do not
// wait for it again.
func TestWhatIsKnownDoesNotMakeOthersWaitForAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		n.recalled("x")
		n.store.freeze("Resolve")
		_, err := n.resolve("y", nil)
		require.ErrorIs(t, err, errStoreAway)
		time.Sleep(2 * gateEvery) // virtual time: then somebody tries again
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.True(t, rt.recalled)
		asked := time.Now()
		_, err = n.resolve("z", nil)
		require.ErrorIs(t, err, errStoreAway)
		require.Zero(t, time.Since(asked))
	})
}

// The worker's next word to its client comes right behind the answer.
func TestAReleaseThroughThisNodeIsHeardOfBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.ready(10, "/a")
		d := &doubtful{Store: n.pb.placer.store}
		n.pb.placer.store = d
		old := n.recalled("x")
		require.NoError(t, d.freezeAt(t.Context(), "/a", "x"))
		n.post(wire.PathRelease, tokenWorker, fields{"sessionId": w.session, "namespace": "/a", "id": "x"})
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Greater(t, rt.epoch, old.epoch)
	})
}

// No row changes when a session ends or must not be called any more, and yet no
// node goes by what it knew.
func TestTheEndOfASessionIsHeardOfThoughNoRowChanges(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		one := n.ready(10, "/a")
		n.recalled("x")
		two := n.ready(10, "/a")
		n.recalled("x") // one more worker changes nothing
		require.NoError(t, n.store.Deregister(t.Context(), one.session))
		rt, err := n.resolve("x", nil)
		require.NoError(t, err)
		require.Equal(t, two.session, rt.lease.ID)
		n.recalled("x")
		thief := n.workerAt(two.url)
		thief.record("/a")
		n.store.called()
		_, err = n.resolve("x", nil)
		requireRefusal(t, err, http.StatusServiceUnavailable)
		require.Equal(t, []string{"Resolve"}, n.store.called())
	})
}

// The exact name goes before the binding without one, from the moment it is bound.
func TestANewHostNameIsHeardOf(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		plain := n.ready(10, "/a")
		recalls := func(host string) bool {
			rt, err := n.resolveFor(host, "x")
			require.NoError(t, err)
			require.Equal(t, plain.session, rt.lease.ID)
			return rt.recalled
		}
		recalls("")
		recalls("")
		require.True(t, recalls(""))
		require.False(t, recalls(chat), "it was bound before")
		require.False(t, recalls(chat), "whether it still is, the store has not said")
		require.True(t, recalls(chat))
		bound := n.workerAt("http://127.0.0.1:3")
		bound.recordAs(under(chat))
		for range 3 {
			rt, err := n.resolveFor(chat, "x")
			require.NoError(t, err)
			require.Equal(t, bound.session, rt.lease.ID)
		}
	})
}

// Clients make host names up.
func TestHostNamesThatAreNotBoundDoNotPileUp(t *testing.T) {
	t.Parallel()
	var v vouched
	b := bucket{namespace: "/a"}
	v.note(b, "1")
	for i := range 3 * maxUnbound {
		v.vouch(b, "1", "s", fmt.Sprint(i))
	}
	require.LessOrEqual(t, len(v.byBucket[b].unbound), maxUnbound)
	require.NotNil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "1"}, fmt.Sprint(3*maxUnbound-1)))
	for i := range 2 * maxBound {
		v.note(bucket{namespace: fmt.Sprint(i)}, "1")
	}
	require.LessOrEqual(t, len(v.byBucket), maxBound)
}

// What the store said before the generation was another one counts no more.
func TestASessionIsVouchedForOnlyInTheGenerationThatWasKnownBefore(t *testing.T) {
	t.Parallel()
	var v vouched
	b := bucket{namespace: "/a"}
	v.vouch(b, "", "s", "")
	require.Empty(t, v.generation(b))
	v.note(b, "1")
	v.vouch(b, "1", "s", "")
	require.NotNil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "1"}, ""))
	require.Nil(t, v.vouches(b, store.Known{SessionID: "t", Generation: "1"}, ""))
	require.Nil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "1"}, chat))
	v.note(b, "2")
	v.vouch(b, "1", "s", "")
	require.Nil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "2"}, ""))
	v.vouch(b, "2", "s", "")
	require.NotNil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "2"}, ""))
	require.Nil(t, v.vouches(b, store.Known{SessionID: "s", Generation: "1"}, ""))
}

// outOfDate is a front that believes for ever that alice lives on a, and has been
// told so. By now she lives on b.
func outOfDate(t *testing.T, onA func(*hit), changes ...func(*setup)) (f *front, a, b *fake, moved int64) {
	t.Helper()
	d := &doubtful{}
	changes = append(changes, func(s *setup) {
		s.store = func(inner store.Store) store.Store { d.Store = inner; return d }
	})
	f = newFront(t, changes...)
	a, b = newFake(t, func(h *hit) { onA(h) }), newFake(t, nil)
	answer := onA
	onA = func(h *hit) { h.body(); h.ok("") }
	sa, sb := f.register(a, "a"), f.register(b, "b")
	epoch := sa.place("alice")
	hits := f.pb.counters.cacheHits.Load()
	for f.pb.counters.cacheHits.Load() == hits {
		resp, _ := f.get("/counters/alice")
		require.Equal(t, 200, resp.StatusCode)
	}
	require.NoError(t, d.freezeAt(t.Context(), counters_, "alice"))
	n, err := f.store.Release(t.Context(), []wire.Release{{SessionID: sa.SessionID, Namespace: counters_, ID: "alice", Epoch: epoch}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	moved = sb.place("alice")
	require.Greater(t, moved, epoch)
	onA = answer
	return f, a, b, moved
}

func detailed(status int, detail string) func(*hit) {
	return func(h *hit) {
		h.body()
		h.reply(status, fmt.Sprintf(`{"detail":%q}`, detail), "Content-Type: application/json")
	}
}

// Invariant 7: an owner's refusal of a stale route leads to a fresh look-up, not to
// an error at the client.
func TestARefusalOfAStaleRouteIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(*hit){
		"released, without a marker":        detailed(503, wire.DetailReleasedEpoch),
		"stale, without a marker":           detailed(503, wire.DetailStaleEpoch),
		"closing, without a marker":         detailed(503, wire.DetailClosing),
		"wound down, without a marker":      detailed(503, wire.DetailWoundDown),
		"its lease ended":                   detailed(503, wire.DetailLeaseExpired),
		"another session or process by now": detailed(403, wire.DetailInvalidAttestation),
		"released": func(h *hit) {
			h.body()
			h.reply(503, "{}", "pinned-refusal: "+wire.RefusalReleasedEpoch)
		},
		"lease unhealthy": func(h *hit) { h.body(); h.refuse() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, a, b, moved := outOfDate(t, refuse)
			before := len(a.seen())
			resp, _ := f.post("/counters/alice", "told once")
			require.Equal(t, 200, resp.StatusCode)
			require.Len(t, a.seen(), before+1, "the stale route was tried")
			require.Equal(t, moved, b.only().epoch())
		})
	}
}

func TestAStaleRouteToAWorkerThatIsGoneIsNoAnswer(t *testing.T) {
	t.Parallel()
	f, a, b, moved := outOfDate(t, func(h *hit) { h.ok("") })
	a.stop()
	f.pb.proxy.closeIdle() // nothing is sent into a connection that is gone
	resp, _ := f.post("/counters/alice", "told once")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, moved, b.only().epoch())
	require.Positive(t, f.pb.counters.cacheHits.Load())
}

// What an owner that has the id says is its answer: the row is looked up, and is
// where it was.
func TestARefusalOfAGoodRouteIsTheAnswer(t *testing.T) {
	t.Parallel()
	for detail, status := range map[string]int{
		wire.DetailReleasedEpoch: 503, wire.DetailStaleEpoch: 503, wire.DetailClosing: 503, wire.DetailLeaseExpired: 503,
		wire.DetailInvalidAttestation: 403,
	} {
		f, a, b, sa, _ := pair(t, detailed(status, detail), nil)
		for range 3 {
			resp, _ := f.get("/counters/alice")
			require.Equal(t, 503, resp.StatusCode, detail)
		}
		require.Len(t, a.seen(), 3, detail)
		require.Empty(t, b.seen(), detail)
		require.Equal(t, sa.SessionID, f.owner("alice"), detail)
	}
}

// A process that is stopped between the look-up and the sending goes on later, and
// must not use what it found then: the worker's fence may be gone.
func TestARouteThatHasRunOutMeanwhileIsNotUsed(t *testing.T) {
	t.Parallel()
	late := &latecomer{}
	f := newFront(t, func(s *setup) {
		s.store = func(inner store.Store) store.Store { late.Store = inner; return late }
	})
	w := newFake(t, nil)
	f.register(w, "a").place("alice")
	resp, _ := f.post("/counters/alice", "told once")
	require.Equal(t, 200, resp.StatusCode)
	w.only()
	require.Equal(t, 2, late.asked())
}

// latecomer's first answer has run out when it comes.
type latecomer struct {
	store.Store
	mu sync.Mutex
	n  int
}

func (l *latecomer) asked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

func (l *latecomer) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	res, err := l.Store.Resolve(ctx, r)
	if r.ID == "alice" && r.Preferred == "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.n++; l.n == 1 {
			res.Left = 0
		}
	}
	return res, err
}

// A failover may bring a generation back that the bucket has had before: what was told
// then says nothing any more.
func TestAGenerationThatComesBackVouchesForNobody(t *testing.T) {
	t.Parallel()
	var v vouched
	b, s := bucket{namespace: "/a"}, &lease{Session: store.Session{ID: "s"}}
	known := store.Known{SessionID: "s", Generation: "1"}
	v.note(b, "1")
	v.vouch(b, "1", "s", "chat")
	had := remembered{route: route{lease: s}, by: v.vouches(b, known, "chat"), unbound: "chat"}
	require.NotNil(t, had.by)
	require.True(t, had.vouches(known, "chat"))
	require.False(t, had.vouches(known, "other"), "another host name may be bound")
	require.False(t, had.vouches(store.Known{SessionID: "t", Generation: "1"}, "chat"), "another session has the row")
	require.False(t, had.vouches(store.Known{SessionID: "s", Generation: "2"}, "chat"), "a session has ended")
	v.note(b, "2")
	v.note(b, "1")
	require.False(t, had.vouches(known, "chat"))
	require.Nil(t, v.vouches(b, known, "chat"))
	require.False(t, (&remembered{route: route{lease: s}}).vouches(known, ""), "nobody has vouched")
}

// Also where the bucket was forgotten in the meantime, for there were too many.
func TestAForgottenGenerationThatComesBackVouchesForNobody(t *testing.T) {
	t.Parallel()
	var v vouched
	b, known := bucket{namespace: "/a"}, store.Known{SessionID: "s", Generation: "1"}
	v.note(b, "1")
	v.vouch(b, "1", "s", "")
	had := remembered{route: route{lease: &lease{Session: store.Session{ID: "s"}}}, by: v.vouches(b, known, "")}
	require.True(t, had.vouches(known, ""))
	for i := range maxBound {
		v.note(bucket{namespace: fmt.Sprint(i)}, "1")
	}
	v.note(b, "2") // which is all that is known of it now
	require.False(t, had.vouches(known, ""))
	require.Nil(t, v.vouches(b, known, ""))
}

// A record that is not watched any more says nothing of its session.
func TestAForgottenSessionIsNotUsed(t *testing.T) {
	t.Parallel()
	l := newLeases(nil, zap.NewNop(), time.Minute)
	old := &lease{Session: store.Session{ID: "s"}, until: time.Now().Add(time.Hour)}
	l.byID["s"] = old
	s, _ := l.use("s", old)
	require.Same(t, old, s)
	old.until = time.Now()
	for range forget + 2 { // the first of which is as it was used
		l.age()
	}
	require.Empty(t, l.byID)
	old.until = time.Now().Add(time.Hour)
	s, _ = l.use("s", old)
	require.Nil(t, s)
	again := &lease{Session: store.Session{ID: "s"}, until: old.until}
	l.byID["s"] = again
	s, _ = l.use("s", old)
	require.Same(t, again, s)
	s, _ = l.use("t", again)
	require.Nil(t, s)
	require.LessOrEqual(t, l.left(old), time.Duration(0), "nor does it serve while the store is away")
}
