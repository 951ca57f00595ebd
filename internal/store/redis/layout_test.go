package redis

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
)

// with opens the directory as a node with so many shards does.
func (d *directory) with(shards int) *directory {
	// Open returns nothing else
	return New(d.client).Open(store.Config{
		Prefix: d.keys.prefix, LeaseTTL: time.Duration(d.lease) * time.Millisecond, Shards: shards,
	}).(*directory)
}

func requireUnequal(t *testing.T, err error, here, there int) {
	t.Helper()
	unequal, ok := errors.AsType[*store.Unequal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, store.Unequal{Setting: store.ShardsSetting, Here: here, There: there}, *unequal)
}

// open lets all buckets of /counters place at once.
func (d *directory) opened(t *testing.T) *directory {
	t.Helper()
	for _, b := range d.keys.buckets([]string{"/counters"}) {
		d.do1(t, "HSET", b.meta(), "quarantine", "0")
	}
	return d
}

func (d *directory) place(t *testing.T, id string) (store.Result, error) {
	t.Helper()
	return d.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 2})
}

// What a node has been told before is no reason to place: the bucket decides, in the
// same step.
func TestABucketRefusesANodeOfAnotherLayout(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour).opened(t)
	other := d.with(8).opened(t)
	require.NoError(t, other.agree(t.Context()))
	sid := d.joined(t, "a")
	for i := range 50 {
		id := fmt.Sprint("id-", i)
		res, err := d.place(t, id)
		require.NoError(t, err)
		require.Equal(t, sid, res.SessionID)
		if store.Shard(id, 8) == 0 { // the bucket is there for both
			_, err = other.place(t, id)
			requireUnequal(t, err, 8, 1)
			_, err = other.place(t, "another "+id)
			require.True(t, err != nil || store.Shard("another "+id, 8) != 0)
		}
	}
	require.NoError(t, other.agree(t.Context()), "it was told so before")
}

// The fleet's key alone is lost, while sessions live: their buckets refuse the other
// node, and the next heartbeat brings the key back.
func TestANodeOfAnotherLayoutGainsNothingByALostKey(t *testing.T) {
	t.Parallel()
	for _, shards := range [][2]int{{1, 8}, {8, 1}, {2, 3}} {
		d := open(t, time.Hour).with(shards[0]).opened(t)
		other := d.with(shards[1])
		sid := d.joined(t, "a")
		require.Equal(t, "1", d.do1(t, "DEL", d.keys.fleet().layout()))
		for range 3 {
			r := registration("b")
			_, err := other.Register(t.Context(), r)
			requireUnequal(t, err, shards[1], shards[0])
			for _, b := range other.keys.buckets([]string{"/counters"}) { // or the two could keep each other out
				require.Equal(t, "0", d.do1(t, "EXISTS", b.session(r.SessionID)))
			}
		}
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 10})
		require.NoError(t, err)
		require.Equal(t, d.layout, d.do1(t, "GET", d.keys.fleet().layout()))
		requireUnequal(t, other.CheckRegister(t.Context(), registration("b")), shards[1], shards[0])
		// What was refused is nowhere in the way.
		d.joined(t, "c")
		_, err = d.place(t, "x")
		require.NoError(t, err)
	}
}

// A wipe takes the sessions along. Whichever node registers a worker first is the fleet
// then, and the other one is refused, in whatever order they go on.
func TestOfTwoLayoutsOneAloneServesAfterAWipe(t *testing.T) {
	t.Parallel()
	for _, first := range []int{0, 1} {
		own := redistest.New(t, redistest.Options{})
		d := openOn(own.Client(t), time.Hour).opened(t)
		nodes := []*directory{d, d.with(8)}
		d.joined(t, "a")
		_, err := d.place(t, "x")
		require.NoError(t, err)
		requireUnequal(t, nodes[1].Ping(t.Context()), 8, 1)
		require.NoError(t, d.client.Do(t.Context(), d.client.B().Flushall().Build()).Error())
		wins, loses := nodes[first].opened(t), nodes[1-first].opened(t)
		wins.joined(t, "a")
		for i := range 50 {
			_, err = loses.place(t, fmt.Sprint("id-", i))
			require.Error(t, err)
			_, err = loses.Register(t.Context(), registration("b"))
			requireUnequal(t, err, loses.keys.shards, wins.keys.shards)
			res, err := wins.place(t, fmt.Sprint("id-", i))
			require.NoError(t, err)
			require.Equal(t, store.Placed, res.Outcome)
		}
		requireUnequal(t, loses.Ping(t.Context()), loses.keys.shards, wins.keys.shards)
	}
}

// The key lasts for as long as any session that a node of the layout has registered.
func TestTheLayoutIsKeptAsLongAsSessionsLive(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	lives := func() string { return d.do1(t, "PTTL", d.keys.fleet().layout()) }
	sid := d.joined(t, "a")
	for range 2 {
		require.Regexp(t, `^3\d{6}$`, lives())
		d.do1(t, "PEXPIRE", d.keys.fleet().layout(), "5000")
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 10})
		require.NoError(t, err)
	}
	short := openAs(d.client, d.keys.prefix, time.Minute)
	_, err := short.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 10})
	require.NoError(t, err)
	require.Regexp(t, `^3\d{6}$`, lives(), "another lease time does not shorten it")
}

func TestTheErrorOfAnotherLayoutSaysWhatToDo(t *testing.T) {
	t.Parallel()
	require.EqualError(t, readUnequal("LAYOUT 1 1 1 8"), "Shards (PINBOARD_SHARDS) is 8 on this node and 1 on the nodes that workers "+
		"are registered with: this node serves nothing until it is 1 here, too; to change it, stop all nodes for one lease")
	require.ErrorContains(t, readUnequal("LAYOUT 2 1 1 1"), "the layout of rows (a matter of pinboard's version) is 1 on this node and 2 on")
	for _, text := range []string{"", "LAYOUT", "LAYOUT 1 1", "ERR LAYOUT 1 1 1 8", "LAYOUT a b c d"} {
		require.Nil(t, readUnequal(text), text)
	}
}
