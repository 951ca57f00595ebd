package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// told is what hooks were told.
type told struct {
	mu  sync.Mutex
	all []string // "Placed x from to why"
	ids []PlacementEvent
	who []WorkerEvent
}

func (o *told) hooks() Hooks {
	id := func(hook string) func(context.Context, PlacementEvent) {
		return func(_ context.Context, e PlacementEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.all, o.ids = append(o.all, hook+" "+e.ID+" "+e.Why), append(o.ids, e)
		}
	}
	worker := func(hook string) func(context.Context, WorkerEvent) {
		return func(_ context.Context, e WorkerEvent) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.all, o.who = append(o.all, hook+" "+e.ClientID+" "+e.Why), append(o.who, e)
		}
	}
	return Hooks{
		Placed: id("Placed"), Moved: id("Moved"), Released: id("Released"),
		WorkerJoined: worker("WorkerJoined"), WorkerLeft: worker("WorkerLeft"),
	}
}

// take returns what was told since it was called last.
func (o *told) take() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all, o.all = o.all, nil
	return all
}

func (o *told) lastID() PlacementEvent {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ids[len(o.ids)-1]
}

func TestHooksTellWhatThisNodeDoesToIDs(t *testing.T) {
	t.Parallel()
	here, there := &told{}, &told{}
	directory := MemoryStore()
	inPlacingBubble(t, Options{Store: directory, Hooks: here.hooks()}, func(t *testing.T, n *regNode) {
		other := newRegNode(t, Options{Store: directory, Hooks: there.hooks()}, nil)
		one := n.ready(1000, "/a")
		rt, err := n.resolve("x", func() (string, bool) { return "k", true })
		require.NoError(t, err)
		for _, at := range []*regNode{n, other} { // is no news
			_, err = at.resolve("x", nil)
			require.NoError(t, err)
		}
		synctest.Wait()
		require.Equal(t, []string{"Placed x new"}, here.take())
		require.Equal(t, PlacementEvent{
			Namespace: "/a", ID: "x", ClientID: one.client, SessionID: one.session, Epoch: rt.epoch,
			Why: "new", Choice: "affinity", At: time.Now(),
		}, here.lastID())

		two := n.ready(1000, "/a")
		require.NoError(t, n.store.Deregister(t.Context(), one.session))
		moved, err := other.resolve("x", nil)
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, here.take(), "another node did it")
		require.Equal(t, []string{"Moved x failover"}, there.take())
		require.Equal(t, PlacementEvent{
			Namespace: "/a", ID: "x", ClientID: two.client, SessionID: two.session, Epoch: moved.epoch,
			FromClientID: one.client, FromSessionID: one.session, Why: "failover", Choice: "twoChoices", At: time.Now(),
		}, there.lastID())
		require.Greater(t, moved.epoch, rt.epoch)

		body := fields{"sessionId": two.session, "namespace": "/a", "id": "x", "epoch": fmt.Sprint(moved.epoch)}
		for range 2 { // is safe to repeat, and no news then
			require.Equal(t, http.StatusOK, n.post("/registry/release", tokenWorker, body).status)
		}
		synctest.Wait()
		require.Equal(t, []string{"Released x released"}, here.take())
		require.Equal(t, PlacementEvent{
			Namespace: "/a", ID: "x", ClientID: two.client, SessionID: two.session, Epoch: moved.epoch,
			Why: "released", At: time.Now(),
		}, here.lastID())
		require.Empty(t, there.take())
		require.Zero(t, n.pb.HooksDropped())
	})
}

func TestHooksNameTheHostNameOfABinding(t *testing.T) {
	t.Parallel()
	seen := &told{}
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{Hooks: seen.hooks()}, nil)
		w := n.workerAt("http://127.0.0.1:2")
		w.recordAs(under(chat))
		_, err := n.resolveFor(chat, "x")
		time.Sleep(requireRefusal(t, err, http.StatusServiceUnavailable).retryAfter - time.Millisecond)
		w.report(1)
		time.Sleep(time.Millisecond)
		_, err = n.resolveFor(chat, "x")
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []string{"Placed x new"}, seen.take())
		require.Equal(t, chat, seen.lastID().Hostname)
		require.Equal(t, "/a", seen.lastID().Namespace)
		n.post("/registry/release", tokenWorker, fields{"sessionId": w.session, "namespace": "/a", "id": "x"})
		synctest.Wait()
		require.Equal(t, []string{"Released x released"}, seen.take())
		require.Equal(t, chat, seen.lastID().Hostname)
		require.Equal(t, "/a", seen.lastID().Namespace)
		require.Zero(t, seen.lastID().Epoch, "nobody said")
	})
}

// The store says how many rows it has freed, not which.
func TestABatchOfReleasesIsToldWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	seen, registry := &told{}, prometheus.NewPedanticRegistry()
	inPlacingBubble(t, Options{Hooks: seen.hooks(), Metrics: registry}, func(t *testing.T, n *regNode) {
		w := n.ready(1000, "/a")
		var whole, mixed []fields
		for i := range 4 {
			_, err := n.resolve(fmt.Sprint(i), nil)
			require.NoError(t, err)
			body := fields{"sessionId": w.session, "namespace": "/a", "id": fmt.Sprint(i)}
			if i < 2 {
				whole = append(whole, body)
			}
			mixed = append(mixed, body)
		}
		synctest.Wait()
		seen.take()
		n.post("/registry/release", tokenWorker, whole)
		synctest.Wait()
		require.Equal(t, []string{"Released 0 released", "Released 1 released"}, seen.take())
		require.InDelta(t, 2, n.post("/registry/release", tokenWorker, mixed).field(t, "released"), 0)
		synctest.Wait()
		require.Empty(t, seen.take())
		require.EqualValues(t, 2, n.pb.HooksDropped())
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(
			"# HELP pinboard_hooks_dropped_total Calls of Options.Hooks that were dropped.\n"+
				"# TYPE pinboard_hooks_dropped_total counter\npinboard_hooks_dropped_total 2\n"), "pinboard_hooks_dropped_total"))
	})
}

func TestAnInBandRefusalIsToldAsItEnds(t *testing.T) {
	t.Parallel()
	refusing := func(h *hit) { h.body(); h.reply(503, "no", "pinned-refusal: "+wire.RefusalLeaseUnhealthy) }
	seen := &told{}
	hooked := func(s *setup) { s.opts.Hooks = seen.hooks(); s.opts.ReplayBuffer = 4 }
	f, _, _, sa, sb := pair(t, refusing, nil, hooked)
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 200, resp.StatusCode)
	require.Eventually(t, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return len(seen.all) == 1
	}, patience, time.Millisecond)
	require.Equal(t, []string{"Moved alice refused"}, seen.take())
	e := seen.lastID()
	require.Equal(t, []string{"b", sb.SessionID, "a", sa.SessionID}, []string{e.ClientID, e.SessionID, e.FromClientID, e.FromSessionID})

	// A body that can't be sent again: the id is free, and nowhere.
	epoch := sa.place("bob")
	resp, _ = f.post("/counters/bob", strings.Repeat("b", 1<<20))
	require.Equal(t, 503, resp.StatusCode)
	require.Eventually(t, func() bool { return len(seen.take()) == 1 }, patience, time.Millisecond)
	e = seen.lastID()
	require.Equal(t, PlacementEvent{Namespace: counters_, ID: "bob", ClientID: "a", SessionID: sa.SessionID, Epoch: epoch, Why: "refused", At: e.At}, e)
}

func TestSlowHooksDelayNobodyAndWhatTheyMissIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		open, seen := make(chan struct{}), []string{}
		h := newHooks(Hooks{Queue: 3, Placed: func(_ context.Context, e PlacementEvent) {
			<-open
			seen = append(seen, e.ID)
		}}, nil, zap.New(core))
		tell := func(id string) {
			h.tell("Placed", func(ctx context.Context) { h.Placed(ctx, PlacementEvent{ID: id}) })
			synctest.Wait()
		}
		for i := range 10 { // one is under way, three wait
			tell(fmt.Sprint(i))
		}
		require.EqualValues(t, 6, h.dropped.Load())
		require.Equal(t, 1, logs.Len(), "not a line for each")
		time.Sleep(sayDroppedEvery)
		tell("10")
		require.Equal(t, 2, logs.Len())
		require.EqualValues(t, 7, logs.All()[1].ContextMap()["dropped"])
		close(open)
		synctest.Wait()
		require.Equal(t, []string{"0", "1", "2", "3"}, seen)
		require.NoError(t, h.shutdown(t.Context()))
	})
}

func TestAHookThatFailsCostsNoOtherCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		seen := []string{}
		h := newHooks(Hooks{Queue: 10, Placed: func(_ context.Context, e PlacementEvent) {
			seen = append(seen, e.ID)
			switch e.ID {
			case "panics":
				panic("planted-secret of the host's")
			case "stumbles":
				_ = seen[len(seen)]
			case "leaves":
				runtime.Goexit()
			}
		}}, nil, zap.New(core))
		ids := []string{"a", "panics", "b", "leaves", "c", "stumbles", "leaves", "panics", "d"}
		for _, id := range ids {
			h.tell("Placed", func(ctx context.Context) { h.Placed(ctx, PlacementEvent{ID: id}) })
		}
		require.NoError(t, h.shutdown(t.Context()))
		require.Equal(t, ids, seen)
		require.Equal(t, 3, logs.Len())
		said := fmt.Sprint(logs.All())
		require.NotContains(t, said, "planted-secret")
		require.Contains(t, said, "index out of range")
		require.Equal(t, "Placed", logs.All()[0].ContextMap()["hook"])
	})
}

func TestShutdownDeliversWhatWaitsForHooks(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		seen := 0
		n.pb.hooks = newHooks(Hooks{Queue: 100, Placed: func(context.Context, PlacementEvent) {
			time.Sleep(time.Second) // virtual time
			seen++
		}}, n.store, n.pb.log)
		n.pb.placer.hooks = n.pb.hooks
		n.ready(1000, "/a")
		for i := range 5 {
			_, err := n.resolve(fmt.Sprint(i), nil)
			require.NoError(t, err)
		}
		began := time.Now()
		require.NoError(t, n.pb.Shutdown(t.Context()))
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Equal(t, 5, seen)
		require.Zero(t, n.pb.HooksDropped())
	})
}

func TestAHookThatDoesNotEndHoldsShutdownNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		var left error
		n.pb.hooks = newHooks(Hooks{Queue: 100, Placed: func(ctx context.Context, e PlacementEvent) {
			<-ctx.Done()
			left = ctx.Err()
		}}, n.store, n.pb.log)
		n.pb.placer.hooks = n.pb.hooks
		n.ready(1000, "/a")
		for i := range 5 {
			_, err := n.resolve(fmt.Sprint(i), nil)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, n.pb.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		synctest.Wait()
		require.ErrorIs(t, left, context.Canceled)
		require.EqualValues(t, 4, n.pb.HooksDropped())
	})
}

func TestAHostWithoutHooksPaysNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{Hooks: Hooks{Queue: 5}}, nil)
		require.Nil(t, n.pb.hooks)
		require.Zero(t, n.pb.HooksDropped())
		n.get("/registry/nothing", tokenOperator)
		time.Sleep(time.Minute)
		require.NotContains(t, n.store.called(), "Events")
	})
}
