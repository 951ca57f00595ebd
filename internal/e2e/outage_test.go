package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

// lastingFleet returns a fleet with so many nodes behind one address, whose
// Redis forgets nothing over a restart.
func lastingFleet(t *testing.T, nodes int) *fleet {
	t.Helper()
	f := emptyFleet(t, memory)
	f.store, f.redis = redis, redistest.New(t, redistest.Options{TCP: true, AOF: true})
	f.redisURL = "redis://" + f.redis.Addr()
	f.front = newBalancer(t)
	for range nodes {
		f.startNode(t)
	}
	return f
}

// redisClient returns a client of the fleet's Redis.
func (f *fleet) redisClient(t *testing.T) rueidis.Client {
	t.Helper()
	option := f.redis.ClientOption()
	option.DisableCache, option.DisableRetry = true, true
	return redistest.NewClient(t, option)
}

// steadily is calls to placed and to fresh ids in turn, fifty a second.
type steadily struct {
	stop func()
	mu   sync.Mutex
	seen map[string]int // answers, by status and body
}

func (f *fleet) askSteadily(t *testing.T, placed []string) *steadily {
	t.Helper()
	s := &steadily{seen: map[string]int{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var calls sync.WaitGroup
	calls.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			id := placed[i%len(placed)]
			if i%2 == 0 {
				id = fmt.Sprintf("fresh-%d", i)
			}
			calls.Go(func() {
				bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitLimit)
				defer cancel()
				s.note(f.client.try(bounded, http.MethodGet, room(f.url(), id, "state")))
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	s.stop = sync.OnceFunc(func() { cancel(); calls.Wait() })
	t.Cleanup(s.stop)
	return s
}

func (s *steadily) note(a answer, err error) {
	what := fmt.Sprint(a.status)
	switch {
	case err != nil:
		what = err.Error()
	case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "":
		what = "503 without Retry-After"
	case a.status != http.StatusOK && a.status != http.StatusServiceUnavailable:
		what += string(a.body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[what]++
}

// answered returns how many answers were 200s.
func (s *steadily) answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen["200"]
}

// C36: digests of scripts that the node remembers are worth nothing after a flush or
// a restart of Redis.
func TestScriptsThatRedisForgotAreLoadedUnderLoad(t *testing.T) {
	t.Parallel()
	f := lastingFleet(t, 1)
	ws := f.startWorkers(t, plan{kind: golang}, plan{kind: golang})
	placed := []string{"one", "two", "three"}
	before := map[string]state{}
	for _, id := range placed {
		before[id] = f.add(t, id)
	}
	sessions := f.sessions(t)
	client := f.redisClient(t)

	s := f.askSteadily(t, placed)
	for range 8 {
		next := s.answered() + 12 // and heartbeats, four a second
		require.NoError(t, client.Do(t.Context(), client.B().ScriptFlush().Build()).Error())
		awaitTrue(t, "the load goes on", func() bool { return s.answered() >= next })
	}
	s.stop()
	require.Equal(t, map[string]int{"200": s.answered()}, s.seen)
	require.Equal(t, sessions, f.sessions(t))

	s = f.askSteadily(t, placed)
	awaitTrue(t, "the load begins", func() bool { return s.answered() > 0 })
	_ = client.Do(t.Context(), client.B().Arbitrary("SHUTDOWN", "NOSAVE").Build()).Error() // the connection ends
	f.redis.Restart(t)
	next := s.answered() + 50
	awaitTrue(t, "the load goes on", func() bool { return s.answered() >= next })
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for what := range s.seen {
		require.Contains(t, []string{"200", "503"}, what)
	}
	f.state(t, "quite-new")
	for id, was := range before {
		require.Equal(t, was, f.state(t, id))
	}
	require.False(t, f.nodes[0].ended())
	require.Equal(t, sessions, f.sessions(t), "it was not away for a lease")
	for _, w := range ws {
		require.Zero(t, w.stats(t).Reregistrations)
	}
}

// C38: a Redis that is frozen keeps its connections, and answers nothing: no call
// waits for it, since it stays frozen until all of them are answered.
func TestNoCallWaitsForAFrozenRedis(t *testing.T) {
	t.Parallel()
	const count = 100 // of placed and of fresh ids
	f := lastingFleet(t, 1)
	w := f.startWorkers(t, plan{kind: golang})[0]
	for i := range 10 {
		f.add(t, fmt.Sprintf("placed-%d", i))
	}
	stream := f.openEvents(t, "placed-0")
	stream.requireNext(t, "0")
	session := f.sessions(t)[w.clientID]

	f.redis.Freeze()
	thaw := sync.OnceFunc(f.redis.Thaw)
	t.Cleanup(thaw)
	f.client.post(t, room(f.url(), "placed-0", "next"), nil).requireStatus(t, http.StatusOK)
	stream.requireNext(t, "1")
	var calls sync.WaitGroup
	answers := make(chan answer, 2*count+3)
	ask := func(method, url string, opts ...callOption) {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
			defer cancel()
			a, err := f.client.try(ctx, method, url, opts...)
			if err != nil {
				t.Error(url, err)
			}
			answers <- a
		})
	}
	beat := fmt.Appendf(nil, `{"sessionId":%q,"headroom":1,"draining":false,"challenge":"x","challengeValue":"y"}`, session)
	for range 3 {
		ask(http.MethodPost, f.url()+"/registry/heartbeat", bearer(f.fleetToken), content(beat))
	}
	for i := range count {
		ask(http.MethodGet, room(f.url(), fmt.Sprintf("placed-%d", i%10), "state"))
		ask(http.MethodGet, room(f.url(), fmt.Sprintf("fresh-%d", i), "state"))
	}
	health := f.client.call(t, http.MethodGet, f.url()+"/registry/health", bearer(f.operatorToken))
	require.Contains(t, []int{http.StatusOK, http.StatusServiceUnavailable}, health.status)
	require.Equal(t, http.StatusServiceUnavailable, f.client.call(t, http.MethodGet, f.url()+"/healthz").status)
	calls.Wait()
	close(answers)
	served := 0
	for a := range answers {
		if a.status == http.StatusOK {
			served++
			continue
		}
		a.requireNotNow(t)
	}
	require.LessOrEqual(t, served, count, "nothing is placed")

	thaw()
	awaitTrue(t, "the worker is back", func() bool { _, ok := w.listed(t); return ok })
	f.settle(t)
	for i := range 10 {
		id := fmt.Sprintf("placed-%d", i)
		s := await(t, id+" is served", func() (state, bool) { return f.try(t, http.MethodGet, id, "state") })
		require.Equal(t, 1, s.Count, "%s lives on", id)
	}
	require.False(t, f.nodes[0].ended())
}

// C48: an outage of Redis that outlasts every lease is no reason to restart anybody:
// nodes and workers say that they are alive, and not ready; what lived lives on,
// and a drain is what it was.
func TestAnOutageOfRedisRestartsNobodyAndUndrainsNobody(t *testing.T) {
	t.Parallel()
	const rooms = 18
	f := lastingFleet(t, 2)
	p := plan{kind: golang}
	ws := f.startWorkers(t, p, p, p, p, p, p)
	before := map[string]state{}
	for i := range rooms {
		id := fmt.Sprintf("room-%d", i)
		before[id] = f.add(t, id)
	}
	drained := ws[5]
	busy := ""
	for id, s := range before {
		if s.PID == drained.pid() {
			busy = id
		}
	}
	if busy != "" {
		f.poke(t, busy, "hold")
	}
	f.operate(t, "drain", map[string]any{"clientId": drained.clientID, "deadline": 600})
	awaitTrue(t, "the worker knows", func() bool { return drained.stats(t).Draining })

	f.redis.Kill()
	for _, w := range ws {
		awaitTrue(t, w.name+" is not ready", func() bool {
			return f.client.call(t, http.MethodGet, w.url+"/_pinned/ready").status == http.StatusServiceUnavailable
		})
	}
	for id := range before {
		_, served := f.try(t, http.MethodGet, id, "state")
		require.False(t, served, "%s without a lease", id)
	}
	for _, n := range f.nodes {
		require.Equal(t, http.StatusServiceUnavailable, f.client.call(t, http.MethodGet, n.url+"/healthz").status)
		require.False(t, n.ended())
	}
	for _, w := range ws {
		f.client.call(t, http.MethodGet, w.url+"/_pinned/live").requireStatus(t, http.StatusOK)
	}

	f.redis.Restart(t)
	for _, w := range ws {
		l := await(t, w.name+" has registered again", func() (listedWorker, bool) { return w.listed(t) })
		require.Equal(t, w == drained, l.Draining, w.name)
		require.Equal(t, w == drained, l.DrainDeadline != nil, w.name)
		awaitTrue(t, w.name+" is ready", func() bool {
			return f.client.call(t, http.MethodGet, w.url+"/_pinned/ready").status == http.StatusOK
		})
		require.Equal(t, w == drained, w.stats(t).Draining, w.name)
	}
	for id, was := range before {
		for _, n := range f.nodes {
			s := await(t, id+" is served", func() (s state, ok bool) {
				a := f.client.call(t, http.MethodGet, room(n.url, id, "state"))
				if a.status != http.StatusOK {
					a.requireNotNow(t)
					return state{}, false
				}
				a.decode(t, &s)
				return s, true
			})
			if was.PID != drained.pid() {
				require.Equal(t, was.Count, s.Count, "%s lives on", id)
				require.Equal(t, was.PID, s.PID, id)
			}
		}
	}
	if busy != "" {
		require.Equal(t, drained.pid(), f.state(t, busy).PID, "its drain has time yet")
		f.poke(t, busy, "let-go")
	}
}
