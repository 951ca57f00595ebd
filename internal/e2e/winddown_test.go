package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// pairing is a store, the kind of worker that something happens to, and the
// kind of the other one.
type pairing struct{ store, subject, other string }

func (p pairing) String() string { return p.subject + " beside " + p.other + " on " + p.store }

// onPairings runs a test on kinds of workers and stores in turn, so that each
// kind meets each store and each other kind.
func onPairings(t *testing.T, test func(t *testing.T, p pairing)) {
	t.Helper()
	for _, p := range []pairing{{redis, python, python}, {memory, python, golang}, {redis, golang, python}} {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

func TestAWindDownClosesAnInstance(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		before := f.add(t, "room")
		f.requirePlaced(t, before, subject)
		socket := f.openSocket(t, "room")
		echo(t, socket, websocket.MessageText, []byte("open"))
		f.favour(t, other)

		f.operate(t, "wind_down", map[string]any{"namespace": "/rooms", "id": "room", "deadline": 30})
		_ = awaitClosed(t, socket)
		// The placement is released before the stream ends, so a client that
		// comes back at once finds the next owner.
		after := f.add(t, "room")
		require.Equal(t, 1, after.Count, "the instance is a new one")
		require.Greater(t, after.Epoch, before.Epoch)
		f.requirePlaced(t, after, other)
		require.Len(t, subject.told("close", "room"), 1)

		f.client.post(t, f.url()+"/registry/wind_down", map[string]any{"namespace": "/rooms", "id": "nobody", "deadline": 1},
			bearer(f.operatorToken)).requireStatus(t, http.StatusNotFound)
	})
}

func TestAWindDownIsRevokedOrEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		subject := f.startWorkers(t, plan{kind: p.subject})[0]
		before := f.add(t, "busy")
		f.poke(t, "busy", "hold")

		f.operate(t, "wind_down", map[string]any{"namespace": "/rooms", "id": "busy", "deadline": 60})
		awaitTrue(t, "the message arrives", func() bool { return f.state(t, "busy").WindingDown })
		f.operate(t, "wind_down", map[string]any{"namespace": "/rooms", "id": "busy", "deadline": nil})
		awaitTrue(t, "the message is taken back", func() bool { return !f.state(t, "busy").WindingDown })
		require.Equal(t, before.Epoch, f.state(t, "busy").Epoch)

		// Work holds the instance until the deadline, and not longer.
		f.operate(t, "wind_down", map[string]any{"namespace": "/rooms", "id": "busy", "deadline": 0.1})
		subject.awaitTold(t, "close", "busy")
		awaitTrue(t, "the placement is released", func() bool { _, placed := f.placement(t, "busy"); return !placed })
		after := await(t, "the id is placed anew", func() (state, bool) { return f.try(t, http.MethodPost, "busy", "add") })
		require.Equal(t, 1, after.Count)
		require.Greater(t, after.Epoch, before.Epoch)
	})
}

func TestADrainedWorkerKeepsWhatLivesAndTakesNothingNew(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject, forgetful: "/kept"}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		busy := f.add(t, "busy")
		f.requirePlaced(t, busy, subject)
		f.poke(t, "busy", "hold")
		var left state
		if p.subject == python {
			left = f.rowWithoutInstance(t, subject)
		}

		f.operate(t, "drain", map[string]any{"clientId": subject.clientID})
		for i := range 20 { // from the answer on, whether the worker knows or not
			require.Equal(t, other.pid(), f.state(t, fmt.Sprintf("fresh-%d", i)).PID)
		}
		listed, _ := subject.listed(t)
		require.True(t, listed.Draining)
		require.Nil(t, listed.DrainDeadline)
		awaitTrue(t, "the worker knows", func() bool { return subject.stats(t).Draining })
		busyStill := f.add(t, "busy")
		require.Equal(t, 2, busyStill.Count)
		require.Equal(t, busy.Epoch, busyStill.Epoch)
		if p.subject == python {
			f.leavesTheDraining(t, left, other)
		}

		f.poke(t, "busy", "let-go")
		subject.awaitTold(t, "close", "busy")
		awaitTrue(t, "the other worker takes over", func() bool { return f.moved(t, "busy", other) })
		after := f.state(t, "busy")
		require.Greater(t, after.Epoch, busy.Epoch)

		f.operate(t, "undrain", map[string]any{"clientId": subject.clientID})
		awaitTrue(t, "the worker knows", func() bool { return !subject.stats(t).Draining })
		f.favour(t, subject)
		f.requirePlaced(t, f.state(t, "after-the-drain"), subject)
		require.Equal(t, after.Epoch, f.state(t, "busy").Epoch)
	})
}

// rowWithoutInstance returns the state of a /kept id whose instance has ended
// while its worker keeps the row.
func (f *fleet) rowWithoutInstance(t *testing.T, w *worker) (s state) {
	t.Helper()
	f.client.call(t, http.MethodGet, f.url()+"/kept/left/state").decode(t, &s)
	require.Equal(t, w.pid(), s.PID)
	w.awaitTold(t, "close", "left")
	return s
}

// leavesTheDraining asks for an id whose row is a draining worker's that will
// not activate it: the client never sees that refusal.
func (f *fleet) leavesTheDraining(t *testing.T, before state, next *worker) {
	t.Helper()
	var s state
	f.client.call(t, http.MethodGet, f.url()+"/kept/left/state").decode(t, &s)
	require.Equal(t, next.pid(), s.PID)
	require.Greater(t, s.Epoch, before.Epoch)
}

// try calls an instance where a refusal for now is fine, as long as it is not a
// draining worker's.
func (f *fleet) try(t *testing.T, method, id, route string) (s state, ok bool) {
	t.Helper()
	a := f.client.call(t, method, room(f.url(), id, route))
	if a.status != http.StatusOK {
		a.requireNotNow(t)
		require.NotContains(t, string(a.body), "draining")
		return state{}, false
	}
	a.decode(t, &s)
	return s, true
}

// moved reports whether an id is served by the worker now.
func (f *fleet) moved(t *testing.T, id string, to *worker) bool {
	t.Helper()
	s, ok := f.try(t, http.MethodGet, id, "state")
	return ok && s.PID == to.pid()
}

func TestADrainEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		before := f.add(t, "busy")
		f.poke(t, "busy", "hold")

		a := f.operate(t, "drain", map[string]any{"clientId": subject.clientID, "deadline": 1.5})
		var said struct {
			Draining      bool
			DrainDeadline float64
		}
		a.decode(t, &said)
		require.True(t, said.Draining)
		require.LessOrEqual(t, said.DrainDeadline, 1.5)
		subject.awaitTold(t, "close", "busy")
		awaitTrue(t, "the other worker takes over", func() bool { return f.moved(t, "busy", other) })
		require.Greater(t, f.state(t, "busy").Epoch, before.Epoch)
		listed, ok := subject.listed(t)
		require.True(t, ok, "a drained worker stays")
		require.NotNil(t, listed.DrainDeadline)
		require.Zero(t, *listed.DrainDeadline)

		f.operate(t, "undrain", map[string]any{"clientId": subject.clientID})
		awaitTrue(t, "the worker knows", func() bool { return !subject.stats(t).Draining })
		f.favour(t, subject)
		tries := 0 // the worker's lease is whole again a heartbeat later
		awaitTrue(t, "the worker serves again", func() bool { tries++; return f.moved(t, fmt.Sprintf("again-%d", tries), subject) })
	})
}

func TestAPlainShutdownHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		before := f.add(t, "room")
		f.requirePlaced(t, before, subject)

		subject.signal(t, termination)
		subject.awaitEnd(t)
		require.Len(t, subject.told("close", "room"), 1)
		_, listed := subject.listed(t)
		require.False(t, listed, "it has deregistered")
		_, placed := f.placement(t, "room")
		require.False(t, placed, "its rows are released")
		after := f.add(t, "room")
		require.Equal(t, 1, after.Count)
		require.Greater(t, after.Epoch, before.Epoch)
		f.requirePlaced(t, after, other)
	})
}

// TestADrainBeforeShutdownHandsOver calls all through the drain that a SIGTERM
// starts. What the worker is just closing may be refused for a moment; once
// pinboard knows of the drain, new ids are served by the other worker.
func TestADrainBeforeShutdownHandsOver(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject, drain: "20"}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		f.requirePlaced(t, f.add(t, "busy"), subject)
		f.poke(t, "busy", "hold")
		f.requirePlaced(t, f.add(t, "idle"), subject)
		socket := f.openSocket(t, "busy")
		echo(t, socket, websocket.MessageText, []byte("open"))

		subject.signal(t, termination)
		fresh := 0
		freshID := func() string { fresh++; return fmt.Sprintf("fresh-%d", fresh) }
		awaitTrue(t, "pinboard knows", func() bool {
			l, ok := subject.listed(t)
			if a := f.client.call(t, http.MethodGet, room(f.url(), freshID(), "state")); a.status != http.StatusOK {
				a.requireNotNow(t)
			}
			return ok && l.Draining
		})
		requireNewOnOther := func() { require.Equal(t, other.pid(), f.state(t, freshID()).PID) }
		requireNewOnOther()
		awaitTrue(t, "what is idle moves", func() bool { requireNewOnOther(); return f.moved(t, "idle", other) })
		require.Equal(t, subject.pid(), f.state(t, "busy").PID)
		echo(t, socket, websocket.MessageText, []byte("still open"))

		f.poke(t, "busy", "let-go")
		_ = awaitClosed(t, socket)
		require.Equal(t, other.pid(), f.state(t, "busy").PID)
		awaitTrue(t, "the worker ends", func() bool { requireNewOnOther(); return subject.ended() })
		requireNewOnOther()
		_, listed := subject.listed(t)
		require.False(t, listed, "it has deregistered")
	})
}
