package redis

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
)

// maxRowBytes is what a row may cost above the text of its id and of its key.
const maxRowBytes = 160

// TestCostOfManyRows puts 100,000 rows on one worker, bounds what they take of
// Redis' memory, and reports how long Redis was busy with one script at most.
func TestCostOfManyRows(t *testing.T) {
	t.Parallel()
	const rows = 100_000
	own := redistest.New(t, redistest.Options{Args: []string{
		"--slowlog-log-slower-than", "100", "--slowlog-max-len", "100000",
	}})
	d := openOn(own.Client(t), time.Hour)
	b := bucketOf{directory: d, bucketKeys: d.keys.bucket("/counters", 0)}
	b.do1(t, "HSET", b.meta(), "quarantine", "0")
	r := registration("a")
	r.Instances = map[string][]string{}
	text := 0
	for i := range rows {
		id := fmt.Sprintf("thread-%08d", i)
		r.Instances["/counters"] = append(r.Instances["/counters"], id)
		text += len(id)
	}
	before := d.info(t, "used_memory")
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	d.reportSlowest(t, "register")
	usage := d.memoryOfRows(t, b)
	t.Logf("a row: %.1f bytes by MEMORY USAGE, %.1f of used_memory, each without the id's %d",
		float64(usage-text)/rows, float64(d.info(t, "used_memory")-before-text)/rows, text/rows)
	require.LessOrEqual(t, usage-text, maxRowBytes*rows)

	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	for i := range 2000 {
		_, err := d.Resolve(t.Context(), store.Request{
			Namespace: "/counters", ID: fmt.Sprintf("thread-%08d", rows-1000+i), View: store.AnyView, BalanceFactor: 2,
		})
		require.NoError(t, err)
	}
	d.reportSlowest(t, "resolve")
	walked := 0
	for cursor := ""; ; {
		page, next, err := d.Rows(t.Context(), "/counters", cursor, 1000)
		require.NoError(t, err)
		walked += len(page)
		if cursor = next; cursor == "" {
			break
		}
	}
	require.Equal(t, rows+1000, walked)
	d.reportSlowest(t, "rows")

	for cursor, more := "", true; more; more = cursor != "" {
		page, next, err := d.Rows(t.Context(), "/counters", cursor, 1000, store.RowFilter{Prefix: "nothing"})
		require.NoError(t, err)
		require.Empty(t, page)
		cursor = next
	}
	d.reportSlowest(t, "rows that no filter passes")

	again := r
	again.SessionID += "2"
	_, err = d.Register(t.Context(), again)
	require.NoError(t, err)
	d.reportSlowest(t, "register again")
	require.NoError(t, d.Deregister(t.Context(), again.SessionID))
	d.reportSlowest(t, "deregister")
	removed, calls := 0, 0
	for more := true; more; calls++ {
		n, next, err := d.Sweep(t.Context())
		require.NoError(t, err)
		removed, more = removed+n, next
	}
	require.Equal(t, rows+1000, removed)
	t.Logf("swept in %d steps", calls)
	d.reportSlowest(t, "sweep")
}

// info returns a number of INFO's.
func (d *directory) info(t *testing.T, field string) int {
	t.Helper()
	text, err := d.client.Do(t.Context(), d.client.B().Info().Build()).ToString()
	require.NoError(t, err)
	_, tail, ok := strings.Cut(text, "\n"+field+":")
	require.True(t, ok, field)
	value, _, _ := strings.Cut(tail, "\r")
	n, err := strconv.Atoi(value)
	require.NoError(t, err)
	return n
}

// memoryOfRows sums what the rows and the bitmap of their leaves take, less the
// text of the keys.
func (d *directory) memoryOfRows(t *testing.T, b bucketOf) (usage int) {
	t.Helper()
	for _, key := range d.scan(t) {
		if strings.HasPrefix(key, string(b.bucketKeys)+"r:") || key == b.leaves() {
			n, err := d.client.Do(t.Context(), d.client.B().MemoryUsage().Key(key).Samples(0).Build()).AsInt64()
			require.NoError(t, err)
			usage += int(n) - len(key)
		}
	}
	return usage
}

// reportSlowest logs the script that took longest since the last report.
func (d *directory) reportSlowest(t *testing.T, phase string) {
	t.Helper()
	entries, err := d.client.Do(t.Context(), d.client.B().SlowlogGet().Count(-1).Build()).ToArray()
	require.NoError(t, err)
	var times []int64
	for _, entry := range entries {
		parts, err := entry.ToArray()
		require.NoError(t, err)
		command, err := parts[3].AsStrSlice()
		require.NoError(t, err)
		if !strings.HasPrefix(command[0], "EVAL") {
			continue
		}
		took, err := parts[2].AsInt64()
		require.NoError(t, err)
		times = append(times, took)
	}
	slices.Sort(times)
	if n := len(times); n > 0 {
		t.Logf("%s: %d scripts took 0.1 ms or more, half of those %.1f ms, the slowest %.1f ms",
			phase, n, float64(times[n/2])/1000, float64(times[n-1])/1000)
	}
	require.NoError(t, d.client.Do(t.Context(), d.client.B().SlowlogReset().Build()).Error())
}
