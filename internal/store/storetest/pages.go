package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var pageRules = []rule{
	{"a walk over thousands of rows sees each once", walkSeesAll},
	{"a walk sees what stays while other rows come and go", walkWhileRowsMove},
	{"rows of dead sessions are not shown", walkSkipsDead},
	{"rows of other namespaces are not shown", walkOneNamespace},
	{"a cursor that the store did not make is refused", walkBadCursor},
}

// walk returns all rows of a namespace, page by page.
func (d *directory) walk(t *testing.T, namespace string, limit int) []store.Row {
	t.Helper()
	var rows []store.Row
	d.eachPage(t, namespace, limit, func(page []store.Row) { rows = append(rows, page...) })
	return rows
}

func (d *directory) eachPage(t *testing.T, namespace string, limit int, visit func(page []store.Row)) {
	t.Helper()
	cursor := ""
	for range 100_000 {
		page, next, err := d.Rows(t.Context(), namespace, cursor, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), limit)
		visit(page)
		if next == "" {
			return
		}
		cursor = next
	}
	require.Fail(t, "the walk does not end")
}

func walkSeesAll(t *testing.T, f Fixture) {
	d := empty(f)
	const rows = 3000
	ids := manyIDs(rows)
	session, _ := d.register(t, "a", listing(counters, ids...))
	for _, limit := range []int{100, 7, 10_000} {
		seen := map[string]int{}
		for _, row := range d.walk(t, counters, limit) {
			require.Equal(t, counters, row.Namespace)
			require.Equal(t, session, row.SessionID)
			require.Equal(t, "a", row.ClientID)
			require.Positive(t, row.Epoch)
			require.False(t, row.PlacedAt.IsZero())
			seen[row.ID]++
		}
		require.Len(t, seen, rows)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	}
	row := d.walk(t, counters, rows)[0]
	require.Equal(t, d.lookup(t, counters, row.ID), row)
}

func walkWhileRowsMove(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	stays := manyIDs(500)
	d.register(t, "a", listing(counters, stays...))
	moves := d.join(t, "b")
	var moving []store.Result
	round := 0
	seen := map[string]bool{}
	d.eachPage(t, counters, 20, func(page []store.Row) {
		for _, row := range page {
			seen[row.ID] = true
		}
		for i, res := range moving {
			require.True(t, d.release(t, counters, fmt.Sprintf("moves-%d-%d", round, i), res))
		}
		moving, round = moving[:0], round+1
		for i := range 20 {
			moving = append(moving, d.place(t, counters, fmt.Sprintf("moves-%d-%d", round, i), moves))
		}
	})
	for _, id := range stays {
		require.True(t, seen[id], id)
	}
}

func walkSkipsDead(t *testing.T, f Fixture) {
	d := empty(f)
	dead, _ := d.register(t, "a", listing(counters, manyIDs(300)...))
	session, _ := d.register(t, "b", listing(counters, "x"))
	require.NoError(t, d.Deregister(t.Context(), dead))
	rows := d.walk(t, counters, 100)
	require.Len(t, rows, 1)
	require.Equal(t, session, rows[0].SessionID)
	require.NoError(t, d.Deregister(t.Context(), session))
	require.Empty(t, d.walk(t, counters, 100))
}

func walkOneNamespace(t *testing.T, f Fixture) {
	d := empty(f)
	d.register(t, "a", serving(counters, "/counters2"), listing(counters, "x"), listing("/counters2", "y"))
	rows := d.walk(t, counters, 100)
	require.Len(t, rows, 1)
	require.Equal(t, "x", rows[0].ID)
	require.Empty(t, d.walk(t, "/never-served", 100))
}

func walkBadCursor(t *testing.T, f Fixture) {
	d := empty(f)
	d.register(t, "a", listing(counters, "x"))
	for _, cursor := range []string{" ", "no such cursor", "-1", "0.-1", "\x00", "ü", "*", "99999999999999999999.0", "0,0,0,0,0"} {
		_, _, err := d.Rows(t.Context(), counters, cursor, 10)
		require.ErrorIs(t, err, store.ErrBadCursor, "%q", cursor)
	}
}
