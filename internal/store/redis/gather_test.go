package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
)

// slow is a client that holds placements up until each is let go, and loses the
// answers of those that it is told to lose.
type slow struct {
	rueidis.Client
	heedless bool // waits on when the context ends

	mu   sync.Mutex
	sent []int // how many ids each call has asked for
	let  []chan bool
}

func (s *slow) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	words := cmd.Commands()
	if words[1] != resolveScript.digest {
		return s.Client.Do(ctx, cmd)
	}
	s.mu.Lock()
	s.sent = append(s.sent, (len(words)-12)/4)
	let := make(chan bool, 1)
	s.let = append(s.let, let)
	s.mu.Unlock()
	ended := ctx.Done()
	if s.heedless {
		ended = nil
	}
	select {
	case answered := <-let:
		if !answered {
			_ = s.Client.Do(ctx, cmd)
			over, cancel := context.WithCancel(ctx)
			cancel()
			return s.Client.Do(over, cmd)
		}
	case <-ended:
	}
	return s.Client.Do(ctx, cmd)
}

func (s *slow) calls() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// release lets a call go, if it has not gone; its answer comes, or is lost.
func (s *slow) release(i int, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.let[i] != nil {
		s.let[i] <- answered
		s.let[i] = nil
	}
}

// crowd asks for ids of one bucket at the same time.
type crowd struct {
	bucketOf
	slow *slow
	like store.Request
	all  sync.WaitGroup

	mu      sync.Mutex
	results map[string]store.Result
	errs    map[string]error
}

func gather(t *testing.T, client rueidis.Client) *crowd {
	t.Helper()
	s := &slow{Client: client}
	d := openOn(s, time.Hour)
	c := &crowd{
		bucketOf: bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}, slow: s,
		like:    store.Request{Namespace: "/counters", View: store.AnyView, BalanceFactor: 2, Preferred: "s"},
		results: map[string]store.Result{}, errs: map[string]error{},
	}
	c.candidate(t, "s", 1000)
	return c
}

// ask begins to ask for ids.
func (c *crowd) ask(ctx context.Context, ids ...string) {
	for _, id := range ids {
		req := c.like
		req.ID = id
		c.all.Go(func() {
			res, err := c.Resolve(ctx, req)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.results[id], c.errs[id] = res, err
		})
	}
}

// waiting returns how many wait for a call to end.
func (c *crowd) waiting() int {
	c.gathering.mu.Lock()
	defer c.gathering.mu.Unlock()
	n := 0
	for _, q := range c.gathering.queues {
		n += len(q.waiting)
	}
	return n
}

// occupy has so many calls under way, each for one id.
func (c *crowd) occupy(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		c.ask(t.Context(), fmt.Sprint("busy-", i))
	}
	until(t, func() bool { return len(c.slow.calls()) == n })
}

// begin has as many calls under way as wait for none, and asks for ids meanwhile.
func (c *crowd) begin(t *testing.T, ids ...string) {
	t.Helper()
	c.occupy(t, maxFree)
	c.ask(t.Context(), ids...)
	until(t, func() bool { return c.waiting() == len(ids) })
}

// later returns how many ids the calls had that were made after begin.
func (c *crowd) later() []int { return c.slow.calls()[maxFree:] }

// finish lets all calls go until all are answered.
func (c *crowd) finish(t *testing.T) {
	t.Helper()
	answered := make(chan struct{})
	go func() {
		c.all.Wait()
		close(answered)
	}()
	until(t, func() bool {
		for i := range c.slow.calls() {
			c.slow.release(i, true)
		}
		select {
		case <-answered:
			return true
		default:
			return false
		}
	})
	until(t, func() bool { // nothing is kept of them
		c.gathering.mu.Lock()
		defer c.gathering.mu.Unlock()
		return len(c.gathering.queues) == 0
	})
}

func (c *crowd) requirePlaced(t *testing.T, ids ...string) {
	t.Helper()
	epochs := map[int64]bool{}
	for _, id := range ids {
		require.NoError(t, c.errs[id], id)
		require.Equal(t, store.Placed, c.results[id].Outcome, id)
		require.Equal(t, "s", c.owner(t, id), id)
		epochs[c.results[id].Epoch] = true
	}
	require.Len(t, epochs, len(ids), "each has an epoch of its own")
}

func TestIdsGoAtOnceAndThoseThatComeMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	c.begin(t, "a", "b", "c")
	for _, n := range c.slow.calls() {
		require.Equal(t, 1, n)
	}
	c.slow.release(0, true)
	until(t, func() bool { return len(c.later()) == 1 })
	c.finish(t)
	require.Equal(t, []int{3}, c.later())
	c.requirePlaced(t, "a", "b", "c", "busy-0", "busy-1")
	require.Equal(t, 3+maxFree, c.taken(t, "s"))

	c.ask(t.Context(), "d") // at once again
	c.finish(t)
	require.Equal(t, []int{3, 1}, c.later())
}

func TestAsManyAsGoInOneCallWaitForNone(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	c.begin(t, someIDs(maxTogether-1)...)
	c.ask(t.Context(), "a")
	until(t, func() bool { return len(c.later()) == 1 })
	c.ask(t.Context(), "b")
	until(t, func() bool { return c.waiting() == 1 })
	for i := range 2 {
		c.slow.release(i, true)
	}
	until(t, func() bool { return len(c.later()) == 2 })
	require.Equal(t, []int{maxTogether, 1}, c.later())
	c.finish(t)
	c.requirePlaced(t, append(someIDs(maxTogether-1), "a", "b")...)
}

func TestOnlyWhatIsAskedForAlikeGoesTogether(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	c.begin(t, "a")
	refused := &store.Refused{SessionID: "t", ClientID: "client of t", Epoch: 1}
	for i, change := range []func(r *store.Request){
		func(r *store.Request) { r.View = 7 },
		func(r *store.Request) { r.BalanceFactor = 3 },
		func(r *store.Request) { r.Unless = "h.example" },
		func(r *store.Request) { r.Namespace = "/others" },
		func(r *store.Request) { r.Refused = refused },
	} {
		like := c.like
		change(&c.like)
		c.ask(t.Context(), fmt.Sprint("unlike-", i))
		until(t, func() bool { return len(c.later()) == 1+i })
		c.like = like
	}
	require.Equal(t, 1, c.waiting())
	c.finish(t)
	c.requirePlaced(t, "a", "unlike-1", "unlike-2", "unlike-4")
	require.Equal(t, store.StaleView, c.results["unlike-0"].Outcome)
	require.Equal(t, store.UnknownNamespace, c.results["unlike-3"].Outcome)
}

func TestWhoGivesUpFailsNobodyElse(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	early, leaveEarly := context.WithCancel(t.Context())
	late, leaveLate := context.WithCancel(t.Context())
	defer leaveLate()
	c.begin(t)
	c.ask(late, "late") // the first of those that go together
	until(t, func() bool { return c.waiting() == 1 })
	c.ask(early, "early")
	c.ask(t.Context(), "b", "c")
	until(t, func() bool { return c.waiting() == 4 })
	leaveEarly()
	until(t, func() bool { return c.waiting() == 3 })
	c.slow.release(0, true)
	until(t, func() bool { return len(c.later()) == 1 })
	leaveLate()
	until(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.errs["late"] != nil
	})
	c.finish(t)
	require.Equal(t, []int{3}, c.later())
	require.ErrorIs(t, c.errs["early"], context.Canceled)
	require.ErrorIs(t, c.errs["late"], context.Canceled)
	c.requirePlaced(t, "b", "c")
	require.Empty(t, c.owner(t, "early"), "nothing is placed for who left before the call")
}

// However long the client takes to notice.
func TestACallThatAllHaveGivenUpHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for _, gone := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(strings.Join(gone, " and "), func(t *testing.T) {
			t.Parallel()
			c := gather(t, server.Client(t))
			c.slow.heedless = true
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			calls := maxFree
			if len(gone) == 1 {
				c.occupy(t, maxFree-1)
				c.ask(ctx, gone...)
			} else { // those that have gathered
				calls++
				c.begin(t)
				c.ask(ctx, gone...)
				until(t, func() bool { return c.waiting() == len(gone) })
				c.slow.release(0, true)
			}
			until(t, func() bool { return len(c.slow.calls()) == calls })
			c.ask(t.Context(), "x", "y")
			until(t, func() bool { return c.waiting() == 2 })
			leave()
			until(t, func() bool { return len(c.slow.calls()) == calls+1 })
			c.finish(t)
			c.requirePlaced(t, "x", "y")
			for _, id := range gone {
				require.ErrorIs(t, c.errs[id], context.Canceled)
			}
		})
	}
}

func TestAnIdThatFailsFailsAlone(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	c.do1(t, "SET", c.rows(c.keys.leaf("broken")), "no hash")
	c.begin(t, "a", "b", "broken", "c")
	c.finish(t)
	require.ErrorContains(t, c.errs["broken"], "WRONGTYPE")
	for _, id := range []string{"a", "b", "c"} {
		require.NoError(t, c.errs[id])
		require.Equal(t, "s", c.results[id].SessionID)
		require.Equal(t, "s", c.owner(t, id))
	}
}

func TestIdsTogetherSurviveAScriptFlush(t *testing.T) {
	t.Parallel()
	own := redistest.New(t, redistest.Options{}).Client(t)
	c := gather(t, own)
	c.begin(t, "a", "b", "c")
	require.NoError(t, own.Do(t.Context(), own.B().ScriptFlush().Build()).Error())
	c.finish(t)
	c.requirePlaced(t, "a", "b", "c")
}

// What is asked for again tells what became of it.
func TestAnAnswerThatIsLostIsLostForAllAndDecidesNothing(t *testing.T) {
	t.Parallel()
	c := gather(t, server.Client(t))
	c.begin(t, "b", "c")
	c.slow.release(0, true)
	until(t, func() bool { return len(c.later()) == 1 })
	c.slow.release(maxFree, false)
	c.finish(t)
	for _, id := range []string{"b", "c"} {
		require.Error(t, c.errs[id])
		require.False(t, decided(c.errs[id]))
	}
	c.ask(t.Context(), "b")
	c.ask(t.Context(), "c")
	c.finish(t)
	require.NotEqual(t, c.results["b"].Epoch, c.results["c"].Epoch)
	for _, id := range []string{"b", "c"} {
		require.Equal(t, store.Owned, c.results[id].Outcome)
		require.Equal(t, "s", c.results[id].SessionID)
	}
}

// A server that takes no writes says so before the first one.
func TestARefusedCallHasPlacedNothing(t *testing.T) {
	t.Parallel()
	for name, set := range map[string][2]string{
		"out of memory":        {"maxmemory", "1"},
		"too few replicas":     {"min-replicas-to-write", "1"},
		"a replica of another": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := redistest.New(t, redistest.Options{}).Client(t)
			c := gather(t, own)
			c.begin(t, "a", "b", "c")
			if set[0] == "" {
				require.NoError(t, own.Do(t.Context(), own.B().Arbitrary("REPLICAOF", "127.0.0.1", "1").Build()).Error())
			} else {
				require.NoError(t, own.Do(t.Context(), own.B().ConfigSet().ParameterValue().ParameterValue(set[0], set[1]).Build()).Error())
			}
			c.finish(t)
			for _, id := range []string{"a", "b", "c"} {
				require.Error(t, c.errs[id])
				require.False(t, decided(c.errs[id]))
				require.Empty(t, c.owner(t, id))
			}
			require.Empty(t, c.do1(t, "HGET", c.meta(), "epoch"))
			require.Zero(t, c.taken(t, "s"))
		})
	}
}
