package storetest

import (
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var unequalRules = []rule{
	{"a node with other shards places, registers, renews and frees nothing", otherShards},
	{"of nodes with other shards that come at the same time one alone serves", unequalTogether},
	{"the shards are others when all sessions have ended", shardsChanged},
	{"nodes with equal settings come and go", equalRoll},
}

// sharded opens the directory as a node with so many shards does.
func (d *directory) sharded(shards int, ttl time.Duration) store.Store {
	cfg := d.cfg
	cfg.Shards, cfg.LeaseTTL = shards, ttl
	return d.Backend.Open(cfg)
}

// spreadIDs are on all shards of any number of them.
func spreadIDs() (ids []string) {
	for i := range 40 {
		ids = append(ids, fmt.Sprintf("thread-%d", i))
	}
	return ids
}

// refused requires that an error names the setting and both values.
func refused(t *testing.T, err error, here, there int, what string) {
	t.Helper()
	unequal, ok := errors.AsType[*store.Unequal](err)
	require.True(t, ok, "%s: %v", what, err)
	require.Equal(t, store.Unequal{Setting: store.ShardsSetting, Here: here, There: there}, *unequal, what)
}

func otherShards(t *testing.T, f Fixture) {
	for _, shards := range [][2]int{{1, 8}, {8, 1}, {2, 3}} {
		d := emptyShards(f, shards[0])
		d.endQuarantine(t, counters)
		sid := d.join(t, "a")
		for _, id := range spreadIDs() {
			d.place(t, counters, id, sid)
		}
		notUsedBy(t, d.sharded(shards[1], time.Hour), sid, shards[1], shards[0])
		require.Equal(t, sid, d.session(t, sid).ID)
		d.beat(t, sid)
		for _, id := range spreadIDs() {
			require.Equal(t, sid, d.lookup(t, counters, id).SessionID)
		}
	}
}

// notUsedBy requires that a node with other shards is refused whatever it does about
// rows and sessions.
func notUsedBy(t *testing.T, other store.Store, sid string, here, there int) {
	t.Helper()
	ctx := t.Context()
	refusal := func(err error, what string) {
		t.Helper()
		refused(t, err, here, there, what)
	}
	for range 2 {
		for _, id := range append(spreadIDs(), "new") {
			req := request(counters, id)
			_, err := other.Resolve(ctx, req)
			refusal(err, "resolve")
			req.Refused = &store.Refused{SessionID: sid, ClientID: "a", Epoch: 1}
			_, err = other.Resolve(ctx, req)
			refusal(err, "resolve anew")
		}
		for _, client := range []string{"a", "b"} {
			refusal(other.CheckRegister(ctx, registration(client)), "check")
			_, err := other.Register(ctx, registration(client, listing(counters, spreadIDs()...)))
			refusal(err, "register")
			_, err = other.Register(ctx, registration(client, serving("/other")))
			refusal(err, "register elsewhere")
		}
		_, err := other.Heartbeat(ctx, store.Beat{SessionID: sid, Headroom: ample})
		refusal(err, "heartbeat")
		_, err = other.Heartbeat(ctx, store.Beat{SessionID: "unknown", Headroom: ample})
		refusal(err, "heartbeat of one that is not there")
		refusal(other.Activate(ctx, sid), "activate")
		refusal(other.SetDegraded(ctx, sid, true), "degrade")
		refusal(other.Deregister(ctx, sid), "deregister")
		_, err = other.Release(ctx, []wire.Release{{SessionID: sid, Namespace: counters, ID: spreadIDs()[0]}})
		refusal(err, "release")
		_, err = other.Lookup(ctx, counters, spreadIDs()[0])
		refusal(err, "lookup")
		refusal(other.WindDown(ctx, counters, spreadIDs()[0], nil), "wind down")
		_, err = other.Drain(ctx, "a", nil)
		refusal(err, "drain")
		refusal(other.Undrain(ctx, "a"), "undrain")
		_, _, err = other.Rows(ctx, counters, "", 10)
		refusal(err, "rows")
		_, err = other.Counts(ctx, []store.Session{{ID: sid, Namespaces: []string{counters}}})
		refusal(err, "counts")
		_, _, err = other.Sweep(ctx)
		refusal(err, "sweep")
		refusal(other.Ping(ctx), "ping")
	}
}

// serves registers a worker with a node and has it place ids, and reports whether it
// did.
func (d *directory) serves(t *testing.T, shards int, client string) bool {
	t.Helper()
	lasting, node := d.sharded(shards, time.Hour), d.sharded(shards, time.Millisecond)
	r := registration(client)
	_, err := lasting.Register(t.Context(), r)
	if err == nil {
		err = lasting.Activate(t.Context(), r.SessionID)
	}
	if !isUnequal(err) {
		require.NoError(t, err)
	}
	placed := 0
	for _, id := range spreadIDs() {
		d.Until(t, func() bool {
			res, err := node.Resolve(t.Context(), request(counters, id))
			if isUnequal(err) {
				return true
			}
			require.NoError(t, err)
			if res.Outcome == store.Placed {
				placed++
			}
			return res.Outcome != store.Quarantined
		})
	}
	if err == nil {
		require.Equal(t, len(spreadIDs()), placed)
	} else {
		require.Zero(t, placed)
	}
	return err == nil
}

func isUnequal(err error) bool {
	_, ok := errors.AsType[*store.Unequal](err)
	return ok
}

func unequalTogether(t *testing.T, f Fixture) {
	for round := range 6 {
		d := &directory{Fixture: f, cfg: store.Config{Prefix: "storetest-" + rand.Text()}}
		shards := []int{1, 3, 5}
		mrand.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		if round == 0 { // one after the other
			require.True(t, d.serves(t, shards[0], "first"))
			require.False(t, d.serves(t, shards[1], "second"))
			continue
		}
		var served [2]bool
		var all sync.WaitGroup
		for i := range served {
			all.Go(func() { served[i] = d.serves(t, shards[i], fmt.Sprint("client ", i)) })
		}
		all.Wait()
		require.False(t, served[0] && served[1])
	}
}

func shardsChanged(t *testing.T, f Fixture) {
	for _, shards := range [][2]int{{1, 4}, {4, 1}} {
		d := &directory{Fixture: f, cfg: store.Config{Prefix: "storetest-" + rand.Text()}}
		before, after := d.sharded(shards[0], f.LeaseTTL), d.sharded(shards[1], time.Hour)
		joinThrough(t, before, "a")
		refused(t, after.CheckRegister(t.Context(), registration("a")), shards[1], shards[0], "at first")
		f.Advance(t, f.LeaseTTL)
		f.Until(t, func() bool { return after.CheckRegister(t.Context(), registration("a")) == nil })
		require.NoError(t, after.Ping(t.Context()))
		sid := joinThrough(t, after, "a")
		res, err := d.sharded(shards[1], f.LeaseTTL/20).Resolve(t.Context(), request(counters, "x"))
		require.NoError(t, err)
		require.Contains(t, []store.Outcome{store.Placed, store.Quarantined}, res.Outcome)
		notUsedBy(t, before, sid, shards[0], shards[1])
	}
}

func equalRoll(t *testing.T, f Fixture) {
	d := emptyShards(f, 3)
	d.endQuarantine(t, counters)
	sid := d.join(t, "a")
	ids := spreadIDs()
	for round := range 5 {
		node := d.node(time.Hour) // the new one, next to those that are there
		require.NoError(t, node.Ping(t.Context()))
		_, err := node.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: ample})
		require.NoError(t, err)
		joinThrough(t, node, fmt.Sprint("client ", round))
		for i, id := range ids {
			res, err := node.Resolve(t.Context(), request(counters, id))
			require.NoError(t, err)
			want := store.Owned
			if round == 0 {
				want = store.Placed
			}
			require.Equal(t, want, res.Outcome, "%d: %d", round, i)
		}
		d.Store = node
	}
}
