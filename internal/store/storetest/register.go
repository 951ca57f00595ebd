package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var registerRules = []rule{
	{"a session's record is what was registered", recordKept},
	{"a re-registration replaces the first session", reRegistration},
	{"a re-registration may drop and add namespaces", reRegistrationElsewhere},
	{"another secret is refused while the clientId lives, and changes nothing", otherSecret},
	{"another secret is refused in a race, too", otherSecretRaces},
	{"of simultaneous registrations of one client one survives", oneSurvivor},
	{"another client on the same advertise URL stops the one before", stoppedByURL},
	{"the end of a stopped session does not free the advertise URL", stoppedEnds},
	{"a client that moves to another advertise URL leaves the old one", movedURL},
	{"a stopped client that registers again is free of it", stoppedRegistersAgain},
}

func recordKept(t *testing.T, f Fixture) {
	d := empty(f)
	r := registration("a", serving("/others", counters), headroom(2.25))
	r.BackendHosts = []string{"*.test", "10.0.0.0/8"}
	r.BackendAddr = "10.1.2.3"
	r.Draining = true
	ans, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	require.Greater(t, ans.TTL, time.Hour/2)
	require.LessOrEqual(t, ans.TTL, time.Hour)
	require.Empty(t, ans.Duplicates)
	require.Zero(t, ans.Drain)

	s := d.session(t, r.SessionID)
	require.Equal(t, r.Secret.Reveal(), s.Secret.Reveal())
	require.Greater(t, s.TTL, time.Hour/2)
	require.LessOrEqual(t, s.TTL, time.Hour)
	require.False(t, s.RegisteredAt.IsZero())
	require.ElementsMatch(t, r.Namespaces, s.Namespaces)
	s.Secret, s.TTL, s.RegisteredAt, s.Namespaces = wire.Secret{}, 0, time.Time{}, nil
	require.Equal(t, store.Session{
		ID: r.SessionID, ClientID: "a", AdvertiseURL: r.AdvertiseURL, BackendHosts: r.BackendHosts,
		BackendAddr: r.BackendAddr, Headroom: 2.25, Draining: true,
	}, s)

	plain := d.join(t, "b")
	s = d.session(t, plain)
	require.Empty(t, s.BackendHosts)
	require.Empty(t, s.BackendAddr)
	require.False(t, s.Draining)
}

func reRegistration(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	former := d.join(t, "a")
	for _, id := range []string{"listed", "unlisted"} {
		d.place(t, counters, id, former)
	}
	r := registration("a", listing(counters, "listed"))
	_, err := d.lasting.Register(t.Context(), r)
	require.NoError(t, err)
	d.ended(t, former)
	d.free(t, counters, "unlisted")
	require.Equal(t, r.SessionID, d.lookup(t, counters, "listed").SessionID)
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "unlisted").Outcome, "the new one is not active yet")

	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	res := d.resolve(t, counters, "unlisted")
	require.Equal(t, store.Placed, res.Outcome)
	require.Equal(t, r.SessionID, res.SessionID)
	require.NoError(t, d.Deregister(t.Context(), former), "of no consequence")
	require.Equal(t, r.SessionID, d.lookup(t, counters, "listed").SessionID)
}

func reRegistrationElsewhere(t *testing.T, f Fixture) {
	d := ready(t, f, "/dropped", "/kept", "/new")
	former := d.join(t, "a", serving("/dropped", "/kept"))
	d.place(t, "/dropped", "x", former)
	d.place(t, "/kept", "x", former)
	session := d.join(t, "a", serving("/kept", "/new"), listing("/kept", "x"))
	require.Equal(t, store.UnknownNamespace, d.resolve(t, "/dropped", "x").Outcome)
	d.free(t, "/dropped", "x")
	require.Equal(t, session, d.resolve(t, "/kept", "x").SessionID)
	require.Equal(t, session, d.resolve(t, "/new", "x").SessionID)
	require.ElementsMatch(t, []string{"/kept", "/new"}, d.session(t, session).Namespaces)
	other := d.join(t, "b", serving("/dropped"))
	require.Equal(t, other, d.resolve(t, "/dropped", "x").SessionID)
}

func otherSecret(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ctx := t.Context()
	incumbent := d.join(t, "a")
	neighbour := d.join(t, "b")
	placed := d.place(t, counters, "x", incumbent)
	thief := registration("a", keyed("another"), at("http://b.test:8000"), listing(counters, "x", "y"))
	require.ErrorIs(t, d.CheckRegister(ctx, thief), store.ErrOtherSecret)
	_, err := d.lasting.Register(ctx, thief)
	require.ErrorIs(t, err, store.ErrOtherSecret)

	d.ended(t, thief.SessionID)
	require.Equal(t, placed.Epoch, d.lookup(t, counters, "x").Epoch)
	require.Equal(t, incumbent, d.lookup(t, counters, "x").SessionID)
	d.free(t, counters, "y")
	d.beat(t, incumbent)
	d.beat(t, neighbour)
	require.False(t, d.session(t, neighbour).Stopped)

	require.NoError(t, d.CheckRegister(ctx, registration("a")))
	require.NoError(t, d.CheckRegister(ctx, registration("nobody", keyed("another"))))
	require.NoError(t, d.Deregister(ctx, incumbent))
	require.NoError(t, d.CheckRegister(ctx, thief))
	_, err = d.lasting.Register(ctx, thief)
	require.NoError(t, err)
	// With another secret it is no heir of the old session: a new epoch.
	require.Greater(t, d.lookup(t, counters, "x").Epoch, placed.Epoch)
	require.ErrorIs(t, d.CheckRegister(ctx, registration("a")), store.ErrOtherSecret)
}

func otherSecretRaces(t *testing.T, f Fixture) {
	d := empty(f)
	const rivals = 16
	errs := make([]error, rivals)
	sessions := make([]string, rivals)
	var all sync.WaitGroup
	for i := range rivals {
		all.Go(func() {
			r := registration("a", keyed(fmt.Sprintf("secret %d", i)))
			sessions[i] = r.SessionID
			_, errs[i] = d.lasting.Register(t.Context(), r)
		})
	}
	all.Wait()
	won := ""
	for i, err := range errs {
		if err == nil {
			require.Empty(t, won, "two secrets of one client were admitted")
			won = sessions[i]
			continue
		}
		require.ErrorIs(t, err, store.ErrOtherSecret)
		d.ended(t, sessions[i])
	}
	d.beat(t, won)
}

func oneSurvivor(t *testing.T, f Fixture) {
	const times = 20
	d := ready(t, f, counters)
	ids := manyIDs(50)
	first := d.join(t, "a", listing(counters, ids...))
	sessions := make([]string, times)
	errs := make([]error, times)
	var all sync.WaitGroup
	for i := range times {
		all.Go(func() {
			r := registration("a", listing(counters, ids...))
			sessions[i] = r.SessionID
			if _, errs[i] = d.lasting.Register(t.Context(), r); errs[i] == nil {
				errs[i] = d.Activate(t.Context(), r.SessionID)
			}
		})
	}
	all.Wait()
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Len(t, live, 1)
	survivor := live[0].ID
	d.ended(t, first)
	for i, session := range sessions {
		if session == survivor {
			require.NoError(t, errs[i])
			continue
		}
		if errs[i] != nil { // overtaken before the answer, or after it
			overtaken := []error{store.ErrOvertaken, store.ErrNoSession}
			require.Condition(t, func() bool { return isAny(errs[i], overtaken) }, "%v", errs[i])
		}
		d.ended(t, session)
	}
	d.beat(t, survivor)
	for _, id := range ids {
		require.Equal(t, survivor, d.resolve(t, counters, id).SessionID)
	}
}

func stoppedByURL(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ctx := t.Context()
	url := at("http://one.test:8000")
	former := d.join(t, "a", url)
	placed := d.place(t, counters, "x", former)
	session := d.join(t, "b", url, listing(counters, "x"))

	_, err := d.Heartbeat(ctx, store.Beat{SessionID: former, Headroom: ample})
	require.ErrorIs(t, err, store.ErrNoSession)
	require.NoError(t, d.Activate(ctx, former), "it has not ended")
	require.NoError(t, d.SetDegraded(ctx, former, false))
	require.True(t, d.session(t, former).Stopped)
	require.False(t, d.session(t, session).Stopped)

	// It keeps what it has, and gets no more.
	res := d.resolve(t, counters, "x")
	require.Equal(t, store.Owned, res.Outcome)
	require.True(t, res.Stopped)
	require.Equal(t, former, res.SessionID)
	require.Equal(t, placed.Epoch, res.Epoch)
	require.Equal(t, former, d.lookup(t, counters, "x").SessionID)
	view := d.view(t)
	require.Len(t, view.Candidates, 1)
	require.Equal(t, session, view.Candidates[0].SessionID)
	require.ErrorIs(t, d.CheckRegister(ctx, registration("a", keyed("another"))), store.ErrOtherSecret)

	// The end of its successor does not bring it back.
	require.NoError(t, d.Deregister(ctx, session))
	_, err = d.Heartbeat(ctx, store.Beat{SessionID: former, Headroom: ample})
	require.ErrorIs(t, err, store.ErrNoSession)
	require.Equal(t, store.NoCandidate, d.resolve(t, counters, "y").Outcome, "but it is there")

	// It may give up its rows itself.
	require.True(t, d.release(t, counters, "x", placed))
	require.NoError(t, d.Deregister(ctx, former))
	d.ended(t, former)
	require.Equal(t, store.UnknownNamespace, d.resolve(t, counters, "y").Outcome)
}

func stoppedEnds(t *testing.T, f Fixture) {
	d := empty(f)
	url := at("http://one.test")
	first := d.join(t, "a", url)
	second := d.join(t, "b", url)
	require.NoError(t, d.Deregister(t.Context(), first))
	third := d.join(t, "c", url)
	require.True(t, d.session(t, second).Stopped)
	d.join(t, "b", at("http://two.test"))
	fourth := d.join(t, "d", url)
	require.True(t, d.session(t, third).Stopped)
	require.False(t, d.session(t, fourth).Stopped)
}

func movedURL(t *testing.T, f Fixture) {
	d := empty(f)
	d.join(t, "a", at("http://one.test"))
	moved := d.join(t, "a", at("http://two.test"))
	other := d.join(t, "b", at("http://one.test"))
	d.beat(t, moved)
	d.beat(t, other)
	require.NoError(t, d.Deregister(t.Context(), moved))
	third := d.join(t, "c", at("http://two.test"))
	d.beat(t, other)
	d.beat(t, third)
}

func stoppedRegistersAgain(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	url := at("http://one.test")
	former := d.join(t, "a", url)
	placed := d.place(t, counters, "x", former)
	usurper := d.join(t, "b", url)
	session := d.join(t, "a", url, listing(counters, "x"))
	d.ended(t, former)
	d.beat(t, session)
	require.True(t, d.session(t, usurper).Stopped)
	row := d.lookup(t, counters, "x")
	require.Equal(t, session, row.SessionID)
	require.Equal(t, placed.Epoch, row.Epoch)
	require.False(t, d.resolve(t, counters, "x").Stopped)
}
