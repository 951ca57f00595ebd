package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

func TestAHigherWorkerEpochTakesOver(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		plans := []plan{{kind: p.subject, epoch: 1}, {kind: p.other, epoch: 2}, {kind: p.subject, epoch: 1}}
		reserve(t, plans...)
		old := f.launch(t, plans[0])
		old.awaitRegistered(t)
		f.settle(t)
		before := f.add(t, "room")
		f.requirePlaced(t, before, old)
		f.poke(t, "room", "hold") // work does not hold it: a displaced worker aborts
		socket := f.openSocket(t, "room")
		echo(t, socket, websocket.MessageText, []byte("open"))

		next := f.launch(t, plans[1])
		after := f.followHandOver(t, "room", before, next)
		_ = awaitClosed(t, socket)
		require.Len(t, old.told("close", "room"), 1)
		require.Len(t, next.told("open", "room"), 1)
		next.awaitRegistered(t)
		f.requirePlaced(t, after, next)
		for i := range 10 {
			require.Equal(t, next.pid(), f.state(t, fmt.Sprintf("fresh-%d", i)).PID)
		}
		require.Len(t, f.listWorkers(t), 1)
		require.False(t, old.ended(), "it waits for its end, but does not come back")

		// A lower one keeps trying until the higher is gone.
		low := f.launch(t, plans[2])
		url := low.await(t, "ready", func(r record) bool { return r.Event == "ready" }).URL
		awaitTrue(t, "it has tried more than once", func() bool { return f.refusals(url) >= 2 })
		require.Len(t, f.listWorkers(t), 1)
		require.Equal(t, after.Epoch, f.state(t, "room").Epoch)
		next.signal(t, termination)
		next.awaitEnd(t)
		low.awaitRegistered(t)
		awaitTrue(t, "the lower one serves", func() bool { return f.moved(t, "room", low) })
		require.Len(t, f.listWorkers(t), 1, "the displaced one has stopped for good")
	})
}

// followHandOver counts in an instance until the next worker has it, and checks
// that no answer is of an owner after another one's.
func (f *fleet) followHandOver(t *testing.T, id string, last state, to *worker) state {
	t.Helper()
	return await(t, "the next worker has "+id, func() (state, bool) {
		s, ok := f.tryAnything(t, id)
		if !ok {
			return s, false
		}
		require.GreaterOrEqual(t, s.Epoch, last.Epoch)
		if s.Epoch == last.Epoch {
			require.Equal(t, last.PID, s.PID)
			require.Equal(t, last.Count+1, s.Count)
		} else {
			require.Equal(t, 1, s.Count)
		}
		last = s
		return s, s.PID == to.pid()
	})
}

// tryAnything counts up in an instance, which may be refused while its owner is
// changing, or cut by the abort.
func (f *fleet) tryAnything(t *testing.T, id string) (s state, ok bool) {
	t.Helper()
	a := f.client.call(t, http.MethodPost, room(f.url(), id, "add"))
	switch a.status {
	case http.StatusOK:
		a.decode(t, &s)
		return s, true
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return state{}, false
	}
	require.Fail(t, "unexpected answer", "%d %s", a.status, a.body)
	return state{}, false
}

// refusals counts the registrations at that URL that pinboard refused.
func (f *fleet) refusals(url string) (count int) {
	for _, n := range f.nodes {
		count += len(n.matching(func(r record) bool { return r.Msg == "registration refused" && r.URL == url }))
	}
	return count
}

func TestAnotherEnvWaitsOrTakesOver(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		const host = "chat.example"
		f := newFleet(t, p.store)
		plans := []plan{
			{kind: p.subject, hostname: host, env: "blue"},
			{kind: p.other, hostname: host, env: "green", takeover: "deny"},
			{kind: p.other, hostname: host, env: "green", takeover: "wind_down"},
		}
		reserve(t, plans...)
		blue := f.launch(t, plans[0])
		blue.awaitRegistered(t)
		f.settle(t, asking(host))
		before := f.addAt(t, host, "room")
		require.Equal(t, blue.pid(), before.PID)

		denied := f.launch(t, plans[1])
		url := denied.await(t, "ready", func(r record) bool { return r.Event == "ready" }).URL
		awaitTrue(t, "it has tried more than once", func() bool { return f.refusals(url) >= 2 })
		require.Equal(t, before.Epoch, f.addAt(t, host, "room").Epoch)
		denied.kill()

		green := f.launch(t, plans[2])
		green.awaitRegistered(t)
		require.Equal(t, green.pid(), f.addAt(t, host, "fresh").PID)
		// What is idle winds down at once and moves; what works has 30 s.
		awaitTrue(t, "the instance moves", func() bool {
			a := f.client.call(t, http.MethodGet, room(f.url(), "room", "state"), asking(host))
			var s state
			if a.status != http.StatusOK {
				a.requireNotNow(t)
				return false
			}
			a.decode(t, &s)
			return s.PID == green.pid() && s.Epoch > before.Epoch
		})
		listed, ok := blue.listed(t)
		require.True(t, ok)
		require.True(t, listed.Draining)
		require.NotNil(t, listed.DrainDeadline)
	})
}

func (f *fleet) addAt(t *testing.T, host, id string) (s state) {
	t.Helper()
	f.client.call(t, http.MethodPost, room(f.url(), id, "add"), asking(host)).decode(t, &s)
	return s
}

// TestHostNames has two deployments of one namespace on one pinboard, one of
// them bound under a host name, with two workers that call each other.
func TestHostNames(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		const host = "chat.example"
		f := newFleet(t, p.store)
		plans := []plan{
			{kind: p.subject, hostname: "Chat.Example"}, {kind: p.other, hostname: host, headroom: 1}, {kind: golang},
		}
		reserve(t, plans...)
		one, two, plain := f.launch(t, plans[0]), f.launch(t, plans[1]), f.launch(t, plans[2])
		for _, w := range []*worker{one, two, plain} {
			w.awaitRegistered(t)
		}
		f.settle(t)
		f.settle(t, asking(host))

		here, there := f.add(t, "room"), f.addAt(t, host, "room")
		require.Equal(t, plain.pid(), here.PID)
		require.Equal(t, one.pid(), there.PID)
		require.Equal(t, 2, f.addAt(t, "CHAT.example.:8080", "room").Count)
		require.Equal(t, 2, f.addAt(t, "other.example", "room").Count, "of the binding without a host name")

		// From one's instance to two's, through pinboard, by their host name.
		f.setHeadrooms(t, map[*worker]int{one: 1, two: 1000})
		require.Equal(t, two.pid(), f.addAt(t, host, "callee").PID)
		var told struct {
			PID  int
			Next struct {
				PID int
				Who struct {
					Kind, NS, ID string
					Depth        int
				}
			}
		}
		f.client.post(t, room(f.url(), "room", "relay"), []string{"/rooms/callee"}, asking(host)).decode(t, &told)
		require.Equal(t, one.pid(), told.PID)
		require.Equal(t, two.pid(), told.Next.PID)
		require.Equal(t, "instance", told.Next.Who.Kind)
		require.Equal(t, "room", told.Next.Who.ID)

		// Operators name the host; a plain release reaches the right row.
		f.client.post(t, f.url()+"/registry/wind_down", map[string]any{"namespace": "/rooms", "id": "callee", "deadline": 30},
			bearer(f.operatorToken)).requireStatus(t, http.StatusNotFound)
		f.operate(t, "wind_down", map[string]any{"namespace": "/rooms", "id": "callee", "deadline": 30, "hostname": host})
		two.awaitTold(t, "close", "callee")
		before := there.Epoch
		one.signal(t, termination)
		one.awaitEnd(t)
		moved := f.addAt(t, host, "room")
		require.Equal(t, two.pid(), moved.PID)
		require.Greater(t, moved.Epoch, before)
		require.Equal(t, 3, f.add(t, "room").Count)
	})
}
