package memory

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestBindingsThatNobodyServesAreForgottenAfterADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := New().Open(store.Config{Prefix: "p", LeaseTTL: time.Hour, Shards: 2}).(*node)
		ctx := t.Context()
		register := func(hostname string) {
			_, err := n.Register(ctx, store.Registration{
				SessionID: hostname + time.Now().String(), ClientID: hostname, Secret: wire.NewSecret(hostname), Hostname: hostname,
				Namespaces: []string{"/counters"}, AdvertiseURL: "http://" + hostname, Instances: map[string][]string{"/counters": {"x"}},
			})
			require.NoError(t, err)
		}
		sweep := func() {
			for range 100 {
				_, _, err := n.Sweep(ctx)
				require.NoError(t, err)
			}
		}
		for i := range 10 {
			register("h" + strconv.Itoa(i))
		}
		register("stays")
		for range 24 { // hours
			time.Sleep(time.Hour - time.Second)
			register("stays")
		}
		sweep()
		require.Len(t, n.buckets, 2*11)
		for range 2 {
			time.Sleep(time.Hour - time.Second)
			register("stays")
		}
		sweep()
		require.Len(t, n.buckets, 2, "but for the one that is served")
	})
}

// The clock of the machine may be behind the epochs that were given out: it was ahead
// when they were.
func TestEpochsRiseAlthoughTheirBindingWasForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := New().Open(store.Config{Prefix: "p", LeaseTTL: time.Hour, Shards: 2}).(*node)
		ctx, id := t.Context(), "x"
		at := place{binding: "/counters", shard: store.Shard(id, 2)}
		sessions := 0
		placed := func() int64 {
			sessions++
			session := strconv.Itoa(sessions)
			for range 2 { // the second time after the quarantine
				_, err := n.Register(ctx, store.Registration{
					SessionID: session, ClientID: session, Secret: wire.NewSecret(session), Namespaces: []string{"/counters"}, AdvertiseURL: "http://w",
				})
				require.NoError(t, err)
				require.NoError(t, n.Activate(ctx, session))
				res, err := n.Resolve(ctx, store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 1})
				require.NoError(t, err)
				if res.Outcome == store.Placed {
					require.NoError(t, n.Deregister(ctx, session))
					return res.Epoch
				}
				time.Sleep(n.cfg.LeaseTTL)
				session += "again"
			}
			t.Fatal("not placed")
			return 0
		}
		placed()
		n.buckets[at].lastEpoch = time.Now().Add(100 * store.ClientMemory).UnixMicro()
		before := placed()
		time.Sleep(store.ClientMemory)
		_, _, err := n.Sweep(ctx)
		require.NoError(t, err)
		require.Empty(t, n.buckets)
		require.Greater(t, placed(), before)
	})
}
