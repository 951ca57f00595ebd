package redis

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/pinboard-go/pinboard/internal/store"
)

// keys makes all keys of one directory; what they hold is told in the package
// comment. What has to be in one slot of a Redis Cluster, because one script
// touches it, shares a hash tag.
type keys struct {
	prefix string
	shards int
}

// fleetKeys is where the fleet's keys begin. No bucket's tag is without a dot.
func (k keys) fleet() fleetKeys { return fleetKeys(k.prefix + ":{fleet}:") }

// bucket returns where the keys of one bucket begin.
func (k keys) bucket(binding string, shard int) bucketKeys {
	b := make([]byte, 0, 64)
	b = append(append(b, k.prefix...), ":{"...)
	b = append(appendEscaped(b, binding), '.')
	b = strconv.AppendInt(b, int64(shard), 10)
	return bucketKeys(append(b, "}:"...))
}

// of returns where the keys of an id's bucket begin.
func (k keys) of(binding, id string) bucketKeys {
	return k.bucket(binding, store.Shard(id, k.shards))
}

// buckets returns all buckets of some bindings.
func (k keys) buckets(bindings []string) []bucketKeys {
	all := make([]bucketKeys, 0, len(bindings)*k.shards)
	for _, binding := range bindings {
		for shard := range k.shards {
			all = append(all, k.bucket(binding, shard))
		}
	}
	return all
}

const (
	// leavesPerNamespace is into how many hashes the rows of a namespace are
	// spread: few enough to walk them, so many that ten million rows leave each
	// of them small. Redis packs small hashes (hash-max-listpack-entries), and
	// looks through the whole of a packed one for a field.
	leavesPerNamespace = 131072
	// minLeaves bounds how few a bucket has where there are many shards.
	minLeaves = 256
)

// leaves returns how many hashes the rows of one bucket are spread over. It is
// part of the stored layout.
func (k keys) leaves() int { return max(minLeaves, leavesPerNamespace/k.shards) }

// leaf returns in which of its bucket's hashes an id's row is. It is what the
// shard leaves of the same hash value, so that the two do not depend on each
// other.
func (k keys) leaf(id string) int { return store.Shard(id, k.shards*k.leaves()) / k.shards }

// fleetKeys makes the keys that all buckets have in common.
type fleetKeys string

func (b fleetKeys) session(sid string) string       { return string(b) + "s:" + sid }
func (b fleetKeys) client(clientID string) string   { return string(b) + "c:" + clientID }
func (b fleetKeys) messages(clientID string) string { return string(b) + "w:" + clientID }
func (b fleetKeys) url(digest string) string        { return string(b) + "u:" + digest }
func (b fleetKeys) superseded(sid string) string    { return string(b) + "x:" + sid }
func (b fleetKeys) live() string                    { return string(b) + "live" }
func (b fleetKeys) namespaces() string              { return string(b) + "namespaces" }
func (b fleetKeys) sweep() string                   { return string(b) + "sweep" }
func (b fleetKeys) floor() string                   { return string(b) + "floor" }
func (b fleetKeys) layout() string                  { return string(b) + "layout" }
func (b fleetKeys) events() string                  { return string(b) + "events" }
func (b fleetKeys) moves() string                   { return string(b) + "moves" }
func (b fleetKeys) ping() string                    { return string(b) + "ping" }
func (b fleetKeys) none() string                    { return string(b) }

// bucketKeys makes the keys of one bucket.
type bucketKeys string

func (b bucketKeys) session(sid string) string { return string(b) + "s:" + sid }
func (b bucketKeys) rows(leaf int) string      { return string(b) + "r:" + strconv.Itoa(leaf) }
func (b bucketKeys) meta() string              { return string(b) + "meta" }
func (b bucketKeys) sessions() string          { return string(b) + "sessions" }
func (b bucketKeys) candidates() string        { return string(b) + "candidates" }
func (b bucketKeys) clients() string           { return string(b) + "clients" }
func (b bucketKeys) leaves() string            { return string(b) + "leaves" }
func (b bucketKeys) generation() string        { return string(b) + "generation" }
func (b bucketKeys) hosts() string             { return string(b) + "hosts" }
func (b bucketKeys) none() string              { return string(b) }

// escape writes all but letters, digits, '_' and '-' as %XX, so that no text
// can end a hash tag or look like another one.
func escape(text string) string { return string(appendEscaped(nil, text)) }

func appendEscaped(b []byte, text string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
			b = append(b, c)
		default:
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

// urlDigest stands for an advertise URL in keys.
func urlDigest(url string) string {
	sum := sha256.Sum256([]byte(url))
	return hex.EncodeToString(sum[:16])
}
