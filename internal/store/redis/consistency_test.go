package redis

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// fields reads a hash.
func (d *directory) fields(t *testing.T, key string) map[string]string {
	t.Helper()
	m, err := d.client.Do(t.Context(), d.client.B().Hgetall().Key(key).Build()).AsStrMap()
	require.NoError(t, err)
	return m
}

// taken returns how many placements a session got since it reported its headroom: those
// that its score tells, and those that its record counts.
func (b bucketOf) taken(t *testing.T, sid string) int {
	t.Helper()
	s := b.fields(t, b.session(sid))
	n := number(t, s["taken"])
	if score := b.do1(t, "ZSCORE", b.candidates(), sid); score != "" {
		left, err := strconv.ParseFloat(score, 64)
		require.NoError(t, err)
		headroom, err := strconv.ParseFloat(s["headroom"], 64)
		require.NoError(t, err)
		n += int(math.Ceil(headroom - left))
	}
	return n
}

// consistent checks what a bucket's keys say of each other.
func (b bucketOf) consistent(t *testing.T) {
	t.Helper()
	occupied := 0
	rows := map[string]int{}
	bitmap, err := b.client.Do(t.Context(), b.client.B().Get().Key(b.leaves()).Build()).ToString()
	if !rueidis.IsRedisNil(err) {
		require.NoError(t, err)
	}
	for leaf := range 8 * len(bitmap) {
		if bitmap[leaf/8]&(0x80>>(leaf%8)) == 0 {
			continue
		}
		occupied++
		all := b.fields(t, b.rows(leaf))
		require.NotEmpty(t, all, "leaf %d has no rows", leaf)
		for id, row := range all {
			require.Equal(t, leaf, b.keys.leaf(id))
			_, sid, _ := strings.Cut(row, " ")
			rows[sid]++
		}
	}
	for _, key := range b.scan(t) {
		if strings.HasPrefix(key, string(b.bucketKeys)+"r:") {
			occupied--
		}
		sid, ok := strings.CutPrefix(key, string(b.bucketKeys)+"s:")
		if !ok {
			continue
		}
		s := b.fields(t, key)
		taken := b.taken(t, sid)
		require.Equal(t, rows[sid], number(t, s["rows"])+taken, "%s of %s", sid, s["client"])
		require.NotEmpty(t, b.do1(t, "ZSCORE", b.sessions(), sid))
		score := b.do1(t, "ZSCORE", b.candidates(), sid)
		require.Equal(t, s["takes"] == "1", score != "")
		if score != "" {
			require.Equal(t, strconv.Itoa(max(0, number(t, s["headroom"])-taken)), score)
			if best := b.do1(t, "HGET", b.meta(), "best"); best != "" {
				require.GreaterOrEqual(t, number(t, best), number(t, score), "one has more than the best")
			}
		}
		delete(rows, sid)
	}
	require.Zero(t, occupied, "rows in leaves that are not marked")
	if len(rows) > 0 {
		require.NotEmpty(t, b.do1(t, "HGET", b.meta(), "dirty"), "dead rows that no sweep would find")
	}
}

func TestRowsLeavesAndCountsAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 5)) // cases, not secrets
			b := openBucket(t)
			b.do1(t, "HSET", b.meta(), "quarantine", "0")
			sessions := map[string]string{} // client: sid
			id := func() string { return fmt.Sprint("id-", rng.IntN(60)) }
			for i := range 400 {
				b.step(t, rng, sessions, id)
				if i%10 == 0 {
					b.consistent(t)
				}
			}
			b.consistent(t)
			for more := true; more; {
				var err error
				_, more, err = b.Sweep(t.Context())
				require.NoError(t, err)
			}
			b.consistent(t)
			for client, sid := range sessions {
				require.NoError(t, b.Deregister(t.Context(), sid), client)
			}
			for more := true; more; {
				var err error
				_, more, err = b.Sweep(t.Context())
				require.NoError(t, err)
			}
			b.consistent(t)
			require.Empty(t, b.do1(t, "HGET", b.meta(), "dirty"))
			for _, key := range b.scan(t) {
				require.NotContains(t, key, "}:r:", "a row is left")
			}
		})
	}
}

// step does something that changes rows or sessions.
func (b bucketOf) step(t *testing.T, rng *rand.Rand, sessions map[string]string, id func() string) {
	t.Helper()
	ctx := t.Context()
	client := fmt.Sprint("client-", rng.IntN(4))
	req := store.Request{
		Namespace: "/counters", ID: id(), Preferred: sessions[client], View: store.AnyView, BalanceFactor: 2,
		Dice: store.Dice{rng.Uint32() >> 1, rng.Uint32() >> 1, rng.Uint32() >> 1},
	}
	switch rng.IntN(10) {
	case 0:
		r := registration(client)
		for range rng.IntN(20) {
			r.Instances = map[string][]string{"/counters": append(r.Instances["/counters"], id())}
		}
		_, err := b.Register(ctx, r)
		require.NoError(t, err)
		require.NoError(t, b.Activate(ctx, r.SessionID))
		sessions[client] = r.SessionID
	case 1:
		require.NoError(t, b.Deregister(ctx, sessions[client]))
	case 2:
		_, _ = b.Heartbeat(ctx, store.Beat{SessionID: sessions[client], Headroom: float64(rng.IntN(30)), Draining: rng.IntN(3) == 0})
	case 3:
		_, _, err := b.Sweep(ctx)
		require.NoError(t, err)
	case 4, 5:
		if row, err := b.Lookup(ctx, "/counters", req.ID); err == nil {
			_, err := b.Release(ctx, []wire.Release{{SessionID: row.SessionID, Namespace: "/counters", ID: req.ID}})
			require.NoError(t, err)
		}
	case 6:
		if row, err := b.Lookup(ctx, "/counters", req.ID); err == nil {
			req.Refused = &store.Refused{SessionID: row.SessionID, ClientID: row.ClientID, Epoch: row.Epoch}
		}
		fallthrough
	default:
		_, err := b.Resolve(ctx, req)
		require.NoError(t, err)
	}
}

// A row with the number of every leaf around a byte's edge is found again.
func TestAllLeavesAreWalked(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s", "c", 1)
	leaves := []int{0, 1, 6, 7, 8, 9, 15, 16, 17, 1000, 1023, 65527, 65528, 65534, 65535}
	var ids []string
	for n := 0; len(ids) < len(leaves); n++ {
		id := fmt.Sprint("id-", n)
		if b.keys.leaf(id) == leaves[len(ids)] {
			ids = append(ids, id)
		}
	}
	require.Equal(t, []int64{0}, b.reclaim(t, "s", "c", "s", ids...))
	for _, limit := range []int{1, 2, 100} {
		var seen []string
		for cursor := ""; ; {
			rows, next, err := b.Rows(t.Context(), "/counters", cursor, limit)
			require.NoError(t, err)
			for _, row := range rows {
				seen = append(seen, row.ID)
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		require.Equal(t, ids, seen)
	}
	b.lapse(t, "s")
	b.do1(t, "ZADD", b.sessions(), strconv.FormatInt(time.Now().UnixMilli()-1, 10), "s")
	removed := 0
	for more := true; more; {
		n, next, err := b.sweeping().sweep(t.Context(), []bucketKeys{b.bucketKeys})
		require.NoError(t, err)
		removed, more = removed+n, next
	}
	require.Equal(t, len(ids), removed)
	b.consistent(t)
}

// While a pass is under way, sessions end that leave rows in leaves that it has
// been through.
func TestASessionThatEndsDuringAPassIsSweptByTheNext(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s1", "c1", 1)
	b.join(t, "s2", "c2", 1)
	var ones, twos []string
	for i := range 3 * sweepRows {
		if i%2 == 0 {
			ones = append(ones, fmt.Sprint("id-", i))
		} else {
			twos = append(twos, fmt.Sprint("id-", i))
		}
	}
	b.reclaim(t, "s1", "c1", "s1", ones...)
	b.reclaim(t, "s2", "c2", "s2", twos...)
	leave := func(sid string) {
		b.calling(t, leaveScript.with([]string{b.meta(), b.sessions(), b.candidates()}, string(b.bucketKeys), sid))
	}
	leave("s1")
	removed, more, err := b.sweeping().sweep(t.Context(), []bucketKeys{b.bucketKeys})
	require.NoError(t, err)
	require.True(t, more)
	require.Positive(t, removed)
	leave("s2")
	for more {
		var n int
		n, more, err = b.sweeping().sweep(t.Context(), []bucketKeys{b.bucketKeys})
		require.NoError(t, err)
		removed += n
	}
	require.Equal(t, 3*sweepRows, removed)
	b.consistent(t)
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}
