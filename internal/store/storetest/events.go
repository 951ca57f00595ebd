package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var eventRules = []rule{
	{"events come newest first, page by page", eventsByPages},
	{"events can be followed from any of them on", eventsFollowed},
	{"events of ids do not push out those of workers", eventsCapped},
	{"the events of one id are found", eventsOfID},
	{"a session that lapses is told of once, one that ends otherwise never", eventOfLapse},
	{"a row tells why it is there", rowsTellWhy},
	{"a placement tells whose the id was", placementsTellFormer},
	{"the beginning of a quarantine is told once", quarantineBegins},
	{"rows are counted by session and namespace", rowsCounted},
	{"rows are counted over shards", rowsCountedOverShards},
	{"rows are filtered by owner and prefix", rowsFiltered},
}

func numbered(n int) store.Event {
	return store.Event{Kind: store.EventRegistered, Namespaces: []string{counters}, ClientID: fmt.Sprint("w", n)}
}

func moved(id string, n int) store.Event {
	return store.Event{Kind: store.EventFailover, Namespaces: []string{counters}, InstanceID: id, ClientID: fmt.Sprint("w", n)}
}

func (d *directory) record(t *testing.T, events ...store.Event) {
	t.Helper()
	require.NoError(t, d.Record(t.Context(), events))
}

// events reads all that q asks for.
func (d *directory) events(t *testing.T, q store.EventQuery) (all []store.Event) {
	t.Helper()
	for range 10_000 {
		some, next, err := d.Events(t.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(some), max(1, q.Limit))
		all = append(all, some...)
		if next == 0 || q.Forward && next == q.From {
			return all
		}
		q.From = next
	}
	require.Fail(t, "the events do not end")
	return nil
}

func clientsOf(events []store.Event) (clients []string) {
	for _, e := range events {
		clients = append(clients, e.ClientID)
	}
	return clients
}

func eventsByPages(t *testing.T, f Fixture) {
	d := empty(f)
	require.Empty(t, d.events(t, store.EventQuery{Limit: 10}))
	deadline := int64(1500)
	whole := store.Event{
		Kind: store.EventRefused, Namespaces: []string{counters}, Hostname: "h.example", InstanceID: "x", Epoch: 1<<53 - 1,
		ClientID: "a", SessionID: "s", FromClientID: "b", FromSessionID: "r", By: "c", DeadlineMs: &deadline, Detail: "é \"", Skipped: 3,
	}
	d.record(t, numbered(0), moved("x", 1), numbered(2), moved("x", 3), whole)
	for _, limit := range []int{1, 2, 5, 250} {
		all := d.events(t, store.EventQuery{Limit: limit})
		require.Equal(t, []string{"a", "w3", "w2", "w1", "w0"}, clientsOf(all), limit)
		require.WithinRange(t, all[0].At(), all[4].At(), all[4].At().Add(f.LeaseTTL))
		whole.ID = all[0].ID
		require.Equal(t, whole, all[0])
		for i := range 4 {
			require.Greater(t, all[i].ID, all[i+1].ID)
		}
	}
}

func eventsFollowed(t *testing.T, f Fixture) {
	d := empty(f)
	_, next, err := d.Events(t.Context(), store.EventQuery{Forward: true, Limit: 10})
	require.NoError(t, err)
	require.Zero(t, next)
	for i := range 9 {
		if i%3 == 0 {
			d.record(t, moved("x", i))
		} else {
			d.record(t, numbered(i))
		}
	}
	all := d.events(t, store.EventQuery{Limit: 9})
	for i, e := range all {
		after := d.events(t, store.EventQuery{Forward: true, From: e.ID, Limit: 2})
		require.Len(t, after, i)
		for j := range after {
			require.Equal(t, all[i-1-j], after[j])
		}
	}
	require.Equal(t, "w0", d.events(t, store.EventQuery{Forward: true, Limit: 2})[0].ClientID)
	for _, q := range []store.EventQuery{{From: all[0].ID}, {From: all[0].ID, Binding: counters, ID: "x"}} {
		q.Forward, q.Limit = true, 10
		none, next, err := d.Events(t.Context(), q)
		require.NoError(t, err)
		require.Empty(t, none)
		require.Equal(t, all[0].ID, next, "it goes on from where it was")
	}
}

func eventsCapped(t *testing.T, f Fixture) {
	d := empty(f)
	d.record(t, numbered(0))
	var many []store.Event
	for i := range store.KeptEvents * 2 {
		many = append(many, moved("x", i))
	}
	d.record(t, many...)
	all := d.events(t, store.EventQuery{Limit: 250})
	require.Greater(t, len(all), store.KeptEvents)
	require.LessOrEqual(t, len(all), store.KeptEvents+store.MaxEvents+1)
	require.Equal(t, "w0", all[len(all)-1].ClientID)
	require.Equal(t, fmt.Sprint("w", 2*store.KeptEvents-1), all[0].ClientID)
	one, _, err := d.Events(t.Context(), store.EventQuery{Limit: 1 << 20})
	require.NoError(t, err)
	require.Len(t, one, store.MaxEvents)
}

func eventsOfID(t *testing.T, f Fixture) {
	d := empty(f)
	other := moved("x", 2)
	other.Hostname = "h.example"
	d.record(t, moved("x", 0), moved("y", 1), other, moved("x", 3), numbered(4))
	for _, limit := range []int{1, 250} {
		require.Equal(t, []string{"w3", "w0"}, clientsOf(d.events(t, store.EventQuery{Limit: limit, Binding: counters, ID: "x"})))
		require.Equal(t, []string{"w2"}, clientsOf(d.events(t, store.EventQuery{Limit: limit, Binding: "h.example" + counters, ID: "x"})))
		require.Empty(t, d.events(t, store.EventQuery{Limit: limit, Binding: counters, ID: "z"}))
	}
}

func eventOfLapse(t *testing.T, f Fixture) {
	d := empty(f)
	gone := joinThrough(t, d.lapsing, "gone", serving("/a", "/b"), under("h.example"))
	left := joinThrough(t, d.lapsing, "left")
	require.NoError(t, d.Deregister(t.Context(), left))
	joinThrough(t, d.lapsing, "again")
	d.join(t, "again")
	d.Advance(t, f.LeaseTTL)
	var told []store.Event
	d.Until(t, func() bool {
		_, _, err := d.Sweep(t.Context())
		require.NoError(t, err)
		told = d.events(t, store.EventQuery{Limit: 10})
		return len(told) > 0
	})
	_, err := d.Live(t.Context())
	require.NoError(t, err)
	told = d.events(t, store.EventQuery{Limit: 10})
	require.Len(t, told, 1)
	require.Equal(t, store.Event{
		ID: told[0].ID, Kind: store.EventLapsed, Namespaces: []string{"/a", "/b"}, Hostname: "h.example", ClientID: "gone", SessionID: gone,
	}, told[0])
}

func rowsTellWhy(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	a := d.join(t, "a", listing(counters, "listed"))
	placed := func(id, preferred string, by store.Choice, refused *store.Refused) store.Why {
		req := request(counters, id)
		req.Preferred, req.PreferredBy, req.BalanceFactor, req.Refused = preferred, by, 1e300, refused
		res := d.ask(t, req)
		require.Equal(t, store.Placed, res.Outcome)
		row := d.lookup(t, counters, id)
		require.Equal(t, res.Why, row.Why)
		require.Equal(t, res.Epoch, row.Epoch)
		rows, _, err := d.Rows(t.Context(), counters, "", 10, store.RowFilter{Prefix: id})
		require.NoError(t, err)
		require.Equal(t, []store.Row{row}, rows)
		return res.Why
	}
	require.Equal(t, store.Why{Cause: store.Reclaimed}, d.lookup(t, counters, "listed").Why)
	require.Equal(t, store.Why{Cause: store.New, Choice: store.ByTwoChoices}, placed("two", "", "", nil))
	require.Equal(t, store.Why{Cause: store.New, Choice: store.ByTwoChoices}, placed("gone", "no such session", store.ByCaller, nil))
	require.Equal(t, store.Why{Cause: store.New, Choice: store.ByCaller}, placed("caller", a, store.ByCaller, nil))
	require.Equal(t, store.Why{Cause: store.New, Choice: store.ByAffinity}, placed("affinity", a, store.ByAffinity, nil))
	b := d.join(t, "b")
	refusing := func(id string) *store.Refused {
		return &store.Refused{SessionID: a, ClientID: "a", Epoch: d.lookup(t, counters, id).Epoch}
	}
	require.Equal(t, store.Why{Cause: store.AfterRefusal, Choice: store.ByAffinity}, placed("affinity", b, store.ByAffinity, refusing("affinity")))
	require.Equal(t, store.Why{Cause: store.AfterRefusal, Choice: store.ByTwoChoices}, placed("two", "", "", refusing("two")))
	require.Equal(t, store.Why{Cause: store.AfterRefusal, Choice: store.ByCaller}, placed("gone", b, store.ByCaller, refusing("gone")))
	require.NoError(t, d.Deregister(t.Context(), a))
	require.Equal(t, store.Why{Cause: store.Failover, Choice: store.ByCaller}, placed("caller", b, store.ByCaller, nil))
	require.Equal(t, store.Why{Cause: store.Failover, Choice: store.ByTwoChoices}, placed("listed", "", "", nil))
	before := d.lookup(t, counters, "caller")
	// The same worker again: the row is as it was, and says the same.
	again := d.join(t, "b", listing(counters, "caller"))
	before.SessionID = again
	require.Equal(t, before, d.lookup(t, counters, "caller"))
	n := d.ask(t, request(counters, "caller"))
	require.Equal(t, store.Owned, n.Outcome)
	require.Equal(t, before.Epoch, n.Epoch)
}

func placementsTellFormer(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	a := d.join(t, "a")
	require.Empty(t, d.place(t, counters, "x", a).Former)
	require.NoError(t, d.Deregister(t.Context(), a))
	b := d.join(t, "b")
	res := d.place(t, counters, "x", b)
	require.Equal(t, a, res.Former)
	d.join(t, "c")
	req := request(counters, "x")
	req.Refused = &store.Refused{SessionID: b, ClientID: "b", Epoch: res.Epoch}
	require.Equal(t, b, d.ask(t, req).Former)
}

func quarantineBegins(t *testing.T, f Fixture) {
	d := empty(f)
	joinThrough(t, d.lasting, "a")
	ask := func() store.Result {
		res, err := d.lasting.Resolve(t.Context(), request(counters, "x"))
		require.NoError(t, err)
		require.Equal(t, store.Quarantined, res.Outcome)
		return res
	}
	require.True(t, ask().Begun)
	require.False(t, ask().Begun)
}

func (d *directory) counts(t *testing.T, sessions ...string) [][]int {
	t.Helper()
	var asked []store.Session
	for _, id := range sessions {
		asked = append(asked, d.session(t, id))
	}
	counts, err := d.Counts(t.Context(), asked)
	require.NoError(t, err)
	return counts
}

func rowsCounted(t *testing.T, f Fixture) {
	d := ready(t, f, "/a", "/b")
	one := d.join(t, "one", serving("/a", "/b"), listing("/a", "k", "l", "m"))
	two := d.join(t, "two", serving("/a"))
	x := d.place(t, "/a", "x", one)
	d.place(t, "/b", "x", one)
	y := d.place(t, "/a", "y", two)
	require.Equal(t, [][]int{{4, 1}, {1}}, d.counts(t, one, two))
	d.beat(t, one)
	require.Equal(t, [][]int{{1}, {4, 1}}, d.counts(t, two, one))
	require.True(t, d.release(t, "/a", "x", x))
	require.Equal(t, [][]int{{3, 1}}, d.counts(t, one))
	req := request("/a", "y")
	req.Refused = &store.Refused{SessionID: two, ClientID: "two", Epoch: y.Epoch}
	require.Equal(t, one, d.ask(t, req).SessionID)
	require.Equal(t, [][]int{{4, 1}, {0}}, d.counts(t, one, two))
	dead := d.session(t, one)
	again := d.join(t, "one", serving("/a", "/b"), listing("/a", "k", "y"))
	require.Equal(t, [][]int{{2, 0}}, d.counts(t, again))
	d.join(t, "three", serving("/b"), listing("/b", "x"))
	require.Equal(t, [][]int{{2, 0}, {0}}, d.counts(t, again, two))
	counts, err := d.Counts(t.Context(), []store.Session{dead})
	require.NoError(t, err)
	require.Equal(t, [][]int{{0, 0}}, counts)
}

func rowsCountedOverShards(t *testing.T, f Fixture) {
	d := emptyShards(f, 4)
	s := d.join(t, "a", listing(counters, manyIDs(40)...))
	require.Equal(t, [][]int{{40}}, d.counts(t, s))
}

func rowsFiltered(t *testing.T, f Fixture) {
	d := empty(f)
	d.register(t, "a", listing(counters, append(manyIDs(700), "prefix-a", "prefix", "xprefix", "Prefix-a")...))
	d.register(t, "b", listing(counters, "prefix-b", "other"))
	found := func(limit int, filters ...store.RowFilter) map[string]bool {
		ids := map[string]bool{}
		for cursor, pages := "", 0; ; pages++ {
			require.Less(t, pages, 100_000)
			rows, next, err := d.Rows(t.Context(), counters, cursor, limit, filters...)
			require.NoError(t, err)
			require.LessOrEqual(t, len(rows), limit)
			for _, r := range rows {
				require.False(t, ids[r.ID], r.ID)
				ids[r.ID] = true
			}
			if cursor = next; cursor == "" {
				return ids
			}
		}
	}
	for _, limit := range []int{1, 3, 1000} {
		require.Equal(t, map[string]bool{"prefix-a": true, "prefix": true, "prefix-b": true}, found(limit, store.RowFilter{Prefix: "prefix"}))
		require.Equal(t, map[string]bool{"prefix-b": true, "other": true}, found(limit, store.RowFilter{ClientID: "b"}))
		require.Equal(t, map[string]bool{"prefix-b": true}, found(limit, store.RowFilter{ClientID: "b", Prefix: "prefix"}))
		require.Equal(t, map[string]bool{"prefix-b": true}, found(limit, store.RowFilter{ClientID: "b"}, store.RowFilter{Prefix: "prefix"}))
		require.Empty(t, found(limit, store.RowFilter{Prefix: "prefix-c"}))
		require.Empty(t, found(limit, store.RowFilter{ClientID: "c"}))
	}
	require.Len(t, found(1000), 706)
}
