package worker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// handClock is moved by hand, each of its two clocks by itself.
type handClock struct{ at instant }

func (c *handClock) now() instant { return c.at }

func handLease() (*lease, *handClock) {
	c := &handClock{at: instant{mono: time.Hour, wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}}
	return newLease(c.now, &Options{LeaseBuffer: 5 * time.Second, Logger: zap.NewNop()}), c
}

func TestLeaseEndsWhenEitherClockSaysSo(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, tc := range map[string]struct {
		mono, wall time.Duration // moved since the lease of 15 s was granted
		want       leaseState
	}{
		"both clocks just started":                  {0, 0, leaseHealthy},
		"just before the buffer":                    {10*s - 1, 10*s - 1, leaseHealthy},
		"in the buffer":                             {10 * s, 10 * s, leaseUnhealthy},
		"just before the end":                       {15*s - 1, 15*s - 1, leaseUnhealthy},
		"at the end":                                {15 * s, 15 * s, leaseExpired},
		"suspended: only the wall clock moved":      {s, 3600 * s, leaseExpired},
		"suspended into the buffer":                 {s, 11 * s, leaseUnhealthy},
		"wall clock stepped back: monotonic counts": {15 * s, -3600 * s, leaseExpired},
		"wall clock stepped back, lease runs":       {5 * s, -3600 * s, leaseHealthy},
		"wall clock stepped forward: ends early":    {s, 20 * s, leaseExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c := handLease()
			defer l.end()
			l.renewed(c.at, 15*s)
			c.at.mono += tc.mono
			c.at.wall = c.at.wall.Add(tc.wall)
			require.Equal(t, tc.want, l.state())
		})
	}
}

func TestLeaseIsNothingBeforeTheFirstGrant(t *testing.T) {
	t.Parallel()
	l, _ := handLease()
	require.Equal(t, leaseExpired, l.state())
}

// A late answer to a registration grants what is left. Fences must outlive what
// a node of pinboard knows of a placement, which is up to a whole lease old.
func TestAShortGrantDoesNotShortenTheMemoryOfFences(t *testing.T) {
	t.Parallel()
	l, c := handLease()
	defer l.end()
	require.Zero(t, l.longestTTL())
	l.renewed(c.at, 15*time.Second)
	l.renewed(c.at, time.Second)
	require.Equal(t, 15*time.Second, l.longestTTL())
}

func TestLeaseLimitBindsLaterRenewalsOnly(t *testing.T) {
	t.Parallel()
	l, c := handLease()
	defer l.end()
	const s = time.Second
	l.renewed(c.at, 15*s)
	l.limit(c.at.mono + 8*s)
	c.at = c.at.add(9 * s)
	require.Equal(t, leaseHealthy, l.state(), "what was granted stays granted")
	l.renewed(c.at, 15*s)
	require.Equal(t, leaseExpired, l.state())
	l.unlimit()
	require.Equal(t, leaseExpired, l.state())
	l.renewed(c.at, 15*s)
	require.Equal(t, leaseHealthy, l.state())
}

// Each grant counts by itself, from when its own heartbeat was sent: the newest
// one binds, also where it is the shorter one.
func TestTheNewestGrantBinds(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type grant struct{ sent, answered, ttl time.Duration }
	for name, tc := range map[string]struct {
		grants []grant
		limit  time.Duration // of a drain, 0: none
		after  time.Duration // since the first was sent
		want   leaseState
	}{
		"renewed in time":              {grants: []grant{{0, 0, 15 * s}, {3 * s, 3 * s, 15 * s}}, after: 13*s - 1, want: leaseHealthy},
		"renewed behind the end":       {grants: []grant{{0, 0, 15 * s}, {20 * s, 20 * s, 15 * s}}, after: 20 * s, want: leaseHealthy},
		"renewed by less":              {grants: []grant{{0, 0, 15 * s}, {3 * s, 3 * s, 6 * s}}, after: 9 * s, want: leaseExpired},
		"the answer came at the end":   {grants: []grant{{0, 15 * s, 15 * s}}, after: 15 * s, want: leaseExpired},
		"the answer came just before":  {grants: []grant{{0, 15*s - 1, 15 * s}}, after: 15*s - 1, want: leaseUnhealthy},
		"a grant of nothing":           {grants: []grant{{0, 0, 15 * s}, {3 * s, 3 * s, 0}}, after: 3 * s, want: leaseExpired},
		"a grant that is over":         {grants: []grant{{0, 0, -s}}, after: 0, want: leaseExpired},
		"no longer than the buffer":    {grants: []grant{{0, 0, 5 * s}}, after: 0, want: leaseUnhealthy},
		"just longer than the buffer":  {grants: []grant{{0, 0, 5*s + 1}}, after: 0, want: leaseHealthy},
		"limited before it begins":     {grants: []grant{{0, 0, 15 * s}}, limit: 8 * s, after: 8 * s, want: leaseExpired},
		"limited, up to the limit":     {grants: []grant{{0, 0, 15 * s}}, limit: 8 * s, after: 8*s - 1, want: leaseUnhealthy},
		"limited behind its own end":   {grants: []grant{{0, 0, 15 * s}}, limit: 60 * s, after: 15 * s, want: leaseExpired},
		"limited, however often again": {grants: []grant{{0, 0, 15 * s}, {3 * s, 3 * s, 15 * s}, {6 * s, 6 * s, 15 * s}}, limit: 8 * s, after: 8 * s, want: leaseExpired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c := handLease()
			defer l.end()
			began := c.at
			if tc.limit > 0 {
				l.limit(began.mono + tc.limit)
			}
			for _, g := range tc.grants {
				c.at = began.add(g.answered)
				l.renewed(began.add(g.sent), g.ttl)
			}
			c.at = began.add(tc.after)
			require.Equal(t, tc.want, l.state())
		})
	}
}

func TestAForwardStepEndsACappedLeaseOnlyUntilTheNextRenewal(t *testing.T) {
	t.Parallel()
	l, c := handLease()
	defer l.end()
	l.limit(c.at.mono + time.Minute)
	l.renewed(c.at, 15*time.Second)
	c.at.wall = c.at.wall.Add(time.Hour)
	require.Equal(t, leaseExpired, l.state())
	l.renewed(c.at, 15*time.Second)
	require.Equal(t, leaseHealthy, l.state())
}

func TestLeaseCallbacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var events []string
		began := time.Now()
		note := func(what string) func() {
			return func() { events = append(events, time.Since(began).String()+" "+what) }
		}
		l := newLease(systemClock, &Options{
			LeaseBuffer: 5 * time.Second, Logger: zap.NewNop(),
			OnUnhealthy: note("unhealthy"), OnRestored: note("restored"),
		})
		defer l.end()
		sleep := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		l.renewed(systemClock(), 15*time.Second)
		sleep(9 * time.Second)
		l.renewed(systemClock(), 15*time.Second) // in time: says nothing
		sleep(30 * time.Second)
		l.renewed(systemClock(), 15*time.Second)
		sleep(time.Second)
		require.Equal(t, []string{"19s unhealthy", "39s restored"}, events)
		require.Equal(t, 1, l.flaps())

		// A grant that has no healthy time left restores nothing.
		sleep(20 * time.Second)
		l.renewed(systemClock(), 3*time.Second)
		sleep(time.Second)
		require.Equal(t, []string{"49s unhealthy"}, events[2:])
		require.Equal(t, 2, l.flaps())
	})
}

func TestAFlapDuringASuspendIsCountedAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	c := &handClock{at: instant{mono: time.Hour, wall: time.Unix(1e9, 0)}}
	var lost, restored int
	l := newLease(c.now, &Options{
		LeaseBuffer: 5 * time.Second, Logger: zap.NewNop(),
		OnUnhealthy: func() { lost++ }, OnRestored: func() { restored++ },
	})
	defer l.end()
	l.renewed(c.at, 15*time.Second)
	c.at.wall = c.at.wall.Add(time.Hour) // the timer's clock stood still
	l.renewed(c.at, 15*time.Second)
	require.Equal(t, []int{1, 1, 1}, []int{lost, restored, l.flaps()})
}

func TestAPanickingLeaseCallbackIsContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLease(systemClock, &Options{
			LeaseBuffer: 5 * time.Second, Logger: zap.NewNop(),
			OnUnhealthy: func() { panic("mine") }, OnRestored: func() { panic("mine") },
		})
		l.metrics = newMetrics(nil) // none of the worker's state is read
		defer l.end()
		l.renewed(systemClock(), 6*time.Second)
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, leaseUnhealthy, l.state())
		l.renewed(systemClock(), 15*time.Second)
		require.Equal(t, leaseHealthy, l.state())
	})
}

// The wall clock of a machine that was suspended runs ahead of the monotonic
// one. When it is then set back, nothing tells any more that the lease is over.
func TestALeaseThatWasSeenToBeOverStaysSo(t *testing.T) {
	t.Parallel()
	now := instant{wall: time.Unix(1e9, 0)}
	l := newLease(func() instant { return now }, &Options{LeaseBuffer: time.Second, Logger: zap.NewNop()})
	defer l.end()
	l.renewed(now, 15*time.Second)
	now.wall = now.wall.Add(time.Hour)
	require.Equal(t, leaseExpired, l.state())
	now.wall = now.wall.Add(-time.Hour)
	require.Equal(t, leaseExpired, l.state())
	require.True(t, l.look().Expired)
	l.renewed(now, 15*time.Second)
	require.Equal(t, leaseHealthy, l.state())
}

// A request reads the clocks some way before the lease is asked. Where the process, or
// its machine, stood still in between, others may have seen the end by then.
func TestAnOlderReadingDoesNotReviveALeaseThatWasSeenToBeOver(t *testing.T) {
	t.Parallel()
	const gone = 20 * time.Second
	for name, mono := range map[string]time.Duration{"stopped": gone, "suspended with its machine": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, c := handLease()
			defer l.end()
			l.renewed(c.at, 15*time.Second)
			read := c.at.add(time.Second)
			require.Equal(t, leaseHealthy, l.stateNow(read))
			c.at = instant{mono: read.mono + mono, wall: read.wall.Add(gone)}
			require.Equal(t, leaseExpired, l.state())
			require.Equal(t, leaseExpired, l.stateNow(read))
			l.renewed(c.at, 15*time.Second)
			require.Equal(t, leaseHealthy, l.stateNow(read))
		})
	}
}

func TestAnEndedLeaseServesAndCallsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLease(systemClock, &Options{
			LeaseBuffer: time.Second, Logger: zap.NewNop(),
			OnUnhealthy: func() { t.Error("called after the end") },
		})
		l.renewed(systemClock(), 15*time.Second)
		l.end()
		require.Equal(t, leaseExpired, l.state())
		l.renewed(systemClock(), 15*time.Second) // the answer crossed the end
		require.Equal(t, leaseExpired, l.state())
		<-time.After(time.Minute)
		l.end() // twice is fine
	})
}

func TestSystemClockReadsBothClocksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before := systemClock()
		<-time.After(42 * time.Second)
		after := systemClock()
		require.Equal(t, 42*time.Second, after.mono-before.mono)
		require.Equal(t, 42*time.Second, after.wall.Sub(before.wall))
		require.NotContains(t, after.wall.String(), "m=", "the wall clock has no monotonic reading")
	})
}
