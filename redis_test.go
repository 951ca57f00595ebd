package pinboard

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// onRedis returns a front whose directory is in that server, and a client of it.
func onRedis(t *testing.T, server *redistest.Server, changes ...func(*setup)) (*front, rueidis.Client) {
	t.Helper()
	client := server.Client(t)
	return newFront(t, append(changes, func(s *setup) { s.opts.Store = &Store{backend: redis.New(client)} })...), client
}

func TestTwoPinboardsOnOneRedisClientDoNotTouchEachOther(t *testing.T) {
	t.Parallel()
	client := redistest.New(t, redistest.Options{}).Client(t)
	var nodes []*Pinboard
	for _, prefix := range []string{"one", "two"} {
		pb, err := New(Options{Passport: anyone{}, Redis: client, KeyPrefix: prefix})
		require.NoError(t, err)
		nodes = append(nodes, pb)
	}
	ctx := t.Context()
	_, err := nodes[0].store.Register(ctx, store.Registration{
		SessionID: "s", ClientID: "c", Secret: wire.NewSecret("x"), AdvertiseURL: "http://w", Namespaces: []string{counters_},
	})
	require.NoError(t, err)
	live, err := nodes[1].store.Live(ctx)
	require.NoError(t, err)
	require.Empty(t, live)
	res, err := nodes[1].store.Resolve(ctx, store.Request{Namespace: counters_, ID: "alice", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.Equal(t, store.UnknownNamespace, res.Outcome)
	for _, pb := range nodes {
		require.NoError(t, pb.Shutdown(ctx))
	}
	require.NoError(t, client.Do(ctx, client.B().Ping().Build()).Error(), "the host's client is not closed")
}

func TestAFlushOfTheScriptsIsNotNoticed(t *testing.T) {
	t.Parallel()
	f, client := onRedis(t, redistest.New(t, redistest.Options{}))
	w := newFake(t, func(h *hit) { h.reply(200, "ok") })
	f.register(w, "a")
	var stop atomic.Bool
	var all sync.WaitGroup
	answers := make([]map[int]int, 4)
	for i := range answers {
		answers[i] = map[int]int{}
		all.Go(func() {
			for n := 0; !stop.Load(); n++ {
				resp, _ := f.get("/counters/id-" + strconv.Itoa(i) + "-" + strconv.Itoa(n%50))
				answers[i][resp.StatusCode]++
			}
		})
	}
	for range 20 {
		require.NoError(t, client.Do(t.Context(), client.B().ScriptFlush().Build()).Error())
	}
	stop.Store(true)
	all.Wait()
	for _, got := range answers {
		delete(got, 200)
		require.Empty(t, got)
	}
}

func TestWhileRedisIsFrozenKnownIDsAreServedAndOthersToldToWait(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	f, _ := onRedis(t, server, func(s *setup) { s.hasty = true })
	w := newFake(t, func(h *hit) { h.reply(200, "ok") })
	s := f.register(w, "a")
	known := func() bool { resp, _ := f.get("/counters/known"); return resp.StatusCode == 200 }
	require.Eventually(t, func() bool { return known() && f.pb.counters.cacheHits.Load() > 0 }, patience, patience/1000)

	server.Freeze()
	var all sync.WaitGroup
	served, fresh := make([]bool, 100), make([]*http.Response, 100)
	for i := range served {
		all.Go(func() { served[i] = known() })
		all.Go(func() { fresh[i], _ = f.get("/counters/fresh-" + strconv.Itoa(i)) })
	}
	all.Wait()
	for i := range served {
		require.True(t, served[i])
		require.Equal(t, 503, fresh[i].StatusCode)
		require.Equal(t, "1", fresh[i].Header.Get("Retry-After"))
	}
	resp, _ := f.get("/healthz")
	require.Equal(t, 503, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	resp, _ = f.post("/registry/heartbeat", `{"sessionId":"`+s.SessionID+`","headroom":1,"draining":false,"challenge":"c","challengeValue":"v"}`)
	require.NotEqual(t, 409, resp.StatusCode, "that would cost the worker its session")

	server.Thaw()
	require.Eventually(t, func() bool {
		resp, _ := f.get("/counters/fresh-0")
		health, _ := f.get("/healthz")
		return resp.StatusCode == 200 && health.StatusCode == 200
	}, patience, patience/1000)
}

func TestOneOwnerAndOneEpochForSimultaneousFirstRequestsThroughTwoNodes(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	f, _ := onRedis(t, server)
	other, _ := onRedis(t, server)
	var mu sync.Mutex
	seen := map[string]int{}
	for _, name := range []string{"a", "b"} {
		w := newFake(t, func(h *hit) {
			mu.Lock()
			seen[name+" "+h.header.Get(wire.HeaderEpoch)]++
			mu.Unlock()
			h.reply(200, "ok")
		})
		f.register(w, name)
	}
	var all sync.WaitGroup
	failed := make([]error, 200)
	for i := range failed {
		all.Go(func() {
			node := []*front{f, other}[i%2]
			if resp, _ := node.get("/counters/alice"); resp.StatusCode != 200 {
				failed[i] = errors.New(resp.Status)
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(failed...))
	require.Len(t, seen, 1)
}
