package redis

import (
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/storetest"
)

var _ store.Backend = New(nil)

// server and cluster are shared by all tests, each of which has a prefix of its
// own. Tests that freeze or restart a server start one.
var (
	server  *redistest.Server
	cluster *redistest.Cluster
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if server, err = redistest.Start(redistest.Options{}); err != nil {
		return fail(err)
	}
	defer server.Stop()
	if cluster, err = redistest.StartCluster(); err != nil {
		return fail(err)
	}
	defer cluster.Stop()
	// Most tests wait for leases to end and leave the processor to others.
	if err := flag.Set("test.parallel", "12"); err != nil {
		return fail(err)
	}
	servers := goleak.IgnoreCurrent()
	if code := m.Run(); code != 0 {
		return code
	}
	// A cluster client closes connections that it replaced five seconds later.
	closing := goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2")
	// And it waits a moment between two looks at how the cluster is laid out.
	looking := goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")
	if err := goleak.Find(servers, closing, looking); err != nil {
		return fail(err)
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func TestRedisIsAStore(t *testing.T) {
	t.Parallel()
	conform(t, server.Client(t))
}

func TestRedisClusterIsAStore(t *testing.T) {
	t.Parallel()
	conform(t, cluster.Client(t))
}

func conform(t *testing.T, client rueidis.Client) {
	t.Helper()
	storetest.Run(t, func(t *testing.T, check func(*testing.T, storetest.Fixture)) {
		check(t, storetest.Fixture{
			Backend:  New(client),
			LeaseTTL: 3 * time.Second,
			Advance:  advance,
			Until:    until,
		})
	})
}

// open opens a new directory on the shared server.
func open(t *testing.T, lease time.Duration) *directory {
	t.Helper()
	return openOn(server.Client(t), lease)
}

func openOn(client rueidis.Client, lease time.Duration) *directory {
	return openAs(client, "test-"+rand.Text(), lease)
}

func openAs(client rueidis.Client, prefix string, lease time.Duration) *directory {
	// Open returns nothing else
	return New(client).Open(store.Config{Prefix: prefix, LeaseTTL: lease, Shards: 1}).(*directory)
}

// advance waits for Redis' clock, which is this machine's.
func advance(_ *testing.T, d time.Duration) { <-time.After(d) }

func until(t *testing.T, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); <-time.After(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the condition never held")
	}
}
