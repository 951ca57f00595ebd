package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// everyCall is each method of a store, by name.
func everyCall(s store.Store) map[string]func(ctx context.Context) error {
	minute := time.Minute
	return map[string]func(ctx context.Context) error{
		"CheckRegister": func(ctx context.Context) error { return s.CheckRegister(ctx, registration("a")) },
		"Register":      func(ctx context.Context) error { _, err := s.Register(ctx, registration("b")); return err },
		"Activate":      func(ctx context.Context) error { return s.Activate(ctx, "x") },
		"Heartbeat":     func(ctx context.Context) error { _, err := s.Heartbeat(ctx, store.Beat{SessionID: "x"}); return err },
		"SetDegraded":   func(ctx context.Context) error { return s.SetDegraded(ctx, "x", true) },
		"Deregister":    func(ctx context.Context) error { return s.Deregister(ctx, "x") },
		"Session":       func(ctx context.Context) error { _, err := s.Session(ctx, "x"); return err },
		"States": func(ctx context.Context) error {
			_, err := s.States(ctx, []store.SessionKey{{SessionID: "x", ClientID: "a"}})
			return err
		},
		"Live": func(ctx context.Context) error { _, err := s.Live(ctx); return err },
		"Resolve": func(ctx context.Context) error {
			_, err := s.Resolve(ctx, store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
			return err
		},
		"Candidates": func(ctx context.Context) error { _, err := s.Candidates(ctx, "/counters", "x"); return err },
		"Lookup":     func(ctx context.Context) error { _, err := s.Lookup(ctx, "/counters", "x"); return err },
		"Release": func(ctx context.Context) error {
			_, err := s.Release(ctx, []wire.Release{{SessionID: "x", Namespace: "/counters", ID: "x"}})
			return err
		},
		"Rows": func(ctx context.Context) error { _, _, err := s.Rows(ctx, "/counters", "", 10); return err },
		"Counts": func(ctx context.Context) error {
			_, err := s.Counts(ctx, []store.Session{{ID: "x", Namespaces: []string{"/counters"}}})
			return err
		},
		"Record": func(ctx context.Context) error {
			return s.Record(ctx, []store.Event{{Kind: store.EventDrained, Namespaces: []string{"/counters"}}})
		},
		"Events":     func(ctx context.Context) error { _, _, err := s.Events(ctx, store.EventQuery{Limit: 1}); return err },
		"Quarantine": func(ctx context.Context) error { _, err := s.Quarantine(ctx); return err },
		"Client":     func(ctx context.Context) error { _, err := s.Client(ctx, "a"); return err },
		"Drain":      func(ctx context.Context) error { _, err := s.Drain(ctx, "a", nil); return err },
		"Undrain":    func(ctx context.Context) error { return s.Undrain(ctx, "a") },
		"WindDown":   func(ctx context.Context) error { return s.WindDown(ctx, "/counters", "x", &minute) },
		"Sweep":      func(ctx context.Context) error { _, _, err := s.Sweep(ctx); return err },
		"Ping":       s.Ping,
	}
}

// decided reports whether an error says something of the directory, rather than
// that Redis could not be asked.
func decided(err error) bool {
	for _, one := range []error{
		store.ErrNoSession, store.ErrOtherSecret, store.ErrOvertaken, store.ErrNoClient, store.ErrNotPlaced,
		store.ErrQueueFull, store.ErrBadCursor,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// With a Redis that does not answer, every call returns when its context ends,
// by its deadline or earlier, and what it returns decides nothing.
func TestEveryCallEndsWithItsContextWhileRedisIsFrozen(t *testing.T) {
	t.Parallel()
	frozen := redistest.New(t, redistest.Options{})
	d := openOn(frozen.Client(t), time.Hour)
	d.joined(t, "a")
	frozen.Freeze()
	var all sync.WaitGroup
	for name, do := range everyCall(d) {
		for kind, bound := range map[string]func() (context.Context, context.CancelFunc){
			"deadline": func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(t.Context(), 50*time.Millisecond)
			},
			"cancelled before its deadline": func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				time.AfterFunc(50*time.Millisecond, cancel)
				return ctx, cancel
			},
		} {
			all.Go(func() {
				ctx, cancel := bound()
				defer cancel()
				err := do(ctx)
				// A connection may be given up by another call's deadline.
				if err == nil || decided(err) {
					t.Errorf("%s, %s: %v", name, kind, err)
				}
			})
		}
	}
	all.Wait()
	frozen.Thaw()
	require.Eventually(t, func() bool { return d.Ping(t.Context()) == nil }, 20*time.Second, 10*time.Millisecond)
}

// A client that waits for the answer to its only command does not notice that
// the context has been cancelled.
func TestALoneCallEndsWithItsContextWhileRedisIsFrozen(t *testing.T) {
	t.Parallel()
	frozen := redistest.New(t, redistest.Options{})
	d := openOn(frozen.Client(t), time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	frozen.Freeze()
	defer frozen.Thaw()
	time.AfterFunc(50*time.Millisecond, cancel)
	require.ErrorIs(t, d.Ping(ctx), context.Canceled)
}

func TestAPingSaysWhetherRedisTakesWrites(t *testing.T) {
	t.Parallel()
	one := redistest.New(t, redistest.Options{})
	client := one.Client(t)
	d := openOn(one.Client(t), time.Hour)
	for _, c := range []struct{ refusing, writing []string }{
		{[]string{"CONFIG", "SET", "maxmemory", "1"}, []string{"CONFIG", "SET", "maxmemory", "0"}},
		{[]string{"REPLICAOF", "127.0.0.1", "1"}, []string{"REPLICAOF", "NO", "ONE"}},
	} {
		require.NoError(t, d.Ping(t.Context()))
		require.NoError(t, client.Do(t.Context(), client.B().Arbitrary(c.refusing...).Build()).Error())
		_, err := d.Quarantine(t.Context())
		require.NoError(t, err, "it answers questions")
		require.Error(t, d.Ping(t.Context()), c.refusing)
		require.NoError(t, client.Do(t.Context(), client.B().Arbitrary(c.writing...).Build()).Error())
	}
	require.NoError(t, d.Ping(t.Context()))
}

func TestEveryCallFailsWithoutDecidingWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	away := redistest.New(t, redistest.Options{})
	d := openOn(away.Client(t), time.Hour)
	sid := d.joined(t, "a")
	away.Kill()
	for name, do := range everyCall(d) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := do(ctx)
		cancel()
		require.Error(t, err, name)
		require.False(t, decided(err), "%s: %v", name, err)
	}
	away.Restart(t)
	require.Eventually(t, func() bool { return d.Ping(t.Context()) == nil }, 20*time.Second, 10*time.Millisecond)
	states, err := d.States(t.Context(), []store.SessionKey{{SessionID: sid, ClientID: "a"}})
	require.NoError(t, err)
	require.True(t, states[0].Forgotten)
}

func TestScriptsAreLoadedAgainAfterAFlush(t *testing.T) {
	t.Parallel()
	one := redistest.New(t, redistest.Options{})
	client := one.Client(t)
	s := New(client).Open(store.Config{Prefix: "p", LeaseTTL: time.Hour, Shards: 8})
	flush := func() {
		t.Helper()
		require.NoError(t, client.Do(t.Context(), client.B().ScriptFlush().Build()).Error())
	}
	var all sync.WaitGroup
	flushing, stop := context.WithCancel(t.Context())
	all.Go(func() {
		for flushing.Err() == nil {
			_ = client.Do(flushing, client.B().ScriptFlush().Build()).Error()
		}
	})
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {}}
	for i := range 2000 {
		r.Instances["/counters"] = append(r.Instances["/counters"], fmt.Sprint("id-", i))
	}
	_, err := s.Register(t.Context(), r)
	require.NoError(t, err)
	for range 20 {
		_, err = s.Heartbeat(t.Context(), store.Beat{SessionID: r.SessionID, Headroom: 1})
		require.NoError(t, err)
	}
	stop()
	all.Wait()
	for name, do := range everyCall(s) {
		flush()
		if err := do(t.Context()); err != nil {
			require.True(t, decided(err), "%s: %v", name, err)
		}
	}
}

func TestNothingIsLostOverARestartWithAOF(t *testing.T) {
	t.Parallel()
	durable := redistest.New(t, redistest.Options{AOF: true})
	d := openOn(durable.Client(t), time.Hour)
	sid := d.joined(t, "a")
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	placed, err := d.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.Equal(t, store.Placed, placed.Outcome)
	durable.Restart(t)
	var row store.Row
	require.Eventually(t, func() bool {
		row, err = d.Lookup(t.Context(), "/counters", "x")
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, sid, row.SessionID)
	require.Equal(t, placed.Epoch, row.Epoch)
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: sid})
	require.NoError(t, err)
}

func TestEpochsAndVersionsRiseAcrossAWipe(t *testing.T) {
	t.Parallel()
	wiped := redistest.New(t, redistest.Options{})
	client := wiped.Client(t)
	d := openAs(client, "p", time.Hour)
	epoch, version := int64(0), int64(0)
	for range 3 {
		require.NoError(t, client.Do(t.Context(), client.B().Flushall().Build()).Error())
		r := registration("a")
		r.Instances = map[string][]string{"/counters": {"x"}}
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, d.Activate(t.Context(), r.SessionID))
		row, err := d.Lookup(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.Greater(t, row.Epoch, epoch)
		view, err := d.Candidates(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.Greater(t, view.Version, version)
		epoch, version = row.Epoch, view.Version
	}
}

// untimed are the keys that live on, by what follows the hash tag.
var untimed = map[string]bool{
	"live": true, "namespaces": true, "meta": true, "sessions": true, "candidates": true, "clients": true, "leaves": true, "r": true,
	"floor": true, "generation": true, "lapses": true, "events": true, "moves": true,
}

// requireTTLs checks that what belongs to a lease ends with it.
func (d *directory) requireTTLs(t *testing.T) {
	t.Helper()
	for _, key := range d.scan(t) {
		_, name, _ := strings.Cut(key, "}:")
		kind, _, _ := strings.Cut(name, ":")
		ms, err := d.client.Do(t.Context(), d.client.B().Pttl().Key(key).Build()).AsInt64()
		require.NoError(t, err)
		bounds := map[string]int64{
			"s": d.lease, "u": d.lease, "c": d.lease + memory, "w": d.lease + memory, "sweep": sweepTurn.Milliseconds(),
			"g": d.lease + memory, "m": d.lease + memory, "hosts": 2 * d.lease, "layout": d.lease,
			"x": d.lease + store.SupersededMemory.Milliseconds(),
		}
		if untimed[kind] {
			require.Equal(t, int64(-1), ms, key)
			continue
		}
		require.Contains(t, bounds, kind, key)
		require.NotEqual(t, int64(-1), ms, "%s lives for ever", key)
		require.LessOrEqual(t, ms, bounds[kind], key)
	}
}

// However operations are interrupted, no key outlives its lease, and once the
// leases are over nobody lives, whatever keys are left.
func TestLeasesEndHoweverOperationsWereInterrupted(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	d := open(t, lease)
	rng := rand.New(rand.NewPCG(3, 4)) // cases, not secrets
	interrupted := 0
	var sids []string
	attempt := func(do func(ctx context.Context) error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		timer := time.AfterFunc(time.Duration(rng.IntN(1500))*time.Microsecond, cancel)
		defer timer.Stop()
		if errors.Is(do(ctx), context.Canceled) {
			interrupted++
		}
	}
	for i := range 250 {
		client := fmt.Sprint("client-", rng.IntN(3))
		r := registration(client)
		r.AdvertiseURL = fmt.Sprint("http://", rng.IntN(3))
		r.Namespaces = []string{"/counters", fmt.Sprint("/", rng.IntN(3))}
		r.Epoch = rng.Int64N(3)
		if rng.IntN(3) == 0 {
			r.Hostname, r.Takeover = "chat.example", time.Second
			r.Env = fmt.Sprint(rng.IntN(2))
		}
		r.Instances = map[string][]string{"/counters": {"x", fmt.Sprint("id-", i)}}
		sids = append(sids, r.SessionID)
		sid := sids[rng.IntN(len(sids))]
		attempt(func(ctx context.Context) error { _, err := d.Register(ctx, r); return err })
		attempt(func(ctx context.Context) error { return d.Activate(ctx, r.SessionID) })
		attempt(func(ctx context.Context) error {
			_, err := d.Resolve(ctx, store.Request{Namespace: "/counters", ID: fmt.Sprint(i), View: store.AnyView, BalanceFactor: 1})
			return err
		})
		attempt(func(ctx context.Context) error { return d.WindDown(ctx, "/counters", "x", nil) })
		attempt(func(ctx context.Context) error { _, err := d.Drain(ctx, client, nil); return err })
		attempt(func(ctx context.Context) error { _, err := d.Heartbeat(ctx, store.Beat{SessionID: sid}); return err })
		attempt(func(ctx context.Context) error { return d.Deregister(ctx, sids[rng.IntN(len(sids))]) })
		attempt(func(ctx context.Context) error { _, _, err := d.Sweep(ctx); return err })
		if i%25 == 0 {
			d.requireTTLs(t)
		}
	}
	require.Greater(t, interrupted, 100, "the cases are no good")
	d.requireTTLs(t)
	// Nothing that was interrupted is still on its way after this.
	require.NoError(t, d.Ping(t.Context()))
	advance(t, lease+lease/10)
	d.requireNobodyLives(t, sids)
}

func (d *directory) requireNobodyLives(t *testing.T, sids []string) {
	t.Helper()
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Empty(t, live)
	for _, ns := range []string{"/counters", "/0", "/1", "/2"} {
		res, err := d.Resolve(t.Context(), store.Request{Namespace: ns, ID: "x", View: store.AnyView, BalanceFactor: 1})
		require.NoError(t, err)
		require.Equal(t, store.UnknownNamespace, res.Outcome)
		rows, _, err := d.Rows(t.Context(), ns, "", 1000)
		require.NoError(t, err)
		require.Empty(t, rows)
	}
	for _, sid := range sids {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid})
		require.ErrorIs(t, err, store.ErrNoSession)
	}
	for _, key := range d.scan(t) {
		require.NotContains(t, key, "}:s:")
	}
}

// The options of a host's client are its own business.
func TestAnyClientOptionsWork(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*rueidis.ClientOption){
		"RESP2":                   func(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true },
		"no client-side cache":    func(o *rueidis.ClientOption) { o.DisableCache = true },
		"a connection per call":   func(o *rueidis.ClientOption) { o.DisableAutoPipelining = true },
		"always pipelined":        func(o *rueidis.ClientOption) { o.AlwaysPipelining, o.MaxFlushDelay = true, time.Millisecond },
		"no retries":              func(o *rueidis.ClientOption) { o.DisableRetry = true },
		"another database":        func(o *rueidis.ClientOption) { o.SelectDB = 3 },
		"short-lived connections": func(o *rueidis.ClientOption) { o.ConnLifetime = 5 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := server.ClientOption()
			change(&opts)
			d := openOn(redistest.NewClient(t, opts), time.Hour)
			sid := d.joined(t, "a")
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 20 {
						_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			live, err := d.Live(t.Context())
			require.NoError(t, err)
			require.Len(t, live, 1)
		})
	}
}

// A client that reads from replicas must not be told what they have not heard
// of yet: nothing is read by a command that only reads.
func TestNothingIsReadFromReplicas(t *testing.T) {
	t.Parallel()
	opts := rueidis.ClientOption{InitAddress: cluster.Addrs()}
	var mu sync.Mutex
	reads := map[string]bool{}
	opts.SendToReplicas = func(cmd rueidis.Completed) bool {
		mu.Lock()
		defer mu.Unlock()
		if cmd.IsReadOnly() {
			reads[cmd.Commands()[0]] = true
		}
		return cmd.IsReadOnly()
	}
	d := openOn(redistest.NewClient(t, opts), time.Hour)
	d.joined(t, "a")
	for name, do := range everyCall(d) {
		if err := do(t.Context()); err != nil {
			require.True(t, decided(err), "%s: %v", name, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, reads)
}
