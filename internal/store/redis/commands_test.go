package redis

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// maxCommands bounds the commands that one script runs: each is about half a
// microsecond of Redis' time.
const maxCommands = 600

// openCounted opens a directory in a server of its own, whose commands can be
// counted.
func openCounted(t *testing.T) *directory {
	t.Helper()
	return openOn(redistest.New(t, redistest.Options{}).Client(t), time.Hour)
}

// counted returns how many scripts something runs, and how many commands they
// run altogether.
func (d *directory) counted(t *testing.T, do func()) (scripts, commands int) {
	t.Helper()
	require.NoError(t, d.client.Do(t.Context(), d.client.B().ConfigResetstat().Build()).Error())
	do()
	text, err := d.client.Do(t.Context(), d.client.B().Info().Section("commandstats").Build()).ToString()
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || strings.HasPrefix(name, "config") {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(calls)
		require.NoError(t, err)
		switch name {
		case "evalsha":
			scripts += n
		case "eval": // comes after an evalsha that failed
		case "pexpire": // depends on the time since the last one
		case "ping": // a client that has been idle for a second
		default:
			commands += n
		}
	}
	return scripts, commands
}

func someIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("thread-%06d", i)
	}
	return ids
}

// Whatever a call is about, no single script does more than some part of it, so
// that Redis answers others in between.
func TestNoScriptDoesMuchWorkAtOnce(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	d := openCounted(t)
	r := registration("a")
	r.Namespaces = []string{"/counters", "/others"}
	ids := someIDs(rows / 2)
	r.Instances = map[string][]string{"/counters": ids, "/others": ids}
	release := make([]wire.Release, len(ids))
	for i, id := range ids {
		release[i] = wire.Release{SessionID: r.SessionID, Namespace: "/counters", ID: id}
	}
	// In a server without anything else, the average of many like scripts says
	// what one of them does.
	bounded := func(what string, atLeast int, do func()) {
		t.Helper()
		scripts, commands := d.counted(t, do)
		require.GreaterOrEqual(t, scripts, atLeast, what)
		require.LessOrEqual(t, commands, scripts*maxCommands, what)
		t.Logf("%s: %d scripts ran %d commands", what, scripts, commands)
	}
	bounded("register", rows/batch, func() {
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
	})
	bounded("register again", rows/batch, func() {
		next := r
		next.SessionID += "2"
		_, err := d.Register(t.Context(), next)
		require.NoError(t, err)
		for i := range release {
			release[i].SessionID = next.SessionID
		}
	})
	bounded("walk", len(ids)/maxWalk/2, func() {
		for cursor, more := "", true; more; more = cursor != "" {
			var err error
			_, cursor, err = d.Rows(t.Context(), "/others", cursor, 1000)
			require.NoError(t, err)
		}
	})
	bounded("release", len(ids)/batch, func() {
		n, err := d.Release(t.Context(), release)
		require.NoError(t, err)
		require.Equal(t, len(ids), n)
	})
	_, ended := d.counted(t, func() { require.NoError(t, d.Deregister(t.Context(), release[0].SessionID)) })
	require.Less(t, ended, 50, "however many rows")
	removed := 0
	scripts, commands := d.counted(t, func() {
		var err error
		removed, _, err = d.sweeping().sweep(t.Context(), d.keys.buckets([]string{"/others"}))
		require.NoError(t, err)
	})
	require.Equal(t, 1, scripts)
	require.LessOrEqual(t, commands, maxCommands)
	require.Positive(t, removed)
	bounded("sweep", len(ids)/sweepRows, func() {
		for more := true; more; {
			n, next, err := d.Sweep(t.Context())
			require.NoError(t, err)
			removed, more = removed+n, next
		}
		require.Equal(t, len(ids), removed)
	})
}

// The cost of a heartbeat, and that of a placement, is the same whoever else is
// there.
func TestWhatOthersHaveCostsNothing(t *testing.T) {
	t.Parallel()
	d := openCounted(t)
	d.do1(t, "HSET", d.keys.bucket("/counters", 0).meta(), "quarantine", "0")
	sid := d.joined(t, "a")
	d.joined(t, "b")
	beat := func() {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sid, Headroom: 1000})
		require.NoError(t, err)
	}
	placed := 0
	place := func() {
		placed++
		res, err := d.Resolve(t.Context(), store.Request{
			Namespace: "/counters", ID: fmt.Sprint("new-", placed), Preferred: sid, View: store.AnyView, BalanceFactor: 2,
		})
		require.NoError(t, err)
		require.Equal(t, store.Placed, res.Outcome)
	}
	beat()
	place()
	_, beatCost := d.counted(t, beat)
	_, placeCost := d.counted(t, place)
	t.Logf("a heartbeat runs %d commands, a placement %d", beatCost, placeCost)
	require.LessOrEqual(t, beatCost, 28)
	require.LessOrEqual(t, placeCost, 10)

	for i := range 200 {
		r := registration(fmt.Sprint("other-", i))
		r.Namespaces = []string{"/counters", fmt.Sprint("/other-", i)}
		r.Instances = map[string][]string{"/counters": someIDs(10 * (i + 1))[10*i:]}
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, d.Activate(t.Context(), r.SessionID))
	}
	_, now := d.counted(t, beat)
	require.Equal(t, beatCost, now)
	_, now = d.counted(t, place)
	require.LessOrEqual(t, now, placeCost)
}

// Ids that go together share all but what their rows take; and in the worst case, where
// nothing is as it mostly is, they are no more work than one script may be.
func TestIdsThatGoTogetherShareTheirCommands(t *testing.T) {
	t.Parallel()
	d := openCounted(t)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	for i, sid := range []string{"preferred", "one", "other"} {
		b.candidate(t, sid, []float64{1e6, 5e5, 5e5}[i])
	}
	place := func(kind, preferred string, factor float64) (commands int) {
		reqs := make([]store.Request, maxTogether)
		for i := range reqs {
			reqs[i] = store.Request{
				Namespace: "/counters", ID: fmt.Sprint(kind, i), Preferred: strings.ReplaceAll(preferred, "%d", strconv.Itoa(i)), View: store.AnyView, BalanceFactor: factor,
				Dice: store.Dice{uint32(i), uint32(i), uint32(i)},
			}
		}
		scripts, commands := d.counted(t, func() {
			for _, a := range b.resolving(t, time.Now().Add(time.Hour).UnixMicro(), reqs...) {
				require.Equal(t, int64(store.Placed), a.int())
			}
		})
		require.Equal(t, 1, scripts)
		t.Logf("%s: %d commands", kind, commands)
		return commands
	}
	place("first", "preferred", 2)
	// HGET and HSET of each row, and HLEN and SETBIT where it is the first of its hash.
	const each, shared = 4, 5
	require.LessOrEqual(t, place("alike", "preferred", 2), each*maxTogether+1+shared)

	// With as many workers there is one PTTL each.
	for i := range maxTogether {
		b.candidate(t, fmt.Sprint("own-", i), 1e6)
	}
	require.LessOrEqual(t, place("each its own", "own-%d", 2), (each+1)*maxTogether+shared)

	b.do1(t, "HSET", b.meta(), "quarantine", "1", "quarantined", "1")
	for i := range maxTogether {
		id := fmt.Sprint("worst", i)
		b.do1(t, "HSET", b.rows(d.keys.leaf(id)), id, "1a gone")
	}
	require.LessOrEqual(t, place("worst", "one", 1), maxCommands)
}
