package redis

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

func TestEveryScriptTellsItsKeysAndAnswer(t *testing.T) {
	t.Parallel()
	files, err := sources.ReadDir("lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".lua")
		source, err := sources.ReadFile("lua/" + file.Name())
		require.NoError(t, err)
		header, _, ok := strings.Cut(string(source), "\n\n")
		require.True(t, ok, name)
		require.Regexp(t, "^-- ", header)
		if strings.HasPrefix(name, "lib") {
			continue
		}
		require.Regexp(t, regexp.MustCompile(`(?m)^-- KEYS  \S`), header, name)
		require.Regexp(t, regexp.MustCompile(`(?m)^-- Answer: \S`), header, name)
		require.Equal(t, strings.Contains(string(source), "ARGV"), strings.Contains(header, "\n-- ARGV  "), name)
	}
}

// bucketOf gives raw access to one bucket, whose records tests write as they
// need them.
type bucketOf struct {
	*directory
	bucketKeys
}

func openBucket(t *testing.T) bucketOf {
	t.Helper()
	d := open(t, time.Hour)
	return bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
}

// do runs one command and returns its answer as text; "" for nil.
func (d *directory) do1(t *testing.T, args ...string) string {
	t.Helper()
	m, err := d.client.Do(t.Context(), d.client.B().Arbitrary(args[0]).Keys(args[1]).Args(args[2:]...).Build()).ToMessage()
	if rueidis.IsRedisNil(err) {
		return ""
	}
	require.NoError(t, err)
	if n, err := m.AsInt64(); err == nil {
		return strconv.FormatInt(n, 10)
	}
	s, err := m.ToString()
	require.NoError(t, err)
	return s
}

// calling runs a script, which must not fail, and returns its answer.
func (d *directory) calling(t *testing.T, c call) *answer {
	t.Helper()
	a := d.run(t.Context(), c)
	require.NoError(t, a.err)
	return a
}

func (b bucketOf) join(t *testing.T, sid, client string, generation int) int64 {
	t.Helper()
	return b.calling(t, joinScript.with(
		[]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.session(sid)},
		string(b.bucketKeys), sid, client, generation, 7, 60_000, 10.0, 0, b.layout,
	)).int()
}

func (b bucketOf) apply(t *testing.T, s state) int64 {
	t.Helper()
	return b.calling(t, s.call(b.bucketKeys)).int()
}

func (b bucketOf) retire(t *testing.T, sid, client string, generation int) int64 {
	t.Helper()
	return b.calling(t, retireScript.with(
		[]string{b.meta(), b.sessions(), b.candidates(), b.clients()}, string(b.bucketKeys), sid, client, generation,
	)).int()
}

// reclaim returns the script's first number, and which ids others have.
func (b bucketOf) reclaim(t *testing.T, sid, client, kin string, ids ...string) []int64 {
	t.Helper()
	args := []any{string(b.bucketKeys), sid, client, 7, kin}
	for _, id := range ids {
		args = append(args, id, b.keys.leaf(id))
	}
	a := b.calling(t, reclaimScript.with([]string{b.meta(), b.session(sid)}, args...))
	numbers := []int64{a.int()}
	for a.more() {
		if n, epoch := a.int(), a.int(); epoch == 0 {
			numbers = append(numbers, n)
		}
	}
	require.NoError(t, a.err)
	return numbers
}

func (b bucketOf) owner(t *testing.T, id string) string {
	t.Helper()
	_, sid, _ := strings.Cut(b.do1(t, "HGET", b.rows(b.keys.leaf(id)), id), " ")
	return sid
}

func TestJoinKeepsEarlierGenerationsOut(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	require.Equal(t, int64(1), b.join(t, "s2", "c", 2))
	require.Equal(t, int64(0), b.join(t, "s1", "c", 1))
	require.Equal(t, "0", b.do1(t, "EXISTS", b.session("s1")))
	require.Equal(t, int64(1), b.join(t, "s2", "c", 2), "run twice")
	require.Equal(t, int64(1), b.join(t, "s1", "another", 1))

	// Where a later one has only been to end the earlier ones, too.
	require.Equal(t, int64(1), b.retire(t, "s4", "c", 4))
	require.Equal(t, "0", b.do1(t, "EXISTS", b.session("s2")))
	require.Equal(t, int64(0), b.join(t, "s3", "c", 3))
	require.Equal(t, int64(0), b.retire(t, "s3", "c", 3))
}

func TestJoinDoesNotBringASessionBack(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	require.Equal(t, int64(1), b.join(t, "s", "c", 1))
	b.do1(t, "DEL", b.session("s"))
	require.Equal(t, int64(0), b.join(t, "s", "c", 1))
	require.Equal(t, "0", b.do1(t, "EXISTS", b.session("s")))
}

func TestEarlierSessionsKeepTheirRowsUntilRetired(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s1", "c", 1)
	b.apply(t, state{sid: "s1", version: 5, takes: true})
	require.Equal(t, []int64{0}, b.reclaim(t, "s1", "c", "s1", "x", "y"))
	b.join(t, "s2", "c", 2)
	require.Equal(t, "", b.do1(t, "ZSCORE", b.candidates(), "s1"))
	b.apply(t, state{sid: "s1", version: 1e12, takes: true})
	require.Equal(t, "", b.do1(t, "ZSCORE", b.candidates(), "s1"), "a late state")
	require.Equal(t, []int64{-1}, b.reclaim(t, "s1", "c", "s1", "z"), "a late reclaim")
	require.Equal(t, "s1", b.owner(t, "x"))

	require.Equal(t, []int64{0}, b.reclaim(t, "s2", "c", "s2", "x"), "known by its record as of the same client")
	require.Equal(t, "s2", b.owner(t, "x"))
	require.Equal(t, "1", b.do1(t, "EXISTS", b.session("s1")))
	require.Equal(t, int64(1), b.retire(t, "s2", "c", 2))
	require.Equal(t, "0", b.do1(t, "EXISTS", b.session("s1")))
	require.Equal(t, "1", b.do1(t, "HGET", b.meta(), "dirty"), "it left y")
}

func TestASessionWhoseRowsWereAllReclaimedLeavesNothingToSweep(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s1", "c", 1)
	b.reclaim(t, "s1", "c", "s1", "x", "y")
	b.join(t, "s2", "c", 2)
	b.reclaim(t, "s2", "c", "s2", "x", "y")
	b.retire(t, "s2", "c", 2)
	require.Equal(t, "", b.do1(t, "HGET", b.meta(), "dirty"))
}

func TestALiveSessionOfAnotherSecretKeepsItsRows(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s1", "c", 1)
	b.reclaim(t, "s1", "c", "s1", "x")
	b.do1(t, "HSET", b.session("s1"), "lineage", "6")
	b.join(t, "s2", "c", 2)
	require.Equal(t, []int64{0, 0}, b.reclaim(t, "s2", "c", "s2", "x"))
	require.Equal(t, "s1", b.owner(t, "x"))
}

func TestRetireEndsAllEarlierSessions(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	for i := 1; i <= 5; i++ {
		require.Equal(t, int64(1), b.join(t, fmt.Sprint("s", i), "c", i))
	}
	b.join(t, "other", "d", 1)
	require.Equal(t, int64(1), b.retire(t, "s5", "c", 5))
	for i := 1; i <= 4; i++ {
		require.Equal(t, "0", b.do1(t, "EXISTS", b.session(fmt.Sprint("s", i))))
	}
	require.Equal(t, "2", b.do1(t, "ZCARD", b.sessions()))
	require.Equal(t, "", b.do1(t, "HGET", b.meta(), "dirty"), "none had rows")
}

func TestApplyIgnoresAnOldStateButRenews(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s", "c", 1)
	b.apply(t, state{sid: "s", version: 10, takes: true})
	version := b.do1(t, "HGET", b.meta(), "version")
	b.apply(t, state{sid: "s", version: 12})
	require.Equal(t, "", b.do1(t, "ZSCORE", b.candidates(), "s"))
	require.NotEqual(t, version, b.do1(t, "HGET", b.meta(), "version"))

	b.do1(t, "PEXPIRE", b.session("s"), "1000")
	late := state{sid: "s", version: 11, takes: true, renew: 50_000, headroom: 3}
	require.Equal(t, int64(50_000), b.apply(t, late))
	require.Equal(t, "", b.do1(t, "ZSCORE", b.candidates(), "s"), "a late heartbeat undoes no drain")
	require.Equal(t, "10", b.do1(t, "HGET", b.session("s"), "headroom"))

	late.renew = 20_000
	require.Greater(t, b.apply(t, late), int64(40_000), "never shortens a lease")
	late.version = 13
	b.apply(t, late)
	require.Equal(t, "3", b.do1(t, "ZSCORE", b.candidates(), "s"))
}

func TestApplyRenewsNoStoppedSession(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	b.join(t, "s", "c", 1)
	require.Positive(t, b.apply(t, state{sid: "s", version: 5, stopped: true}))
	b.do1(t, "PEXPIRE", b.session("s"), "1000")
	for _, version := range []int64{4, 6} {
		require.Equal(t, int64(-1), b.apply(t, state{sid: "s", version: version, takes: true, renew: 50_000}))
	}
	ms, err := strconv.Atoi(b.do1(t, "PTTL", b.session("s")))
	require.NoError(t, err)
	require.LessOrEqual(t, ms, 1000)
}

func TestApplyCreatesNothing(t *testing.T) {
	t.Parallel()
	b := openBucket(t)
	require.Equal(t, int64(-1), b.apply(t, state{sid: "s", version: 5, takes: true, renew: 50_000}))
	for _, key := range keysOf(b.bucketKeys, "s") {
		require.Equal(t, "0", b.do1(t, "EXISTS", key), key)
	}
}
