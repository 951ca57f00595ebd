package store_test

import (
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// The shard is part of the stored layout: rows written by one version of the
// program must be found by the next.
func TestShardIsFNV1a(t *testing.T) {
	t.Parallel()
	for id, hash := range map[string]uint32{"a": 0xe40c292c, "foobar": 0xbf9cf968, "~.-_": 0x4ed1929d} {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(id))
		require.Equal(t, hash, sum.Sum32(), id)
		for _, n := range []int{1, 2, 7, 64, 1000} {
			require.Equal(t, int(hash%uint32(n)), store.Shard(id, n), "%s of %d", id, n) // small
		}
	}
}

func TestShardsAreFilledEvenly(t *testing.T) {
	t.Parallel()
	const ids, shards = 16_000, 8
	counts := make([]int, shards)
	for i := range ids {
		counts[store.Shard(fmt.Sprintf("chat-%d", i), shards)]++
	}
	for shard, n := range counts {
		require.InDelta(t, ids/shards, n, ids/shards/5, "shard %d", shard)
	}
}
