package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var leaseRules = []rule{
	{"a row is placed elsewhere when its owner's lease is over, not before", placedElsewhereAfterLease},
	{"heartbeats keep a session alive", heartbeatsKeepAlive},
	{"nothing brings back a session that lapsed", lapsedIsDead},
	{"nothing brings back a session that was deregistered", deregisteredIsDead},
	{"a heartbeat that races a deregistration revives nothing", heartbeatRacesDeregister},
	{"a heartbeat that races a re-registration revives nothing", heartbeatRacesRegister},
	{"a stopped session ends with its lease and its rows move then", stoppedEndsWithLease},
	{"a node with a shorter lease shortens none", leaseNotShortened},
	{"a node with a longer lease lengthens it", leaseLengthened},
	{"a lapsed client may come back with its rows", lapsedComesBack},
	{"deregistering frees all rows at once and is no error twice", deregisterFrees},
	{"the store answers", ping},
}

// outlast returns when every lease and quarantine of Fixture.LeaseTTL that
// began before is over.
func (d *directory) outlast(t *testing.T) {
	t.Helper()
	d.Advance(t, d.LeaseTTL+d.LeaseTTL/10)
}

func placedElsewhereAfterLease(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	granted := time.Now()
	owner := joinThrough(t, d.lapsing, "a")
	placed := d.place(t, counters, "x", owner)
	other := d.join(t, "b")
	var moved store.Result
	d.Until(t, func() bool {
		moved = d.resolve(t, counters, "x")
		if moved.SessionID != owner {
			return true
		}
		require.Equal(t, store.Owned, moved.Outcome)
		require.Equal(t, placed.Epoch, moved.Epoch)
		require.Greater(t, moved.Left, time.Duration(0))
		require.LessOrEqual(t, moved.Left, f.LeaseTTL)
		return false
	})
	// However slow the machine is, the lease was granted after this clock was
	// read. A store may count in milliseconds.
	require.GreaterOrEqual(t, time.Since(granted), f.LeaseTTL-2*time.Millisecond)
	require.Equal(t, store.Placed, moved.Outcome)
	require.Equal(t, other, moved.SessionID)
	require.Greater(t, moved.Epoch, placed.Epoch)
}

func heartbeatsKeepAlive(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := joinThrough(t, d.lapsing, "a")
	placed := d.place(t, counters, "x", session)
	for range 9 {
		d.Advance(t, f.LeaseTTL/5)
		ans, err := d.lapsing.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
		require.NoError(t, err)
		require.Greater(t, ans.TTL, f.LeaseTTL/2)
		require.LessOrEqual(t, ans.TTL, f.LeaseTTL)
	}
	res := d.resolve(t, counters, "x")
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, placed.Epoch, res.Epoch)
}

func lapsedIsDead(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := joinThrough(t, d.lapsing, "a")
	d.place(t, counters, "x", session)
	d.outlast(t)
	d.ended(t, session)
	d.free(t, counters, "x")
	require.Empty(t, d.view(t).Candidates)
	require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, "x").Outcome)
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Empty(t, live)
	require.NoError(t, d.CheckRegister(t.Context(), registration("a", keyed("another"))))
}

func deregisteredIsDead(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	d.place(t, counters, "x", session)
	require.NoError(t, d.Deregister(t.Context(), session))
	d.ended(t, session)
	require.Empty(t, d.view(t).Candidates)
	require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, "x").Outcome)
}

// beating sends heartbeats of a session from several goroutines until it is
// told that the session has ended.
func (d *directory) beating(t *testing.T, sessionID string) (wait func()) {
	t.Helper()
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			for errs[i] == nil {
				_, errs[i] = d.lasting.Heartbeat(t.Context(), store.Beat{SessionID: sessionID, Headroom: ample})
			}
		})
	}
	return func() {
		t.Helper()
		all.Wait()
		for _, err := range errs {
			require.ErrorIs(t, err, store.ErrNoSession)
		}
	}
}

func heartbeatRacesDeregister(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	for range 10 {
		session := d.join(t, "a")
		d.place(t, counters, "x", session)
		wait := d.beating(t, session)
		require.NoError(t, d.Deregister(t.Context(), session))
		wait()
		d.ended(t, session)
		d.free(t, counters, "x")
		require.Empty(t, d.view(t).Candidates)
	}
}

func heartbeatRacesRegister(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	for range 10 {
		wait := d.beating(t, session)
		next := d.join(t, "a")
		wait()
		d.ended(t, session)
		view := d.view(t)
		require.Len(t, view.Candidates, 1)
		require.Equal(t, next, view.Candidates[0].SessionID)
		session = next
	}
}

func stoppedEndsWithLease(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	url := at("http://one.test")
	owner := joinThrough(t, d.lapsing, "a", url)
	placed := d.place(t, counters, "x", owner)
	successor := d.join(t, "b", url)
	var moved store.Result
	d.Until(t, func() bool {
		// What the worker tries meanwhile does not renew it.
		_, err := d.lasting.Heartbeat(t.Context(), store.Beat{SessionID: owner, Headroom: ample})
		require.ErrorIs(t, err, store.ErrNoSession)
		moved = d.resolve(t, counters, "x")
		if moved.SessionID != owner {
			return true
		}
		require.True(t, moved.Stopped)
		return false
	})
	require.Equal(t, store.Placed, moved.Outcome)
	require.Equal(t, successor, moved.SessionID)
	require.False(t, moved.Stopped)
	require.Greater(t, moved.Epoch, placed.Epoch)
	d.outlast(t)
	d.ended(t, owner)
}

func leaseNotShortened(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "a")
	d.place(t, counters, "x", session)
	ans, err := d.lapsing.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
	require.NoError(t, err)
	require.Greater(t, ans.TTL, time.Hour/2)
	d.outlast(t)
	require.Greater(t, d.session(t, session).TTL, time.Hour/2)
	res := d.resolve(t, counters, "x")
	require.Equal(t, store.Owned, res.Outcome)
	require.Greater(t, res.Left, time.Hour/2)
	require.Len(t, d.view(t).Candidates, 1)
	d.place(t, counters, "y", session)
}

func leaseLengthened(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := joinThrough(t, d.lapsing, "a")
	d.place(t, counters, "x", session)
	ans, err := d.lasting.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
	require.NoError(t, err)
	require.Greater(t, ans.TTL, time.Hour/2)
	d.outlast(t)
	require.Greater(t, d.session(t, session).TTL, time.Hour/2)
	require.Equal(t, store.Owned, d.resolve(t, counters, "x").Outcome)
	require.Len(t, d.view(t).Candidates, 1)
}

func lapsedComesBack(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := joinThrough(t, d.lapsing, "a")
	d.place(t, counters, "x", session)
	d.place(t, counters, "y", session)
	x := d.lookup(t, counters, "x")
	d.outlast(t)
	other := d.join(t, "b")
	require.Equal(t, other, d.resolve(t, counters, "y").SessionID)
	next, ans := d.register(t, "a", listing(counters, "x", "y"))
	require.Len(t, ans.Duplicates, 1)
	require.Equal(t, "y", ans.Duplicates[0].ID)
	row := d.lookup(t, counters, "x")
	require.Equal(t, next, row.SessionID)
	require.Equal(t, x.Epoch, row.Epoch)
}

func deregisterFrees(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ids := manyIDs(2000)
	session := d.join(t, "a", listing(counters, ids...))
	epoch := d.lookup(t, counters, ids[0]).Epoch
	other := d.join(t, "b")
	for range 2 {
		require.NoError(t, d.Deregister(t.Context(), session))
	}
	require.NoError(t, d.Deregister(t.Context(), "no such session"))
	d.free(t, counters, ids[1999])
	res := d.resolve(t, counters, ids[0])
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, other, res.SessionID)
	require.Greater(t, res.Epoch, epoch)
}

func ping(t *testing.T, f Fixture) {
	require.NoError(t, empty(f).Ping(t.Context()))
}
