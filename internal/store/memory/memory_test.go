package memory_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/memory"
	"github.com/pinboard-go/pinboard/internal/store/storetest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ store.Backend = memory.New()

const lease = 15 * time.Second

func TestMemoryIsAStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T, check func(*testing.T, storetest.Fixture)) {
		synctest.Test(t, func(t *testing.T) {
			check(t, storetest.Fixture{
				Backend:  memory.New(),
				LeaseTTL: lease,
				Advance:  func(_ *testing.T, d time.Duration) { time.Sleep(d) },
				Until:    until,
			})
		})
	})
}

// until looks every 10 ms of virtual time, for an hour of it.
func until(t *testing.T, cond func() bool) {
	t.Helper()
	for range 360_000 {
		if cond() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.Fail(t, "the condition never held")
}

func open() store.Store {
	return memory.New().Open(store.Config{Prefix: "pinboard", LeaseTTL: lease, Shards: 1})
}

func register(t *testing.T, s store.Store, session, client string, ids ...string) {
	t.Helper()
	_, err := s.Register(t.Context(), store.Registration{
		SessionID: session, ClientID: client, Secret: wire.NewSecret("secret"), Namespaces: []string{"/counters"},
		AdvertiseURL: "http://" + client, Headroom: 1, Instances: map[string][]string{"/counters": ids},
	})
	require.NoError(t, err)
	require.NoError(t, s.Activate(t.Context(), session))
}

func request(id string) store.Request {
	return store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 2}
}

func TestLeaseAndQuarantineEndOnTheDot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open()
		outcome := func(want store.Outcome, session string, left time.Duration) {
			t.Helper()
			res, err := s.Resolve(t.Context(), request("x"))
			require.NoError(t, err)
			require.Equal(t, want, res.Outcome)
			require.Equal(t, session, res.SessionID)
			require.Equal(t, left, res.Left)
		}
		register(t, s, "s1", "a")
		outcome(store.Quarantined, "", lease)
		time.Sleep(lease - 1)
		outcome(store.Quarantined, "", 1)
		_, err := s.Heartbeat(t.Context(), store.Beat{SessionID: "s1"})
		require.NoError(t, err)
		time.Sleep(time.Nanosecond)
		outcome(store.Placed, "s1", lease-1)
		register(t, s, "s2", "b")
		time.Sleep(lease - 2)
		outcome(store.Owned, "s1", 1)
		time.Sleep(time.Nanosecond)
		outcome(store.Placed, "s2", 1)
	})
}

func TestClientIsForgottenADayAfterItsLastSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open()
		register(t, s, "s1", "a", "x")
		before, err := s.Lookup(t.Context(), "/counters", "x")
		require.NoError(t, err)
		_, err = s.Drain(t.Context(), "a", nil)
		require.NoError(t, err)
		// It lapses unnoticed: the day counts from the end of the lease.
		time.Sleep(lease + store.ClientMemory - 1)
		c, err := s.Client(t.Context(), "a")
		require.NoError(t, err)
		require.True(t, c.Drain.Draining)
		time.Sleep(time.Nanosecond)
		_, err = s.Client(t.Context(), "a")
		require.ErrorIs(t, err, store.ErrNoClient)
		states, err := s.States(t.Context(), []store.SessionKey{{SessionID: "s1", ClientID: "a"}})
		require.NoError(t, err)
		require.Equal(t, []store.SessionState{{Forgotten: true}}, states)

		// What comes now is a new client, not the heir of the old one.
		register(t, s, "s2", "a", "x")
		after, err := s.Lookup(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.Greater(t, after.Epoch, before.Epoch)
		c, err = s.Client(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "s2", c.SessionID)
		require.False(t, c.Drain.Draining)
	})
}

func TestSweepForgetsClientsThatAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open()
		sweep := func(want int) {
			t.Helper()
			removed, _, err := s.Sweep(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, removed)
		}
		register(t, s, "a1", "a")
		register(t, s, "b1", "b")
		require.NoError(t, s.Deregister(t.Context(), "a1"))
		require.NoError(t, s.Deregister(t.Context(), "b1"))
		time.Sleep(store.ClientMemory / 2)
		register(t, s, "a2", "a") // comes back, and leaves later
		require.NoError(t, s.Deregister(t.Context(), "a2"))
		sweep(0)
		time.Sleep(store.ClientMemory / 2)
		sweep(1)
		_, err := s.Client(t.Context(), "a")
		require.NoError(t, err)
		register(t, s, "b2", "b")
		time.Sleep(store.ClientMemory / 2)
		sweep(1) // a; b lapsed half a day ago
		sweep(0)
	})
}

func TestEndedContextDoesNothing(t *testing.T) {
	t.Parallel()
	s := open()
	register(t, s, "s1", "a", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Ping(ctx), context.Canceled)
	require.ErrorIs(t, s.Deregister(ctx, "s1"), context.Canceled)
	_, err := s.Resolve(ctx, request("x"))
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = s.Sweep(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
}

func TestWhatACallerChangesIsItsOwnCopy(t *testing.T) {
	t.Parallel()
	s := open()
	register(t, s, "s1", "a")
	record, err := s.Session(t.Context(), "s1")
	require.NoError(t, err)
	record.Namespaces[0] = "/changed"
	view, err := s.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	view.Candidates[0].Headroom = 99
	again, err := s.Session(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, []string{"/counters"}, again.Namespaces)
	view, err = s.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.InDelta(t, 1, view.Candidates[0].Headroom, 0)
}

func TestCursorIsOnlyWhatRowsReturned(t *testing.T) {
	t.Parallel()
	s := open()
	register(t, s, "s1", "a", "x", "y")
	_, next, err := s.Rows(t.Context(), "/counters", "", 1)
	require.NoError(t, err)
	_, _, err = s.Rows(t.Context(), "/counters", next, 1)
	require.NoError(t, err)
	for _, cursor := range []string{"0", "0.", ".0", "+0.0", "00.0", "0.01", "0.0.0", "0.0 ", "1.0"} {
		_, _, err = s.Rows(t.Context(), "/counters", cursor, 1)
		require.ErrorIs(t, err, store.ErrBadCursor, "%q", cursor)
	}
}

func TestFormerSessionsAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	s := open()
	const times = 3000
	session := func(i int) string { return fmt.Sprintf("s%d", i) }
	for i := range times {
		register(t, s, session(i), "a")
	}
	states, err := s.States(t.Context(), []store.SessionKey{
		{SessionID: session(0), ClientID: "a"},
		{SessionID: session(times - 400), ClientID: "a"},
		{SessionID: session(times - 2), ClientID: "a"},
	})
	require.NoError(t, err)
	newest := session(times - 1)
	require.Equal(t, []store.SessionState{{}, {Successor: newest}, {Successor: newest}}, states)
}
