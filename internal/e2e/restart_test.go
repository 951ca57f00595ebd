package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// replaceNode ends the fleet's only node and starts another at its place.
func (f *fleet) replaceNode(t *testing.T, end func(*node)) {
	t.Helper()
	old := f.nodes[len(f.nodes)-1]
	f.front.remove(strings.TrimPrefix(old.url, "http://"))
	end(old)
	f.startNode(t)
}

func TestARestartOnRedisLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFrontedFleet(t, redis, 1)
	ws := f.startWorkers(t, plan{kind: python}, plan{kind: golang, headroom: 1})
	rooms := map[string]*worker{"first": ws[0], "second": ws[1]}
	before := f.fill(t, rooms)
	sessions := f.sessions(t)

	for how, end := range map[string]func(*node){
		"stopped": func(n *node) { n.stop(t) },
		"killed":  func(n *node) { n.kill() },
	} {
		f.replaceNode(t, end)
		for id, w := range rooms {
			s := f.state(t, id)
			require.Equal(t, before[id], s, "%s after pinboard was %s", id, how)
			f.requirePlaced(t, s, w)
		}
		f.state(t, "new-after-"+how) // at the first try: no quarantine
		require.Zero(t, f.quarantine(t))
		require.Equal(t, sessions, f.sessions(t))
		// Not only until the next heartbeat.
		f.favour(t, ws[1])
		require.Equal(t, sessions, f.sessions(t))
	}
	for _, w := range ws {
		require.Zero(t, w.stats(t).Reregistrations)
	}
}

// fill places one room on each worker, counts something in each, and returns
// their states.
func (f *fleet) fill(t *testing.T, rooms map[string]*worker) map[string]state {
	t.Helper()
	states := map[string]state{}
	for id, w := range rooms {
		f.favour(t, w)
		f.add(t, id)
		states[id] = f.add(t, id)
		f.requirePlaced(t, states[id], w)
	}
	return states
}

// sessions maps each live client to its session.
func (f *fleet) sessions(t *testing.T) map[string]string {
	t.Helper()
	sessions := map[string]string{}
	for _, l := range f.listWorkers(t) {
		sessions[l.ClientID] = l.SessionID
	}
	return sessions
}

func TestStreamsEndWhenPinboardStops(t *testing.T) {
	t.Parallel()
	f := newFleet(t, redis)
	f.startWorkers(t, plan{kind: python})
	stream, socket := f.openEvents(t, "room"), f.openSocket(t, "room")
	stream.requireNext(t, "0")
	echo(t, socket, websocket.MessageText, []byte("open"))
	f.nodes[0].stop(t)
	_ = stream.awaitEnd(t)
	require.Contains(t, []websocket.StatusCode{websocket.StatusServiceRestart, websocket.StatusGoingAway},
		websocket.CloseStatus(awaitClosed(t, socket)))
}

func TestAForgetfulStoreWaitsForTheLivingToRegisterAgain(t *testing.T) {
	t.Parallel()
	const away = "Redis away past the lease, back without its data"
	for name, c := range map[string]struct {
		store  string
		forget func(*testing.T, *fleet)
	}{
		"pinboard restarted on memory": {memory, func(t *testing.T, f *fleet) { f.replaceNode(t, func(n *node) { n.stop(t) }) }},
		"pinboard killed on memory":    {memory, func(t *testing.T, f *fleet) { f.replaceNode(t, func(n *node) { n.kill() }) }},
		"flushed Redis":                {redis, func(t *testing.T, f *fleet) { f.flushRedis(t) }},
		// Longer than a lease: the workers serve nothing any more, but keep
		// what they have.
		away: {redis, func(t *testing.T, f *fleet) {
			f.redis.Kill()
			awaitTrue(t, "nothing is served without a lease", func() bool {
				_, first := f.try(t, http.MethodGet, "first", "state")
				_, second := f.try(t, http.MethodGet, "second", "state")
				return !first && !second
			})
			f.redis.Restart(t)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFrontedFleet(t, c.store, 1)
			ws := f.startWorkers(t, plan{kind: python}, plan{kind: golang, headroom: 1})
			rooms := map[string]*worker{"first": ws[0], "second": ws[1]}
			before := f.fill(t, rooms)
			dead := f.sessions(t)
			socket := f.openSocketUnless(t, "first", c.store == memory || name == away)

			c.forget(t, f)
			for _, w := range ws {
				awaitTrue(t, w.name+" has registered again", func() bool {
					l, ok := w.listed(t)
					return ok && l.ClientID == w.clientID && l.SessionID != dead[w.clientID]
				})
			}
			f.requireReclaimed(t, rooms, before)
			f.requireQuarantine(t)
			f.requireReclaimed(t, rooms, before)
			if socket != nil {
				echo(t, socket, websocket.MessageText, []byte("through it all"))
			}
			for _, w := range ws {
				require.Equal(t, 1, w.stats(t).Reregistrations)
			}
		})
	}
}

// openSocketUnless opens a WebSocket, or returns nil.
func (f *fleet) openSocketUnless(t *testing.T, id string, not bool) *websocket.Conn {
	t.Helper()
	if not {
		return nil
	}
	return f.openSocket(t, id)
}

// requireReclaimed checks that rooms live on where they were, in placements of
// a higher epoch.
func (f *fleet) requireReclaimed(t *testing.T, rooms map[string]*worker, before map[string]state) {
	t.Helper()
	for id, w := range rooms {
		s := await(t, id+" is served", func() (state, bool) { return f.try(t, http.MethodGet, id, "state") })
		f.requirePlaced(t, s, w)
		require.Equal(t, before[id].Count, s.Count, "%s lives on", id)
		require.Greater(t, s.Epoch, before[id].Epoch)
		require.Empty(t, w.told("close", id))
	}
}

// requireQuarantine checks that a new id is placed one lease after it was first
// asked for, not before.
func (f *fleet) requireQuarantine(t *testing.T) {
	t.Helper()
	asked := time.Now()
	f.client.call(t, http.MethodGet, room(f.url(), "new", "state")).requireNotNow(t)
	require.Positive(t, f.quarantine(t))
	s := await(t, "the quarantine ends", func() (state, bool) { return f.try(t, http.MethodGet, "new", "state") })
	p, ok := f.placement(t, "new")
	require.True(t, ok)
	require.Equal(t, s.Epoch, p.Epoch)
	require.GreaterOrEqual(t, p.PlacedAt, asked.Add(lease).UnixMilli())
	require.Zero(t, f.quarantine(t))
}

// Nobody asks for the ids between the registration that claims them and the
// end of their instances.
func TestWhatIsClaimedBehindAFlushGoesWhenItsInstanceDoes(t *testing.T) {
	t.Parallel()
	f := newFrontedFleet(t, redis, 2)
	w := f.startWorkers(t, plan{kind: golang})[0]
	ids := []string{"one", "two", "three"}
	before := map[string]state{}
	for _, id := range ids {
		before[id] = f.add(t, id)
	}
	f.flushRedis(t)
	for _, id := range ids {
		claimed := await(t, id+" is claimed", func() (placement, bool) { return f.placement(t, id) })
		require.Greater(t, claimed.Epoch, before[id].Epoch)
	}
	f.operate(t, "drain", map[string]any{"clientId": w.clientID})
	for _, id := range ids {
		w.awaitTold(t, "close", id)
		awaitTrue(t, id+" moves", func() bool { _, placed := f.placement(t, id); return !placed })
	}
	l, ok := w.listed(t)
	require.True(t, ok)
	require.Equal(t, w.clientID, l.ClientID, "the worker is still there")
}
