package redis

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// move begins to move the slot of some keys to another node of their cluster, and
// these with it. When the test ends, it is given up.
func move(t *testing.T, c *redistest.Cluster, keys ...string) {
	t.Helper()
	of, from := int(slot(keys[0])), 0
	for of >= (from+1)*16384/len(c.Nodes) {
		from++
	}
	number := strconv.Itoa(of)
	to := (from + 1) % len(c.Nodes)
	ctx := context.WithoutCancel(t.Context())
	source, target := c.Nodes[from].Client(t), c.Nodes[to].Client(t)
	on := func(client rueidis.Client, words ...string) string {
		said, err := client.Do(ctx, client.B().Arbitrary(words...).Build()).ToString()
		require.NoError(t, err, words)
		return said
	}
	on(target, "CLUSTER", "SETSLOT", number, "IMPORTING", on(source, "CLUSTER", "MYID"))
	on(source, "CLUSTER", "SETSLOT", number, "MIGRATING", on(target, "CLUSTER", "MYID"))
	t.Cleanup(func() {
		on(source, "CLUSTER", "SETSLOT", number, "STABLE")
		on(target, "CLUSTER", "SETSLOT", number, "STABLE")
	})
	host, port, err := net.SplitHostPort(c.Nodes[to].Addr())
	require.NoError(t, err)
	require.Equal(t, "OK", on(source, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...))
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
			_, err := d.reclaim(ctx, b)
			return err
		},
		"retire": func(ctx context.Context, d *directory, _ string, b *registering) error { return d.retire(ctx, b) },
		"release": func(ctx context.Context, d *directory, sid string, _ *registering) error {
			_, err := d.Release(ctx, []wire.Release{{SessionID: sid, Namespace: "/counters", ID: "x"}})
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
