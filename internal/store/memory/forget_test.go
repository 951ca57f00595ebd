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
