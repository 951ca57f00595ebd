package e2e_test

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// C51: on SIGTERM a worker goes on serving what lives on it, takes nothing new, hands
// what is idle over at once, and ends what is left at the drain's deadline. No
// client sees an error but a 503 that says when to come back.
func TestASIGTERMUnderLoadHandsOverAndEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	const rooms, streams = 20, 5
	f := newFleet(t, redis)
	ws := f.startWorkers(t, plan{kind: golang, drain: "6"}, plan{kind: golang, headroom: 1})
	a, b := ws[0], ws[1]
	before := map[string]state{}
	var placed []string
	for i := range rooms {
		id := fmt.Sprintf("room-%d", i)
		before[id] = f.add(t, id)
		f.requirePlaced(t, before[id], a)
		placed = append(placed, id)
	}
	open := make([]*events, streams)
	for i := range open {
		open[i] = f.openEvents(t, placed[i])
		open[i].requireNext(t, "0")
	}
	f.poke(t, placed[0], "hold") // and never lets go
	s := f.askSteadily(t, placed)
	awaitTrue(t, "the load begins", func() bool { return s.answered() > 10 })

	a.signal(t, syscall.SIGTERM)
	awaitTrue(t, "pinboard knows", func() bool { l, ok := a.listed(t); return ok && l.Draining })
	for i := range 20 {
		require.Equal(t, b.pid(), f.state(t, fmt.Sprintf("after-%d", i)).PID)
	}
	require.Equal(t, a.pid(), f.state(t, placed[0]).PID, "what is busy is served on")
	awaitTrue(t, "what is idle moves", func() bool { return f.moved(t, placed[rooms-1], b) })
	f.client.post(t, room(f.url(), placed[0], "next"), nil).requireStatus(t, http.StatusOK)
	open[0].requireNext(t, "1")

	require.Zero(t, a.awaitEnd(t), "although somebody never lets go")
	_, listed := a.listed(t)
	require.False(t, listed, "it has deregistered")
	for i := range open {
		_ = open[i].awaitEnd(t)
	}
	for id, was := range before {
		now := f.state(t, id)
		require.Equal(t, b.pid(), now.PID, id)
		require.Greater(t, now.Epoch, was.Epoch, id)
		require.Len(t, a.told("close", id), 1)
	}
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for what := range s.seen {
		require.Contains(t, []string{"200", "503"}, what)
	}
}
