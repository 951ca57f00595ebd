//go:build unix

package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

// A cluster's client leaves a goroutine behind that sleeps for some seconds.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

func set(t *testing.T, client rueidis.Client, key, value string) {
	t.Helper()
	require.NoError(t, client.Do(t.Context(), client.B().Set().Key(key).Value(value).Build()).Error())
}

func exists(t *testing.T, client rueidis.Client, key string) bool {
	t.Helper()
	var n int64
	// The first answers after a restart may come from a connection that died
	// with the old process.
	require.Eventually(t, func() (ok bool) {
		var err error
		n, err = client.Do(t.Context(), client.B().Exists().Key(key).Build()).AsInt64()
		return err == nil
	}, 10*time.Second, 5*time.Millisecond)
	return n == 1
}

func TestServerKeepsNothingOverARestart(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	client := server.Client(t)
	set(t, client, "a", "1")
	require.True(t, exists(t, client, "a"))
	server.Restart(t)
	require.False(t, exists(t, client, "a"))
}

func TestServerWithAOFKeepsEverything(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{AOF: true, TCP: true})
	client := redistest.NewClient(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	set(t, client, "a", "1")
	server.Restart(t)
	require.True(t, exists(t, client, "a"), "at the same address")
}

func TestServerKeepsTheConfigurationThatItRewrote(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{Config: "maxclients 77\n"})
	client := server.Client(t)
	ask := func(words ...string) string {
		answer, err := client.Do(t.Context(), client.B().Arbitrary(words...).Build()).ToMessage()
		require.NoError(t, err)
		return answer.String()
	}
	require.Contains(t, ask("CONFIG", "GET", "maxclients"), "77")
	ask("CONFIG", "SET", "maxclients", "88")
	ask("CONFIG", "REWRITE")
	server.Restart(t)
	require.False(t, exists(t, client, "a")) // it answers
	require.Contains(t, ask("CONFIG", "GET", "maxclients"), "88")
}

func TestFrozenServerAnswersAfterTheThaw(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	client := server.Client(t)
	set(t, client, "a", "1")
	server.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := client.Do(ctx, client.B().Get().Key("a").Build()).Error()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	server.Thaw()
	require.True(t, exists(t, client, "a"))
}

func TestClusterSpreadsKeysOverItsNodes(t *testing.T) {
	t.Parallel()
	cluster := redistest.NewCluster(t)
	client := cluster.Client(t)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		set(t, client, key, "1")
	}
	for _, node := range cluster.Nodes {
		one := node.Client(t)
		n, err := one.Do(t.Context(), one.B().Dbsize().Build()).AsInt64()
		require.NoError(t, err)
		require.Positive(t, n)
		require.Less(t, n, int64(8))
	}
}

func TestStoppingTwiceDoesNothing(t *testing.T) {
	t.Parallel()
	server, err := redistest.Start(redistest.Options{})
	require.NoError(t, err)
	server.Stop()
	server.Stop()
}
