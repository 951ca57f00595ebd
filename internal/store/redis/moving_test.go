package redis

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// moving is a slot that another node of its cluster is being given.
type moving struct {
	t              *testing.T
	number         string
	source, target rueidis.Client
	to             string // address of the target
}

// begin begins to move the slot of a key. When the test ends, it is given up.
func begin(t *testing.T, c *redistest.Cluster, key string) *moving {
	t.Helper()
	of, from := int(slot(key)), 0
	for of >= (from+1)*16384/len(c.Nodes) {
		from++
	}
	to := (from + 1) % len(c.Nodes)
	m := &moving{t: t, number: strconv.Itoa(of), source: c.Nodes[from].Client(t), target: c.Nodes[to].Client(t), to: c.Nodes[to].Addr()}
	m.on(m.target, "CLUSTER", "SETSLOT", m.number, "IMPORTING", m.on(m.source, "CLUSTER", "MYID"))
	m.on(m.source, "CLUSTER", "SETSLOT", m.number, "MIGRATING", m.on(m.target, "CLUSTER", "MYID"))
	t.Cleanup(func() {
		m.on(m.source, "CLUSTER", "SETSLOT", m.number, "STABLE")
		m.on(m.target, "CLUSTER", "SETSLOT", m.number, "STABLE")
	})
	return m
}

func (m *moving) on(client rueidis.Client, words ...string) string {
	m.t.Helper()
	said, err := client.Do(context.WithoutCancel(m.t.Context()), client.B().Arbitrary(words...).Build()).ToString()
	require.NoError(m.t, err, words)
	return said
}

func (m *moving) move(keys ...string) {
	m.t.Helper()
	host, port, err := net.SplitHostPort(m.to)
	require.NoError(m.t, err)
	require.Equal(m.t, "OK", m.on(m.source, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...))
}

// finish makes the slot the target's.
func (m *moving) finish() {
	m.t.Helper()
	id := m.on(m.target, "CLUSTER", "MYID")
	m.on(m.target, "CLUSTER", "SETSLOT", m.number, "NODE", id)
	m.on(m.source, "CLUSTER", "SETSLOT", m.number, "NODE", id)
}

// move begins to move the slot of some keys, and these with it.
func move(t *testing.T, c *redistest.Cluster, keys ...string) {
	t.Helper()
	begin(t, c, keys[0]).move(keys...)
}

// requireRefused: Redis has not begun with the script.
func requireRefused(t *testing.T, err error) {
	t.Helper()
	require.ErrorContains(t, err, "TRYAGAIN")
	require.False(t, decided(err))
}

func TestAnIdKeepsItsOwnerWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	own := redistest.NewCluster(t)
	for name, moved := range map[string]func(b bucketOf, rows string) []string{
		"nothing that it goes by": func(b bucketOf, _ string) []string { return []string{b.leaves()} },
		"not the row":             func(b bucketOf, _ string) []string { return []string{b.meta(), b.candidates(), b.session("s")} },
		"not the session":         func(b bucketOf, rows string) []string { return []string{b.meta(), b.candidates(), rows} },
		"the row":                 func(_ bucketOf, rows string) []string { return []string{rows} },
		"the session":             func(b bucketOf, _ string) []string { return []string{b.session("s")} },
	} {
		t.Run(name, func(t *testing.T) { // in turn: the slot is the same
			d := openOn(own.Client(t), time.Hour)
			b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
			b.candidate(t, "s", 10)
			outcome, _ := b.resolve(t, store.Request{ID: "x", View: store.AnyView, BalanceFactor: 2})
			require.Equal(t, store.Placed, outcome)
			b.candidate(t, "t", 1000)
			move(t, own, append(moved(b, b.rows(b.keys.leaf("x"))), b.session("t"))...)
			for _, id := range []string{"x", "new"} {
				_, err := b.Resolve(t.Context(), store.Request{
					Namespace: "/counters", ID: id, Preferred: "t", View: store.AnyView, BalanceFactor: 2,
				})
				requireRefused(t, err)
			}
		})
	}
}

// All that the scripts name has come, and what else they read has not.
func TestNothingIsTakenForGoneWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	own := redistest.NewCluster(t)
	req := store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1}
	for name, do := range map[string]func(ctx context.Context, d *directory, sid string, b *registering) error{
		"lapsed": func(ctx context.Context, d *directory, sid string, _ *registering) error {
			return d.clear(ctx, req, sid)
		},
		"leave": func(ctx context.Context, d *directory, sid string, _ *registering) error {
			return d.leave(ctx, sid, []string{"/counters"})
		},
		"reclaim": func(ctx context.Context, d *directory, _ string, b *registering) error {
			_, _, err := d.reclaim(ctx, b)
			return err
		},
		"retire": func(ctx context.Context, d *directory, _ string, b *registering) error { return d.retire(ctx, b) },
		"release": func(ctx context.Context, d *directory, sid string, _ *registering) error {
			_, err := d.Release(ctx, []wire.Release{{SessionID: sid, Namespace: "/counters", ID: "x"}})
			return err
		},
		"lookup": func(ctx context.Context, d *directory, _ string, _ *registering) error {
			_, err := d.Lookup(ctx, "/counters", "x")
			return err
		},
		"sweep": func(ctx context.Context, d *directory, _ string, _ *registering) error {
			_, _, err := d.sweeping().sweep(ctx, d.keys.buckets([]string{"/counters"}))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { // in turn: the slot is the same
			d := openOn(own.Client(t), time.Hour)
			b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
			sid := d.joined(t, "a")
			b.do1(t, "HSET", b.meta(), "quarantine", "0")
			outcome, _ := b.resolve(t, req)
			require.Equal(t, store.Placed, outcome)
			other := registration("b")
			other.Instances = map[string][]string{"/counters": {"x"}}
			b.join(t, other.SessionID, other.ClientID, 2)
			move(t, own, b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves(), b.session(other.SessionID))
			requireRefused(t, do(t.Context(), d, sid, &registering{Registration: &other, generation: 2, spaces: []string{"/counters"}}))
		})
	}
}

func TestNoSessionIsTakenForGoneWhileTheSlotOfTheFleetMoves(t *testing.T) {
	t.Parallel()
	own := redistest.NewCluster(t)
	d := openOn(own.Client(t), time.Hour)
	sid := d.joined(t, "a")
	move(t, own, d.keys.fleet().live())
	_, err := d.Session(t.Context(), sid)
	requireRefused(t, err)
	_, err = d.States(t.Context(), []store.SessionKey{{SessionID: sid, ClientID: "a"}})
	requireRefused(t, err)
}

// What has been half done would be taken for done: the state is not newer any more.
func TestASessionIsNotHalfStoppedWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	own := redistest.NewCluster(t)
	for name, moved := range map[string]func(b bucketOf) []string{
		"the generation":     func(b bucketOf) []string { return []string{b.bucketKeys.generation()} },
		"not the generation": func(b bucketOf) []string { return []string{b.meta(), b.sessions(), b.candidates(), b.session("s")} },
	} {
		t.Run(name, func(t *testing.T) { // in turn: the slot is the same
			d := openOn(own.Client(t), time.Hour)
			b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
			b.candidate(t, "s", 10)
			move(t, own, moved(b)...)
			requireRefused(t, d.run(t.Context(), state{sid: "s", version: 5, stopped: true}.call(b.bucketKeys)).err)
			beat := state{sid: "s", version: 6, takes: true, renew: 60_000, headroom: 3}
			require.NoError(t, d.run(t.Context(), beat.call(b.bucketKeys)).err, "heartbeats need no generation")
		})
	}
}

// Key by key, from the first to the last, and on the other node afterwards.
func TestIdsKeepTheirOwnersOverAWholeMove(t *testing.T) {
	t.Parallel()
	const ids = 20
	own := redistest.NewCluster(t)
	d := openOn(own.Client(t), time.Hour)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	b.candidate(t, "s", ids)
	b.candidate(t, "t", ids)
	owner := map[string]store.Result{}
	ask := func(i int) (store.Result, error) {
		return d.Resolve(t.Context(), store.Request{
			Namespace: "/counters", ID: fmt.Sprint("id-", i), View: store.AnyView, BalanceFactor: 2, Dice: store.Dice{uint32(i), 0, 0},
		})
	}
	for i := range ids {
		res, err := ask(i)
		require.NoError(t, err)
		owner[fmt.Sprint("id-", i)] = res
	}
	requireKept := func(i int, res store.Result) {
		was := owner[fmt.Sprint("id-", i)]
		require.Equal(t, store.Owned, res.Outcome)
		require.Equal(t, was.SessionID, res.SessionID)
		require.Equal(t, was.Epoch, res.Epoch)
	}
	m := begin(t, own, b.meta())
	keys, err := m.source.Do(t.Context(), m.source.B().Arbitrary("CLUSTER", "GETKEYSINSLOT", m.number, "1000").Build()).AsStrSlice()
	require.NoError(t, err)
	slices.SortFunc(keys, func(a, b string) int { // rows come last
		return strings.Index(a, "}:r:") - strings.Index(b, "}:r:")
	})
	for _, key := range keys {
		m.move(key)
		for i := range ids {
			if res, err := ask(i); err == nil {
				requireKept(i, res)
			}
		}
	}
	m.finish()
	for i := range ids {
		var res store.Result
		until(t, func() (ok bool) {
			var err error
			res, err = ask(i)
			return err == nil
		})
		requireKept(i, res)
	}
}
