//go:build linux

package faults_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

// ample is a lease that does not end while something is planted; a new store's
// quarantine lasts as long.
const ample = 10 * time.Second

// The tests below plant violations in a running fleet: what they find shows that
// the run of TestPromisesHoldUnderFaults would have found them.

func TestAWorkerThatIgnoresItsLeaseIsFound(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{workers: 2, lease: lease, idle: ample, lawless: 0})
	l := newLoad(f)
	number, first := f.placedOn(t, l, f.workers[0])

	cut := faults.Step{Fault: faults.WorkerUnheard}
	f.inflict(t, cut)
	second := l.movedFrom(t, f.nodes[0], number, first)
	f.awaitEvent(t, "the lawless worker goes on", func(e faults.Event) bool {
		return e.Kind == faults.Ticked && e.Life == first.Life && e.Begin > second.Received
	})
	requireFound(t, f, l, first.Process, faults.WithinLease, faults.OneOwner)
}

func TestAnEarlyPlacementIsFound(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{workers: 2, lease: ample, idle: ample, lawless: -1})
	l := newLoad(f)
	number, first := f.placedOn(t, l, f.workers[0])

	f.workers[0].signal(syscall.SIGSTOP)
	w, ok := f.worker(f.workers[0])
	require.True(t, ok)
	// A store that holds a session for ended before its lease is.
	for _, key := range f.keys(t, "*:s:"+w.SessionID) {
		f.command(t, "DEL", key)
	}
	l.movedFrom(t, f.nodes[0], number, first)
	requireFound(t, f, l, first.Life, faults.NoEarlyPlacement)
}

func TestAnEpochThatRepeatsIsFound(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{workers: 2, lease: ample, idle: ample, lawless: -1})
	l := newLoad(f)
	number, first := f.placedOn(t, l, f.workers[0])

	other, ok := f.worker(f.workers[1])
	require.True(t, ok)
	// A store that gives a row away at the epoch that it has.
	_, id, _ := strings.Cut(first.ID[1:], "/")
	for _, key := range f.keys(t, "*}:r:*") {
		row := f.control.Do(t.Context(), f.control.B().Hget().Key(key).Field(id).Build())
		if row.Error() == nil {
			f.command(t, "HSET", key, id, strconv.FormatInt(first.Epoch, 10)+" "+other.SessionID)
		}
	}
	second := l.movedFrom(t, f.nodes[0], number, first)
	require.Equal(t, first.Epoch, second.Epoch)
	requireFound(t, f, l, first.Life, faults.EpochsRise)
}

// placedOn places new ids until one is on the worker.
func (f *fleet) placedOn(t *testing.T, l *load, s *slot) (number int, first faults.Ack) {
	t.Helper()
	await(t, "an id is placed on "+s.name, func() bool {
		number = l.unused()
		a, err := l.operate(context.Background(), f.nodes[0], number, 0)
		first = a
		return err == nil && a.Process == s.name
	})
	return number, first
}

// movedFrom operates on an id until another life answers.
func (l *load) movedFrom(t *testing.T, n *node, number int, first faults.Ack) (second faults.Ack) {
	t.Helper()
	await(t, first.ID+" has moved", func() bool {
		a, err := l.operate(context.Background(), n, number, 0)
		second = a
		return err == nil && a.Life != first.Life
	})
	return second
}

func (f *fleet) awaitEvent(t *testing.T, what string, match func(faults.Event) bool) {
	t.Helper()
	await(t, what, func() bool {
		return slices.ContainsFunc(f.history(t, nil).Events, match)
	})
}

// keys returns the keys of the store that match.
func (f *fleet) keys(t *testing.T, pattern string) []string {
	t.Helper()
	keys, err := f.control.Do(t.Context(), f.control.B().Keys().Pattern(pattern).Build()).AsStrSlice()
	require.NoError(t, err)
	require.NotEmpty(t, keys)
	return keys
}

// requireFound stops the fleet and checks that the rules were violated, all of
// it by the one who is named.
func requireFound(t *testing.T, f *fleet, l *load, by string, rules ...faults.Rule) {
	t.Helper()
	f.stop()
	l.client.CloseIdleConnections()
	found := map[faults.Rule]int{}
	for _, v := range faults.Check(f.history(t, l.acks)) {
		found[v.Rule]++
		require.True(t, strings.Contains(v.What, by), "%v", v)
	}
	for _, rule := range rules {
		require.Positive(t, found[rule], "found: %v", found)
	}
}
