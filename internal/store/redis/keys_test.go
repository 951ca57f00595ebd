package redis

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// slot is the slot of a key as Redis' cluster specification defines it.
func slot(key string) uint16 {
	if _, tail, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(tail, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

func TestSlotIsRedisOwn(t *testing.T) {
	t.Parallel()
	client := cluster.Client(t)
	for _, key := range []string{"a", "p:{fleet}:s:x", "{a}b", "a{}b", "p:{%2Fa%7Bb%7Dc.0}:r:1"} {
		got, err := client.Do(t.Context(), client.B().ClusterKeyslot().Key(key).Build()).AsInt64()
		require.NoError(t, err)
		require.Equal(t, int64(slot(key)), got, key)
	}
}

var oddTexts = []string{
	"", "a", "b", "/a", "/b", "/a{b}c", "/a}b", "/{}", "{", "}", "}{", "/a:0", "a.0", "a.1", "0", "fleet", "{fleet}", "/fleet",
	"/ü", "/\xff", "%2F", "/%2F", "s:a", "a:s:a", ":", " ", "\n", strings.Repeat("x", 300),
}

func keysOf(b bucketKeys, names ...string) []string {
	all := []string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves(), b.hosts(), b.none(), b.rows(0), b.rows(1), b.rows(leavesPerNamespace - 1)}
	for _, name := range names {
		all = append(all, b.session(name))
	}
	return all
}

func fleetKeysOf(f fleetKeys, names ...string) []string {
	all := []string{f.live(), f.namespaces(), f.sweep(), f.floor(), f.layout(), f.events(), f.moves(), f.ping(), f.none()}
	for _, name := range names {
		all = append(all, f.session(name), f.client(name), f.messages(name), f.superseded(name), f.url(urlDigest(name)),
			string(f)+"g:"+escape(name), string(f)+"m:"+escape(name)+":0.", string(f)+"m:"+escape(name)+":x0.")
	}
	return all
}

func TestKeysOfOneScriptShareASlot(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"pinboard", "a:b", ":", "ü"} {
		k := keys{prefix: prefix, shards: 3}
		fleet := fleetKeysOf(k.fleet(), oddTexts...)
		for _, key := range fleet {
			require.Equal(t, slot(fleet[0]), slot(key), key)
		}
		for _, ns := range oddTexts {
			for _, bucket := range k.buckets([]string{ns}) {
				all := keysOf(bucket, oddTexts...)
				for _, key := range all {
					require.Equal(t, slot(all[0]), slot(key), key)
				}
			}
		}
	}
}

func TestNoTwoThingsShareAKey(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	note := func(keys []string, what string) {
		for i, key := range keys {
			what := fmt.Sprintf("%s, key %d", what, i)
			require.Empty(t, seen[key], "%q: %s", key, what)
			seen[key] = what
		}
	}
	for _, prefix := range []string{"a", "a:", "a:b", "a:s:a", ":a", "b"} {
		k := keys{prefix: prefix, shards: 12}
		note(fleetKeysOf(k.fleet(), oddTexts...), "fleet of "+prefix)
		for _, ns := range oddTexts {
			for shard, bucket := range k.buckets([]string{ns}) {
				note(keysOf(bucket, oddTexts...), fmt.Sprintf("%s, %q, %d", prefix, ns, shard))
			}
		}
	}
}

func FuzzEscapedTextsDifferAndHaveNoBraces(f *testing.F) {
	for _, text := range oddTexts {
		f.Add(text, "%"+text)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if (escape(a) == escape(b)) != (a == b) {
			t.Fatalf("%q and %q", a, b)
		}
		if strings.ContainsAny(escape(a), "{}.:") {
			t.Fatalf("%q", escape(a))
		}
	})
}

func TestShardsSpreadOverSlots(t *testing.T) {
	t.Parallel()
	slots := map[uint16]bool{}
	for _, bucket := range (keys{prefix: "p", shards: 64}).buckets([]string{"/counters"}) {
		slots[slot(bucket.meta())] = true
	}
	require.Greater(t, len(slots), 50)
}

// Leaves must be filled evenly whatever the number of shards is: both are taken
// from one hash value.
func TestRowsSpreadEvenlyOverLeaves(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2)) // cases, not secrets
	for _, shards := range []int{1, 3, 16, 1000} {
		k := keys{prefix: "p", shards: shards}
		leaves := k.leaves()
		const perLeaf = 24
		counts := make([]int, leaves)
		for n := 0; n < perLeaf*leaves; {
			id := fmt.Sprintf("thread-%d", rng.Uint64())
			// Any shard would do; this is the one that needs fewest tries.
			if shards <= 16 && store.Shard(id, shards) != 0 {
				continue
			}
			leaf := k.leaf(id)
			require.Less(t, leaf, leaves)
			counts[leaf]++
			n++
		}
		for leaf, n := range counts {
			require.Greater(t, n, perLeaf/8, "shards %d, leaf %d", shards, leaf)
			require.Less(t, n, perLeaf*5/2, "shards %d, leaf %d", shards, leaf)
		}
	}
}

func FuzzCursorsAreTheStoresOwnOrRefused(f *testing.F) {
	for _, cursor := range []string{"", "0.0.", "3.16383.a.b", "0.-1", "-1.0.x", "0.0.a/b", "+0.0.", "4.0.", "99999999999999999999.0."} {
		f.Add(cursor)
	}
	d := &directory{keys: keys{prefix: "p", shards: 4}}
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := d.position(cursor)
		switch {
		case err != nil:
			require.ErrorIs(t, err, store.ErrBadCursor)
		case p != position{}:
			again, err := d.position(p.cursor())
			require.NoError(t, err)
			require.Equal(t, p, again)
			require.Less(t, p.leaf, d.keys.leaves())
			require.Less(t, p.shard, 4)
		}
	})
}
