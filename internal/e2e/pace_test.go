package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Python worker closes all it can when it hears of a drain. At a rate it is
// asked for one instance after the other instead, and hears of the drain when
// the deadline is near. A Go worker needs no setting of its own for that.
func TestADrainAtARateAsksOneInstanceAfterTheOther(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := emptyFleet(t, p.store)
		f.settings = []string{"PINBOARD_DRAIN_RATE=2"}
		f.startNode(t)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		subject, other := ws[0], ws[1]
		ids := []string{"c-oldest", "b-older", "a-newest"}
		for _, id := range append(ids, "busy") {
			f.requirePlaced(t, f.add(t, id), subject)
		}
		f.poke(t, "busy", "hold")

		f.operate(t, "drain", map[string]any{"clientId": subject.clientID, "deadline": 600})
		require.Equal(t, other.pid(), f.state(t, "fresh").PID, "it takes no new ids from now on")
		listed, _ := subject.listed(t)
		require.True(t, listed.Draining)
		for i, id := range ids {
			subject.awaitTold(t, "close", id)
			for _, before := range ids[:i] {
				require.Len(t, subject.told("close", before), 1, "the oldest placement goes first")
			}
			awaitTrue(t, "the other worker takes over", func() bool { return f.moved(t, id, other) })
		}
		awaitTrue(t, "what is busy hears of it", func() bool { return f.state(t, "busy").WindingDown })
		require.False(t, subject.stats(t).Draining, "the worker has not heard of the drain itself")

		f.operate(t, "undrain", map[string]any{"clientId": subject.clientID})
		awaitTrue(t, "what was asked is taken back", func() bool { return !f.state(t, "busy").WindingDown })

		f.operate(t, "drain", map[string]any{"clientId": subject.clientID, "deadline": 0.9})
		awaitTrue(t, "the other worker takes over", func() bool { return f.moved(t, "busy", other) })
		require.True(t, subject.stats(t).Draining)
	})
}
