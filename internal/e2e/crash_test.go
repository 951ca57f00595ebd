package e2e_test

import (
	"context"
	"net/http"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

const termination = syscall.SIGTERM

func TestAKilledOwnersIDMovesWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		f.add(t, "room")
		before := f.add(t, "room")
		f.requirePlaced(t, before, subject)
		f.favour(t, other) // a placement that comes too early goes there

		end, _ := subject.leaseEnd(t)
		subject.kill()
		if last, ok := subject.leaseEnd(t); ok && last.After(end) {
			end = last // a heartbeat came between
		}
		refused := 0
		after := await(t, "the id is served again", func() (state, bool) {
			a := f.client.call(t, http.MethodPost, room(f.url(), "room", "add"))
			if a.status != http.StatusOK {
				a.requireNotNow(t)
				refused++
				return state{}, false
			}
			var s state
			a.decode(t, &s)
			return s, true
		})
		require.Positive(t, refused)
		require.Equal(t, 1, after.Count)
		require.Greater(t, after.Epoch, before.Epoch)
		placed := f.requirePlaced(t, after, other)
		require.GreaterOrEqual(t, placed.PlacedAt, end.UnixMilli(), "placed before the lease ended")
		for count := 2; count <= 5; count++ {
			again := f.add(t, "room")
			require.Equal(t, count, again.Count)
			require.Equal(t, after.Epoch, again.Epoch)
		}
		_, listed := subject.listed(t)
		require.False(t, listed)
	})
}

func TestAFrozenOwnerLosesItsIDAndGivesItUp(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		before := f.add(t, "room")
		f.requirePlaced(t, before, subject)
		stream, socket := f.openEvents(t, "room"), f.openSocket(t, "room")
		stream.requireNext(t, "0")
		echo(t, socket, websocket.MessageText, []byte("open"))
		f.favour(t, other) // a placement that comes too early goes there

		end, _ := subject.leaseEnd(t)
		subject.signal(t, freezes)
		after := await(t, "the id is served again", func() (state, bool) { return f.addUnlessFrozen(t, "room", subject) })
		require.Equal(t, 1, after.Count)
		require.Greater(t, after.Epoch, before.Epoch)
		placed := f.requirePlaced(t, after, other)
		require.GreaterOrEqual(t, placed.PlacedAt, end.UnixMilli(), "placed before the lease ended")
		// The frozen process cannot have done this.
		require.Error(t, stream.awaitEnd(t), "an event stream that was cut must not look whole")
		require.Error(t, awaitClosed(t, socket))

		subject.signal(t, thaws)
		subject.awaitTold(t, "close", "room")
		awaitTrue(t, "it is registered again", func() bool { l, ok := subject.listed(t); return ok && l.ClientID == subject.clientID })
		require.Equal(t, 1, subject.stats(t).Reregistrations)
		require.Len(t, subject.told("add", "room"), before.Count, "it answered for an id that was no longer its own")
		still := f.add(t, "room")
		require.Equal(t, 2, still.Count)
		require.Equal(t, after.Epoch, still.Epoch)
		f.requirePlaced(t, still, other)

		f.favour(t, subject)
		f.requirePlaced(t, f.state(t, "next"), subject)
	})
}

// addUnlessFrozen counts one up, unless the owner does not answer.
func (f *fleet) addUnlessFrozen(t *testing.T, id string, frozen *worker) (s state, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	a, err := f.client.try(ctx, http.MethodPost, room(f.url(), id, "add"))
	require.NoError(t, err)
	if a.status != http.StatusOK {
		require.Contains(t, []int{http.StatusBadGateway, http.StatusServiceUnavailable}, a.status, "%s", a.body)
		return s, false
	}
	a.decode(t, &s)
	require.NotEqual(t, frozen.pid(), s.PID)
	return s, true
}

// TestALateHeartbeatBringsNothingBack thaws an owner before anybody asks for
// its id: the lease is over all the same.
func TestALateHeartbeatBringsNothingBack(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		subject := f.startWorkers(t, plan{kind: p.subject})[0]
		before := f.add(t, "room")
		session, _ := subject.listed(t)

		subject.signal(t, freezes)
		awaitTrue(t, "its lease ends", func() bool { _, ok := subject.listed(t); return !ok })
		subject.signal(t, thaws)
		now := await(t, "it is registered again", func() (listedWorker, bool) { return subject.listed(t) })
		require.Equal(t, session.ClientID, now.ClientID)
		require.NotEqual(t, session.SessionID, now.SessionID)
		// Nobody else had the id meanwhile: the instance is kept.
		after := await(t, "the id is served", func() (state, bool) { return f.try(t, http.MethodGet, "room", "state") })
		require.Equal(t, before.Count, after.Count)
		require.GreaterOrEqual(t, after.Epoch, before.Epoch)
		require.Empty(t, subject.told("close", "room"))
	})
}
