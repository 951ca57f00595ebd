package pinboard

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// commands returns how often the server has run each command.
func commands(t *testing.T, client rueidis.Client) map[string]int {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	require.NoError(t, err)
	all := map[string]int{}
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			all[name], err = strconv.Atoi(n)
			require.NoError(t, err)
		}
	}
	return all
}

// onRedisAs returns a front whose directory is in that server, with a client and a
// lease of its own.
func onRedisAs(t *testing.T, client rueidis.Client, lease time.Duration, changes ...func(*setup)) *front {
	t.Helper()
	return newFront(t, append(changes, func(s *setup) {
		s.opts.Store, s.opts.LeaseTTL = &Store{backend: redis.New(client)}, lease
	})...)
}

// onEachClient runs a test with clients of the host's, and with the standalone
// server's, from which a node hears of changes itself.
func onEachClient(t *testing.T, test func(t *testing.T, client func(*redistest.Server) rueidis.Client)) {
	t.Helper()
	t.Parallel()
	for name, connect := range map[string]func(*redistest.Server, testing.TB) rueidis.Client{
		"host's": (*redistest.Server).Client, "server's": standaloneClient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, func(server *redistest.Server) rueidis.Client { return connect(server, t) })
		})
	}
}

// standaloneClient returns a client as the standalone server makes it, which is closed
// when the test ends.
func standaloneClient(server *redistest.Server, tb testing.TB) rueidis.Client {
	tb.Helper()
	client, err := redis.NewClient(server.ClientOption())
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	return client
}

// A node's own work shows in Redis too: it reads sessions by scripts and sweeps,
// however many requests there are. Reads through the client's cache are led by
// CLIENT CACHING, and look-ups are counted by the node.
func TestRequestsToPlacedIdsCostNoCommand(t *testing.T) {
	onEachClient(t, requestsToPlacedIdsCostNoCommand)
}

func requestsToPlacedIdsCostNoCommand(t *testing.T, client func(*redistest.Server) rueidis.Client) {
	const ids, requests = 100, 2000
	server := redistest.New(t, redistest.Options{})
	admin := server.Client(t)
	f := onRedisAs(t, client(server), time.Minute)
	var workers []*session
	for i := range 3 {
		w := newFake(t, nil)
		workers = append(workers, f.register(w, fmt.Sprint("w", i)))
	}
	path := func(i int) string { return fmt.Sprintf("/counters/id-%d", i%ids) }
	for i := range 2 * ids { // the first has the id placed, the second reads its row
		resp, _ := f.get(path(i))
		require.Equal(t, 200, resp.StatusCode)
	}
	cached, hits := commands(t, admin)["client|caching"], f.pb.counters.cacheHits.Load()
	var all sync.WaitGroup
	var failed atomic.Int64
	for n := range 4 {
		all.Go(func() {
			for i := range requests / 4 {
				if n == 0 && i%50 == 0 {
					beat := store.Beat{SessionID: workers[i/50%3].SessionID, Headroom: 5}
					if _, err := f.store.Heartbeat(t.Context(), beat); err != nil {
						failed.Add(1)
					}
				}
				if resp, _ := f.get(path(4*i + n)); resp.StatusCode != 200 {
					failed.Add(1)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, failed.Load())
	asked := requests - (f.pb.counters.cacheHits.Load() - hits)
	require.Less(t, asked, int64(20), "look-ups in the store")
	require.Less(t, commands(t, admin)["client|caching"]-cached, 50, "reads through the client's cache")
}

// Without tracking each request is one script, which is one read.
func TestWithoutTrackingARequestIsOneRead(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	admin := server.Client(t)
	option := server.ClientOption()
	option.DisableCache = true
	f := onRedisAs(t, redistest.NewClient(t, option), time.Hour)
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/counters/alice")
	before := commands(t, admin)
	for range 100 {
		resp, _ := f.get("/counters/alice")
		require.Equal(t, 200, resp.StatusCode)
	}
	after := commands(t, admin)
	require.GreaterOrEqual(t, after["evalsha"]-before["evalsha"], 100)
	require.Equal(t, before["client|caching"], after["client|caching"])
	require.LessOrEqual(t, after["client|trackinginfo"], 1)
	require.Zero(t, f.pb.counters.cacheHits.Load())
}

// fenced is a worker with the Python client's fences: it refuses an epoch that it
// has released, and one below the highest that it has seen.
type fenced struct {
	*fake
	mu      sync.Mutex
	ids     map[string]*fence
	refused atomic.Int64
}

type fence struct {
	epoch    int64
	released bool
	// closing is closed when the release has been acknowledged.
	closing chan struct{}
}

func newFenced(t *testing.T, served func(id string, epoch int64)) *fenced {
	w := &fenced{ids: map[string]*fence{}}
	w.fake = newFake(t, func(h *hit) {
		id := strings.TrimPrefix(h.target, "/counters/")
		if detail := w.admit(id, h.epoch(), served); detail != "" {
			w.refused.Add(1)
			detailed(503, detail)(h)
			return
		}
		h.body()
		h.ok(id)
	})
	return w
}

func (w *fenced) admit(id string, epoch int64, served func(id string, epoch int64)) (refusal string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		f := w.ids[id]
		switch {
		case f == nil || epoch > f.epoch && f.closing == nil:
			w.ids[id] = &fence{epoch: epoch}
		case f.closing != nil:
			closing := f.closing
			w.mu.Unlock()
			<-closing
			w.mu.Lock()
			if epoch > f.epoch {
				continue
			}
			return wire.DetailClosing
		case epoch < f.epoch:
			return wire.DetailStaleEpoch
		case f.released:
			return wire.DetailReleasedEpoch
		}
		served(id, epoch)
		return ""
	}
}

// giveUp closes an instance and releases its row through a node.
func (w *fenced) giveUp(id string, through *front, s *session) (given bool, err error) {
	w.mu.Lock()
	f := w.ids[id]
	if f == nil || f.released {
		w.mu.Unlock()
		return false, nil
	}
	f.released, f.closing = true, make(chan struct{})
	epoch := f.epoch
	w.mu.Unlock()
	n, err := through.store.Release(through.t.Context(), []wire.Release{
		{SessionID: s.SessionID, Namespace: counters_, ID: id, Epoch: epoch},
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	close(f.closing)
	f.closing = nil
	return n == 1, err
}

// Ids move all the time, through one node, while another one, which hears of it by
// invalidations alone, is under load. Routes that are out of date are tried, and no
// client sees it; each placement has one owner, and a later one a higher epoch.
func TestStaleRoutesUnderLoadReachTheRightOwner(t *testing.T) {
	onEachClient(t, staleRoutesUnderLoadReachTheRightOwner)
}

func staleRoutesUnderLoadReachTheRightOwner(t *testing.T, client func(*redistest.Server) rueidis.Client) {
	const ids, clients, moves = 20, 6, 100
	server := redistest.New(t, redistest.Options{})
	a := onRedisAs(t, client(server), time.Hour)
	b := onRedisAs(t, client(server), time.Hour)
	var mu sync.Mutex
	owners := map[string]string{} // by id and epoch
	last := map[string]int64{}
	var wrong []string
	var workers []*fenced
	var sessions []*session
	for i := range 3 {
		name := fmt.Sprint("w", i)
		w := newFenced(t, func(id string, epoch int64) {
			mu.Lock()
			defer mu.Unlock()
			placement := fmt.Sprint(id, " ", epoch)
			if owner, ok := owners[placement]; ok && owner != name || epoch < last[id] {
				wrong = append(wrong, placement+" on "+name)
			}
			owners[placement], last[id] = name, epoch
		})
		workers, sessions = append(workers, w), append(sessions, a.register(w.fake, name))
	}
	done := make(chan struct{})
	var all sync.WaitGroup
	answers := make([]map[int]int, clients)
	for n := range clients {
		answers[n] = map[int]int{}
		all.Go(func() {
			for i := n; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				resp, _ := b.post(fmt.Sprintf("/counters/id-%d", i%ids), "once")
				answers[n][resp.StatusCode]++
			}
		})
	}
	// One after the other: a request that an id moves under twice gets the second
	// refusal (protocol §5).
	for moved, turn := 0, 0; moved < moves; turn++ {
		id := fmt.Sprintf("id-%d", turn%ids)
		for i, w := range workers {
			given, err := w.giveUp(id, a, sessions[i])
			require.NoError(t, err)
			if given {
				moved++
				resp, _ := a.get("/counters/" + id) // it lives again before the other node asks
				require.Equal(t, 200, resp.StatusCode)
			}
		}
	}
	close(done)
	all.Wait()
	stale := int64(0)
	for _, w := range workers {
		stale += w.refused.Load()
	}
	for _, got := range answers {
		delete(got, http.StatusOK)
		require.Empty(t, got)
	}
	require.Empty(t, wrong)
	require.Positive(t, b.pb.counters.cacheHits.Load())
	require.Positive(t, stale, "no route was ever out of date")
	t.Logf("%d moves, %d requests by routes that were out of date, %d recalled, %d sent again",
		moves, stale, b.pb.counters.cacheHits.Load(), b.pb.counters.retries.Load())
}

// When a node knows of a move, no request of its goes to the old owner.
func TestAMoveThatIsKnownIsFollowedAtOnce(t *testing.T) {
	onEachClient(t, aMoveThatIsKnownIsFollowedAtOnce)
}

func aMoveThatIsKnownIsFollowedAtOnce(t *testing.T, client func(*redistest.Server) rueidis.Client) {
	server := redistest.New(t, redistest.Options{})
	a := onRedisAs(t, client(server), time.Hour)
	b := onRedisAs(t, client(server), time.Hour)
	one, two := newFake(t, nil), newFake(t, nil)
	s := []*session{a.register(one, "one"), a.register(two, "two")}
	fakes := []*fake{one, two}
	epoch := s[0].place("alice")
	for i := range 20 {
		was, is := i%2, (i+1)%2
		for range 3 {
			resp, _ := b.get("/counters/alice")
			require.Equal(t, 200, resp.StatusCode)
		}
		n, err := a.store.Release(t.Context(), []wire.Release{{SessionID: s[was].SessionID, Namespace: counters_, ID: "alice", Epoch: epoch}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		epoch = s[is].place("alice")
		require.Eventually(t, func() bool {
			known, err := b.store.Known(t.Context(), counters_, "alice")
			return err == nil && known.Epoch == epoch
		}, patience, time.Millisecond)
		old, hits := len(fakes[was].seen()), b.pb.counters.cacheHits.Load()
		for range 3 {
			resp, _ := b.get("/counters/alice")
			require.Equal(t, 200, resp.StatusCode)
		}
		require.Len(t, fakes[was].seen(), old)
		if i > 1 { // by then it has heard of both sessions
			require.Equal(t, hits+3, b.pb.counters.cacheHits.Load(), "and the store is not asked")
		}
	}
}
