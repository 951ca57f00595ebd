package pinboard

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func draining(r *store.Registration) { r.Draining = true }

// situation is an id that moves.
type situation struct {
	// begin makes it so, for the id alice; the function that it returns ends
	// it, so that the worker "next" may serve.
	begin func(b *holdBubble) (free func())
	// answer is what begins the body at the end, "next" if empty.
	answer string
}

// situations are those for which a request is held.
func situations() map[string]situation {
	list := map[string]situation{
		"only draining workers": {begin: func(b *holdBubble) func() {
			b.worker("old", nil, draining)
			return func() { b.worker("next", nil) }
		}},
		"the worker is not active yet": {begin: func(b *holdBubble) func() {
			_, err := b.store.Register(b.t.Context(), store.Registration{
				SessionID: "passive", ClientID: "passive", Secret: wire.NewSecret("passive"),
				Namespaces: []string{counters_}, AdvertiseURL: "http://passive", Headroom: 1,
			})
			require.NoError(b.t, err)
			return func() { b.worker("next", nil) }
		}},
		"the owner accepts no connection, and ends": {begin: func(b *holdBubble) func() {
			old := b.worker("old", nil)
			old.place("alice")
			old.stop()
			b.worker("next", nil)
			return old.end
		}},
		"the owner accepts connections late": {answer: "old", begin: func(b *holdBubble) func() {
			old := b.worker("old", nil)
			old.place("alice")
			old.stop()
			return func() {
				old.listen(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("old")) })
			}
		}},
		"the owner has lost its URL": {begin: func(b *holdBubble) func() {
			old := b.worker("old", nil)
			old.place("alice")
			b.worker("usurper", nil, func(r *store.Registration) { r.AdvertiseURL = old.AdvertiseURL; r.Draining = true })
			b.worker("next", nil)
			return old.end
		}},
		"the owner has not read its acknowledgement": {answer: "old", begin: func(b *holdBubble) func() {
			ready := make(chan struct{})
			old := b.worker("old", func(rw http.ResponseWriter, r *http.Request) {
				select {
				case <-ready:
					_, _ = rw.Write([]byte("old"))
				default:
					failing(http.StatusForbidden, wire.DetailInvalidAttestation)(rw, r)
				}
			})
			old.place("alice")
			return func() { close(ready) }
		}},
		"a Python worker drains": {begin: func(b *holdBubble) func() {
			old := b.worker("old", failing(http.StatusServiceUnavailable, wire.DetailHostDraining))
			old.place("alice")
			_, err := b.store.Drain(b.t.Context(), "old", nil)
			require.NoError(b.t, err)
			return func() { b.worker("next", nil) }
		}},
		"the session ends before anything was sent": {begin: func(b *holdBubble) func() {
			old := b.worker("old", nil)
			old.place("alice")
			b.mu.Lock()
			b.dialling = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			b.mu.Unlock()
			time.AfterFunc(10*time.Millisecond, func() {
				b.pb.leases.end(old.SessionID)
				old.end()
				b.worker("passive", nil, draining)
			})
			return func() {
				b.mu.Lock()
				b.dialling = nil
				b.mu.Unlock()
				b.worker("next", nil)
			}
		}},
		"both workers refuse": {begin: func(b *holdBubble) func() {
			old := b.worker("old", refusing(wire.RefusalCapacity))
			old.place("alice")
			other := b.worker("other", refusing(wire.RefusalCapacity))
			return func() {
				old.end()
				other.end()
				b.worker("next", nil)
			}
		}},
	}
	for reason, givesUp := range reasons {
		list["refused in-band: "+reason] = situation{begin: func(b *holdBubble) func() {
			old := b.worker("old", refusing(reason))
			old.place("alice")
			return func() {
				if !givesUp {
					old.release("alice")
				}
				old.end()
				b.worker("next", nil)
			}
		}}
	}
	return list
}

func TestARequestWaitsWhileItsIdMovesAndThenGoesToTheNewOwner(t *testing.T) {
	t.Parallel()
	const wait = 2 * time.Second // the end of a session takes one of them
	for name, s := range situations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for method, body := range map[string]string{"GET": "", "POST": "body"} {
				inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
					free := s.begin(b)
					r := b.send(method, "/counters/alice/x", body)
					time.Sleep(wait)
					r.requireWaits(b)
					free()
					r.requireSoonAfter(t, wait)
					if s.answer == "" {
						require.Equal(t, "next"+body, r.body)
					} else {
						require.Equal(t, s.answer, r.body)
					}
					require.Zero(t, b.held())
					require.EqualValues(t, 1, b.pb.counters.holds.Load())
					require.Zero(t, b.pb.counters.holdsGivenUp.Load())
				})
			}
		})
	}
}

func TestWithoutPlacementHoldNothingWaits(t *testing.T) {
	t.Parallel()
	for name, s := range situations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHoldBubble(t, withHold(0), func(t *testing.T, b *holdBubble) {
				s.begin(b)
				r := b.get("alice")
				<-r.done
				require.Equal(t, http.StatusServiceUnavailable, r.status, r.body)
				require.Less(t, r.after, endGrace+firstPause)
				require.Zero(t, b.pb.counters.holds.Load())
			})
		})
	}
}

func TestTheWaitEndsWithTheAnswerOfOneMoreTry(t *testing.T) {
	t.Parallel()
	for name, s := range situations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
				s.begin(b)
				r := b.get("alice").requireStatus(t, http.StatusServiceUnavailable)
				require.GreaterOrEqual(t, r.after, b.pb.opts.PlacementHold)
				require.Less(t, r.after, b.pb.opts.PlacementHold+b.pb.opts.Limits.DialTimeout+firstPause)
				require.Zero(t, b.held())
				require.EqualValues(t, 1, b.pb.counters.holdsGivenUp.Load())
			})
		})
	}
}

func TestAQuarantineIsWaitedOutWithoutAskingTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHoldBubble(t, withHold(time.Minute))
		b.worker("old", nil)
		time.Sleep(5 * time.Second)
		w := b.worker("next", nil) // its lease outlives the quarantine
		replies := []*reply{b.get("alice"), b.get("alice"), b.get("alice")}
		time.Sleep(time.Second) // one that began to wait before the first had its answer asks once more
		before := b.asked.resolves.Load()
		require.LessOrEqual(t, before, 2*int64(len(replies)))
		time.Sleep(13 * time.Second)
		require.Equal(t, before, b.asked.resolves.Load())
		require.NoError(t, b.pb.leases.store.Deregister(t.Context(), w.SessionID))
		b.worker("last", nil)
		for _, r := range replies {
			r.requireSoonAfter(t, 15*time.Second)
			require.Equal(t, "last", r.body)
		}
	})
}

func TestAQuarantineThatBeginsDuringAWaitIsWaitedOutToo(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		b.get("alice").requireWaits(b)
		b.asked.wiped.Store(true)
		time.Sleep(lastPause)
		before := b.asked.resolves.Load()
		time.Sleep(4 * time.Second)
		require.Equal(t, before, b.asked.resolves.Load())
	})
}

func TestAQuarantineLongerThanTheWaitLeavesWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHoldBubble(t, nil)
		b.worker("next", nil)
		r := b.get("alice").requireStatus(t, http.StatusServiceUnavailable)
		require.Equal(t, 5*time.Second, r.after)
		require.Equal(t, "10", r.header.Get("Retry-After"))
	})
}

func TestAnIdThatIsClaimedDuringAQuarantineIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHoldBubble(t, nil)
		b.worker("other", nil)
		r := b.get("alice")
		time.Sleep(time.Second)
		r.requireWaits(b)
		b.worker("next", nil, func(r *store.Registration) { r.Instances = map[string][]string{counters_: {"alice"}} })
		b.pb.holds.nudge([]string{"/others"})
		r.requireWaits(b)
		b.pb.holds.nudge([]string{counters_})
		require.Equal(t, "next", r.requireStatus(t, http.StatusOK).body)
		require.Equal(t, time.Second, r.after)
	})
}

func TestAReleaseThatThisNodeHearsOfIsActedOnAtOnce(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		old := b.worker("old", refusing(wire.RefusalClosing))
		old.place("alice")
		b.worker("next", nil)
		r := b.get("alice")
		time.Sleep(2 * time.Second)
		r.requireWaits(b)
		old.release("alice")
		b.pb.holds.freed([]wire.Release{{Namespace: counters_, ID: "bob"}, {Namespace: counters_, ID: "alice"}})
		require.Equal(t, 2*time.Second, r.requireStatus(t, http.StatusOK).after)
	})
}

// Holding asks again and again, and must never place early for it.
func TestAHeldIdStaysWithAnOwnerThatLives(t *testing.T) {
	t.Parallel()
	for limit, status := range map[time.Duration]int{10 * time.Second: 503, 20 * time.Second: 200} {
		inHoldBubble(t, withHold(limit), func(t *testing.T, b *holdBubble) {
			old := b.worker("old", nil)
			epoch := old.place("alice")
			old.stop()
			time.Sleep(time.Second)
			b.worker("next", nil)
			r := b.get("alice")
			time.Sleep(9 * time.Second)
			row, err := b.store.Lookup(t.Context(), counters_, "alice")
			require.NoError(t, err)
			require.Equal(t, old.SessionID, row.SessionID)
			require.Equal(t, epoch, row.Epoch)
			r.requireStatus(t, status)
			if status == http.StatusOK {
				require.Equal(t, "next", r.body)
				require.GreaterOrEqual(t, r.after, 14*time.Second, "its lease runs till then")
				require.Less(t, r.after, 14*time.Second+2*firstPause, "and is known to")
			}
		})
	}
}

func TestWhatIsNoMoveIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	planted := errors.New("planted")
	for name, c := range map[string]struct {
		begin  func(b *holdBubble)
		method string
		id     string
		status int
	}{
		"unknown namespace": {func(*holdBubble) {}, "GET", "alice", 404},
		"invalid id":        {func(b *holdBubble) { b.worker("a", nil) }, "GET", "a%20b", 400},
		"the store is away": {func(b *holdBubble) {
			broken := &stuck{Store: b.store}
			broken.set(planted)
			b.pb.placer.store = broken
		}, "GET", "alice", 503},
		"the application's own 503": {func(b *holdBubble) { b.worker("a", failing(503, "mine")) }, "GET", "alice", 0},
		"the application's own 403": {func(b *holdBubble) { b.worker("a", failing(403, "mine")) }, "GET", "alice", 403},
		"lost after it was sent": {func(b *holdBubble) {
			b.worker("a", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}, "POST", "alice", 502},
		"sent, lost, and then no connection": {func(b *holdBubble) {
			var w *holdWorker
			w = b.worker("a", func(http.ResponseWriter, *http.Request) {
				if w.hits.Load() > 1 {
					b.mu.Lock()
					delete(b.machines, w.addr)
					b.mu.Unlock()
					panic(http.ErrAbortHandler)
				}
			})
			b.get("alice").requireStatus(b.t, 200) // leaves a connection to be used again
		}, "GET", "alice", 503},
		"the session ended after it was sent": {func(b *holdBubble) {
			var w *holdWorker
			w = b.worker("a", func(_ http.ResponseWriter, r *http.Request) {
				time.Sleep(b.pb.opts.LeaseTTL)
				b.pb.leases.end(w.SessionID)
				<-r.Context().Done()
			})
		}, "POST", "alice", -502},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
				c.begin(b)
				r := b.send(c.method, "/counters/"+c.id, "")
				<-r.done
				if c.status < 0 { // late, but not held
					r.requireStatus(t, -c.status)
				} else if c.status == 0 { // as it came, without a Retry-After
					require.Equal(t, 503, r.status)
					require.Less(t, r.after, firstPause/2)
				} else {
					r.requireAtOnce(t, c.status)
				}
				require.Zero(t, b.pb.counters.holds.Load())
			})
		})
	}
}

func TestAPolicyRefusalIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, func(o *Options) { o.Passport = anyone{refuse: errPlanted} }, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		r := b.get("alice")
		<-r.done
		require.Zero(t, b.pb.counters.holds.Load())
		require.Less(t, r.after, firstPause)
	})
}

func TestAWaitEndsWhenTheLastWorkerHasGone(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		w := b.worker("old", nil, draining)
		r := b.get("alice")
		time.Sleep(time.Second)
		r.requireWaits(b)
		w.end()
		r.requireStatus(t, http.StatusNotFound)
		require.Less(t, r.after, 2*time.Second)
	})
}

// The two wait for different bindings as soon as there is one under the host
// name: what one of them finds is not where the other one goes.
func TestRequestsForOneIDUnderTwoHostNamesWaitApart(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		bound := func(r *store.Registration) { r.Hostname = "chat.example" }
		first := b.worker("first", nil, bound) // so that there is no quarantine later
		_, err := b.store.Resolve(t.Context(), store.Request{
			Hostname: "chat.example", Namespace: counters_, ID: "prime", View: store.AnyView, BalanceFactor: 1,
		})
		require.NoError(t, err)
		first.end()
		time.Sleep(2 * b.pb.opts.LeaseTTL)

		b.worker("busy", nil, func(r *store.Registration) { r.Draining = true })
		named := b.send("GET", "/counters/alice", "", "Host: Chat.example:80").requireWaits(b)
		plain := b.get("alice").requireWaits(b)
		b.worker("chat", nil, bound)
		require.Equal(t, "chat", named.requireStatus(t, 200).body)
		plain.requireWaits(b)
		b.worker("free", nil)
		require.Equal(t, "free", plain.requireStatus(t, 200).body)
	})
}
