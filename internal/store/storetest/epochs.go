package storetest

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var epochRules = []rule{
	{"a higher worker epoch displaces every session below it", higherDisplaces},
	{"worker epochs are compared exactly", epochsExact},
	{"a displaced session is displaced in all its bindings", displacedWhole},
	{"a displaced session keeps its rows until it gives them up", displacedKeepsRows},
	{"a displaced session's rows move when its lease is over, not before", displacedLapses},
	{"a displaced session is told who did it, also after it has ended", displacedIsTold},
	{"a lower worker epoch is refused and changes nothing", lowerRefused},
	{"a lower worker epoch is admitted when the higher is gone", lowerAdmittedLater},
	{"epochs of different bindings are not compared", epochsPerBinding},
	{"heartbeats keep what a session has against a registration", heartbeatsKeepEpoch},
	{"workers of one epoch live side by side", sameEpoch},
	{"a client may raise its own epoch, and lower it", ownEpoch},
	{"hundreds of sessions are displaced at once", manyDisplaced},
	{"of simultaneous registrations the highest epoch stays", epochsRace},
	{"a heartbeat that races a displacement renews nothing", heartbeatRacesDisplacement},
}

// displaced requires that a heartbeat of the session is told who displaced it.
func (d *directory) displaced(t *testing.T, sessionID, by string, epoch int64) {
	t.Helper()
	_, err := d.lasting.Heartbeat(t.Context(), store.Beat{SessionID: sessionID, Headroom: ample})
	var superseded *store.Superseded
	require.ErrorAs(t, err, &superseded)
	require.Equal(t, store.Superseded{ClientID: by, Epoch: epoch}, *superseded)
	require.ErrorIs(t, err, store.ErrNoSession)
}

func higherDisplaces(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	old, older := d.join(t, "old", ofEpoch(2)), d.join(t, "older", ofEpoch(2))
	next, ans := d.register(t, "next", ofEpoch(3))
	require.ElementsMatch(t, []string{old, older}, ans.Displaced)
	require.Empty(t, d.view(t).Candidates, "the new one is not active, the old ones are gone at once")
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "x").Outcome)
	for _, session := range []string{old, older} {
		d.displaced(t, session, "next", 3)
		require.True(t, d.session(t, session).Stopped)
		require.NoError(t, d.Activate(t.Context(), session), "it has not ended")
		require.NoError(t, d.SetDegraded(t.Context(), session, false))
	}
	require.NoError(t, d.Activate(t.Context(), next))
	view := d.view(t)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, next, view.Candidates[0].SessionID)
	d.beat(t, next)

	// Displacing is done once: others of the new epoch have nothing to do.
	_, ans = d.register(t, "another", ofEpoch(3))
	require.Empty(t, ans.Displaced)
	// The one above both displaces what was displaced no second time.
	_, ans = d.register(t, "last", ofEpoch(math.MaxInt64))
	require.Len(t, ans.Displaced, 2)
	require.Contains(t, ans.Displaced, next)
	d.displaced(t, old, "next", 3)
	d.displaced(t, next, "last", math.MaxInt64)
}

func epochsExact(t *testing.T, f Fixture) {
	d := empty(f)
	// As texts some of these sort another way, and as floats some are equal.
	epochs := []int64{0, 9, 10, 99, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64}
	session := ""
	for i, epoch := range epochs {
		next, ans := d.register(t, fmt.Sprintf("client-%d", i), ofEpoch(epoch))
		if i > 0 {
			require.Equal(t, []string{session}, ans.Displaced)
			d.displaced(t, session, fmt.Sprintf("client-%d", i), epoch)
			err := d.CheckRegister(t.Context(), registration("lower", ofEpoch(epochs[i-1])))
			require.ErrorIs(t, err, store.ErrLowerEpoch)
			require.ErrorContains(t, err, fmt.Sprintf("epoch %d, above %d", epoch, epochs[i-1]))
		}
		session = next
	}
}

func displacedWhole(t *testing.T, f Fixture) {
	d := ready(t, f, counters, "/others")
	old := d.join(t, "old", serving(counters, "/others"))
	bystander := d.join(t, "bystander", serving("/others"))
	placed := d.place(t, "/others", "x", old)
	d.join(t, "next", ofEpoch(1))
	d.displaced(t, old, "next", 1)
	view, err := d.Candidates(t.Context(), "/others", "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, bystander, view.Candidates[0].SessionID)
	res := d.resolve(t, "/others", "x")
	require.True(t, res.Stopped)
	require.Equal(t, placed.Epoch, res.Epoch)
	d.beat(t, bystander)
}

func displacedKeepsRows(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	old := d.join(t, "old")
	x, y := d.place(t, counters, "x", old), d.place(t, counters, "y", old)
	next, ans := d.register(t, "next", ofEpoch(1), listing(counters, "x"))
	require.Len(t, ans.Duplicates, 1)
	require.NoError(t, d.Activate(t.Context(), next))
	res := d.resolve(t, counters, "x")
	require.Equal(t, store.Owned, res.Outcome)
	require.Equal(t, old, res.SessionID)
	require.True(t, res.Stopped)
	d.displaced(t, old, "next", 1)
	require.True(t, d.release(t, counters, "x", x))
	moved := d.resolve(t, counters, "x")
	require.Equal(t, store.Placed, moved.Outcome)
	require.Equal(t, next, moved.SessionID)
	require.Greater(t, moved.Epoch, x.Epoch)
	require.Equal(t, y.Epoch, d.lookup(t, counters, "y").Epoch)
	require.NoError(t, d.Deregister(t.Context(), old))
	require.Equal(t, next, d.resolve(t, counters, "y").SessionID)
}

func displacedLapses(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	granted := time.Now()
	old := joinThrough(t, d.lapsing, "old")
	placed := d.place(t, counters, "x", old)
	next := d.join(t, "next", ofEpoch(1))
	var moved store.Result
	d.Until(t, func() bool {
		d.displaced(t, old, "next", 1)
		moved = d.resolve(t, counters, "x")
		return moved.SessionID != old
	})
	require.GreaterOrEqual(t, time.Since(granted), f.LeaseTTL-2*time.Millisecond)
	require.Equal(t, next, moved.SessionID)
	require.Greater(t, moved.Epoch, placed.Epoch)
}

func displacedIsTold(t *testing.T, f Fixture) {
	d := empty(f)
	lapses := joinThrough(t, d.lapsing, "lapses")
	leaves := d.join(t, "leaves")
	before := d.join(t, "before")
	require.NoError(t, d.Deregister(t.Context(), before))
	next := d.join(t, "next", ofEpoch(7))
	require.NoError(t, d.Deregister(t.Context(), leaves))
	require.NoError(t, d.Deregister(t.Context(), next))
	d.outlast(t)
	for _, session := range []string{lapses, leaves} {
		d.displaced(t, session, "next", 7)
		d.ended(t, session)
		var superseded *store.Superseded
		_, err := d.Session(t.Context(), session)
		require.ErrorAs(t, err, &superseded)
	}
	d.ended(t, before)
	for _, session := range []string{before, next, "unknown"} {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: session})
		var superseded *store.Superseded
		require.NotErrorAs(t, err, &superseded, "it had ended before, or was not displaced")
	}
}

func lowerRefused(t *testing.T, f Fixture) {
	d := ready(t, f, counters, "/others")
	ctx := t.Context()
	high := d.join(t, "high", ofEpoch(5))
	own := d.join(t, "low", serving("/others"), ofEpoch(4))
	placed := d.place(t, "/others", "x", own)
	below := d.join(t, "below", serving("/below"), ofEpoch(1))
	low := registration("low", serving(counters, "/others", "/below"), ofEpoch(4), listing(counters, "y"),
		at("http://high.test:8000"))
	require.ErrorIs(t, d.CheckRegister(ctx, low), store.ErrLowerEpoch)
	_, err := d.lasting.Register(ctx, low)
	require.ErrorIs(t, err, store.ErrLowerEpoch)
	require.ErrorContains(t, err, counters)
	require.ErrorContains(t, err, "5")
	d.ended(t, low.SessionID)
	for _, session := range []string{high, own, below} {
		d.beat(t, session)
		require.False(t, d.session(t, session).Stopped)
	}
	require.Equal(t, placed.Epoch, d.lookup(t, "/others", "x").Epoch)
	d.free(t, counters, "y")
	require.NoError(t, d.CheckRegister(ctx, registration("low", serving("/others", "/below"), ofEpoch(4))))
	require.NoError(t, d.CheckRegister(ctx, registration("low", ofEpoch(5))))
	d.beat(t, below)
	require.ErrorIs(t, d.CheckRegister(ctx, registration("zero")), store.ErrLowerEpoch)
}

func lowerAdmittedLater(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	low := registration("low", ofEpoch(1))
	old := joinThrough(t, d.lapsing, "old", ofEpoch(2))
	high := d.join(t, "high", ofEpoch(5))
	d.displaced(t, old, "high", 5)
	require.NoError(t, d.Deregister(t.Context(), high))
	// The displaced one is live until its lease is over, and above this one.
	require.ErrorIs(t, d.CheckRegister(t.Context(), low), store.ErrLowerEpoch)
	d.Until(t, func() bool {
		_, err := d.lasting.Register(t.Context(), low)
		if err != nil {
			require.ErrorIs(t, err, store.ErrLowerEpoch)
		}
		return err == nil
	})
	d.displaced(t, old, "high", 5)
	d.beat(t, low.SessionID)
	require.Equal(t, low.SessionID, d.resolve(t, counters, "x").SessionID)
}

func epochsPerBinding(t *testing.T, f Fixture) {
	d := empty(f)
	plain := d.join(t, "plain", ofEpoch(3))
	bound := d.join(t, "bound", under(host), ofEpoch(1))
	other := d.join(t, "other", under("other.example"))
	elsewhere := d.join(t, "elsewhere", serving("/others"))
	for _, session := range []string{plain, bound, other, elsewhere} {
		d.beat(t, session)
		require.False(t, d.session(t, session).Stopped)
	}
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("late", under(host))), store.ErrLowerEpoch)
	d.join(t, "next", under(host), ofEpoch(2))
	d.displaced(t, bound, "next", 2)
	d.beat(t, plain)
}

func heartbeatsKeepEpoch(t *testing.T, f Fixture) {
	d := empty(f)
	session := joinThrough(t, d.lapsing, "a", under(host), ofEpoch(2))
	for range 8 {
		d.Advance(t, f.LeaseTTL/5)
		_, err := d.lapsing.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: ample})
		require.NoError(t, err)
	}
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("b", under(host), ofEpoch(1))), store.ErrLowerEpoch)
	require.ErrorIs(t, d.CheckRegister(t.Context(), registration("b", ofEnv("blue"), ofEpoch(2))), store.ErrOtherEnv)
	_, ans := d.register(t, "b", under(host), ofEpoch(3))
	require.Equal(t, []string{session}, ans.Displaced)
}

func sameEpoch(t *testing.T, f Fixture) {
	d := empty(f)
	a, b := d.join(t, "a", ofEpoch(3)), d.join(t, "b", ofEpoch(3))
	a2 := d.join(t, "a", ofEpoch(3))
	d.ended(t, a)
	d.beat(t, a2)
	d.beat(t, b)
	require.Len(t, d.view(t).Candidates, 2)
}

func ownEpoch(t *testing.T, f Fixture) {
	d := empty(f)
	first, _ := d.register(t, "a", ofEpoch(3), listing(counters, "x"))
	placed := d.lookup(t, counters, "x").Epoch
	second, ans := d.register(t, "a", ofEpoch(4), listing(counters, "x"))
	require.Empty(t, ans.Displaced)
	d.ended(t, first)
	_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: first})
	var superseded *store.Superseded
	require.NotErrorAs(t, err, &superseded, "a former session is replaced, not displaced")
	third, _ := d.register(t, "a", listing(counters, "x"))
	d.ended(t, second)
	d.beat(t, third)
	require.Equal(t, placed, d.lookup(t, counters, "x").Epoch)
	d.join(t, "b", ofEpoch(1))
	d.displaced(t, third, "b", 1)
}

func manyDisplaced(t *testing.T, f Fixture) {
	d := empty(f)
	const old = 250
	var sessions []string
	for i := range old {
		sessions = append(sessions, d.join(t, fmt.Sprintf("client-%03d", i), serving(counters, "/others")))
	}
	_, ans := d.register(t, "next", ofEpoch(1), serving("/others"))
	require.ElementsMatch(t, sessions, ans.Displaced)
	require.Empty(t, d.view(t).Candidates)
	for _, session := range sessions {
		d.displaced(t, session, "next", 1)
	}
}

func epochsRace(t *testing.T, f Fixture) {
	const clients = 12
	d := ready(t, f, counters)
	sessions := make([]string, clients)
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			r := registration(fmt.Sprintf("client-%d", i), ofEpoch(int64(i)))
			sessions[i] = r.SessionID
			if _, errs[i] = d.lasting.Register(t.Context(), r); errs[i] == nil {
				errs[i] = d.Activate(t.Context(), r.SessionID)
			}
		})
	}
	all.Wait()
	require.NoError(t, errs[clients-1])
	d.beat(t, sessions[clients-1])
	for i := range clients - 1 {
		if errs[i] != nil {
			require.ErrorIs(t, errs[i], store.ErrLowerEpoch)
			d.ended(t, sessions[i])
			continue
		}
		var superseded *store.Superseded
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: sessions[i]})
		require.ErrorAs(t, err, &superseded)
		require.Greater(t, superseded.Epoch, int64(i))
	}
	view := d.view(t)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, sessions[clients-1], view.Candidates[0].SessionID)
}

func heartbeatRacesDisplacement(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	session := d.join(t, "client-0")
	for i := range 10 {
		wait := d.beating(t, session)
		next := d.join(t, fmt.Sprintf("client-%d", i+1), ofEpoch(int64(i+1)))
		wait()
		d.displaced(t, session, fmt.Sprintf("client-%d", i+1), int64(i+1))
		view := d.view(t)
		require.Len(t, view.Candidates, 1)
		require.Equal(t, next, view.Candidates[0].SessionID)
		session = next
	}
}
