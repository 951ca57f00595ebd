package e2e_test

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

func TestNodesAgree(t *testing.T) {
	t.Parallel()
	for name, count := range map[string]int{"two nodes": 2, "three nodes": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFrontedFleet(t, redis, count)
			ws := f.startWorkers(t, plan{kind: python}, plan{kind: golang})
			f.requireAgreement(t, "before")
			survivor := f.nodes[count-1]
			owner := f.state(t, "before")
			sessions := f.sessions(t)
			socket := f.openSocketAt(t, survivor.url, "before")
			echo(t, socket, websocket.MessageText, []byte("open"))

			f.nodes[0].kill()
			require.Equal(t, owner, f.state(t, "before"))
			f.requireAgreement(t, "after")
			echo(t, socket, websocket.MessageText, []byte("still open"))
			f.drainThroughOne(t, ws[0], ws[1])
			require.Equal(t, sessions, f.sessions(t), "workers go on with the other nodes")
		})
	}
}

// living returns the nodes that run.
func (f *fleet) living() []*node {
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *node) bool { return n.ended() })
}

// requireAgreement asks all nodes for a new id at once, and then one by one:
// there is one instance of it.
func (f *fleet) requireAgreement(t *testing.T, id string) {
	t.Helper()
	const each = 5
	type result struct {
		answer
		err error
	}
	results := make(chan result)
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for _, n := range f.living() {
		for range each {
			go func() {
				a, err := f.client.try(ctx, http.MethodPost, room(n.url, id, "add"))
				results <- result{a, err}
			}()
		}
	}
	var first state
	seen := map[int]bool{}
	for range each * len(f.living()) {
		r := <-results
		require.NoError(t, r.err)
		var s state
		r.decode(t, &s)
		if first.PID == 0 {
			first = s
		}
		require.Equal(t, first.PID, s.PID)
		require.Equal(t, first.Epoch, s.Epoch)
		seen[s.Count] = true
	}
	require.Len(t, seen, each*len(f.living()), "each call counted once, in one instance")
	for _, n := range f.living() {
		var s state
		f.client.call(t, http.MethodGet, room(n.url, id, "state")).decode(t, &s)
		require.Equal(t, first.PID, s.PID)
		require.Equal(t, first.Epoch, s.Epoch)
	}
}

// drainThroughOne drains a worker through the first node: the answer binds all.
func (f *fleet) drainThroughOne(t *testing.T, drained, other *worker) {
	t.Helper()
	f.client.post(t, f.living()[0].url+"/registry/drain", map[string]any{"clientId": drained.clientID}, bearer(f.operatorToken)).
		requireStatus(t, http.StatusOK)
	for i, n := range f.living() {
		var s state
		f.client.call(t, http.MethodGet, room(n.url, "drained-"+string(rune('a'+i)), "state")).decode(t, &s)
		require.Equal(t, other.pid(), s.PID)
	}
}
