//go:build linux

package faults_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

// shortLength is how long the schedule of a usual run is: a part of all faults.
const shortLength = 24 * time.Second

func TestPromisesHoldUnderFaults(t *testing.T) {
	number, schedule := *seed, shortLength
	if number == 0 {
		number = rand.Uint64N(1_000_000) + 1
	}
	if *long {
		schedule = *length
	}
	t.Logf("seed %d (repeat with -seed=%d)", number, number)
	steps := faults.Schedule(number, faults.Shape{Nodes: nodeCount, Workers: workerCount, Lease: lease}, schedule)
	f := newFleet(t, usual)
	l := startLoad(t, f, number)
	if pythonBinary != "" { // else all ids may be the Go workers'
		f.placedOn(t, l, f.workers[pythonFrom])
	}
	done := f.play(t, steps)
	f.requireRecovered(t, l)
	acks := l.end()
	f.stop()
	h := f.history(t, acks)
	t.Logf("%d steps; answers: %v", len(steps), l.statuses)
	report(t, faults.Check(h), done)
	requireSubstance(t, h)
	f.requireCleanOutputs(t)
}

// requireRecovered checks that once all is well again, each id is served
// through each node, and nothing had to be restarted for that.
func (f *fleet) requireRecovered(t *testing.T, l *load) {
	t.Helper()
	for number := range idCount {
		for _, n := range f.nodes {
			var last error
			await(t, f.idOf(number)+" is served through "+n.name, func() bool {
				_, last = l.operate(context.Background(), n, number, 0)
				return last == nil
			})
		}
	}
}

// shown is how many violations a failing test tells.
const shown = 20

// report fails the test for each violation, with the schedule up to the last of
// those that it tells.
func report(t *testing.T, found []faults.Violation, done []timed) {
	t.Helper()
	if len(found) == 0 {
		return
	}
	for i, v := range found {
		if i == shown {
			t.Errorf("and %d more", len(found)-shown)
			break
		}
		t.Errorf("violation: %v", v)
	}
	last := found[min(len(found), shown)-1].At
	for _, entry := range done {
		if entry.at <= last {
			t.Logf("%v: %s", entry.at, entry.what)
		}
	}
}

// requireSubstance checks that the run was worth its name: that there was
// something for the checker to check.
func requireSubstance(t *testing.T, h faults.History) {
	t.Helper()
	owners, languages := map[string]map[string]bool{}, map[bool]bool{}
	for _, a := range h.Acks {
		if owners[a.ID] == nil {
			owners[a.ID] = map[string]bool{}
		}
		owners[a.ID][a.Process] = true
		languages[h.Unguarded[a.Process]] = true
	}
	kinds := map[faults.Kind]bool{}
	for _, e := range h.Events {
		kinds[e.Kind] = true
	}
	require.GreaterOrEqual(t, len(owners), idCount)
	require.True(t, slices.ContainsFunc(slices.Collect(maps.Values(owners)), func(of map[string]bool) bool { return len(of) > 1 }),
		"some id moved")
	require.True(t, languages[false], "a Go worker served")
	require.Equal(t, pythonBinary != "", languages[true], "a Python worker served")
	require.Len(t, kinds, 5, "events of all kinds")
}

// requireCleanOutputs looks for what no program may print.
func (f *fleet) requireCleanOutputs(t *testing.T) {
	t.Helper()
	var all []*process
	for _, n := range f.nodes {
		all = append(all, n.process)
	}
	for _, s := range f.workers {
		all = append(all, s.process)
	}
	for _, p := range append(all, f.retired...) {
		for _, text := range []string{"DATA RACE", "panic:", "fatal error:", f.token, "registration task crashed", "malformed"} {
			if p.out.contains(text) {
				t.Errorf("%s printed %q", p.name, strings.ReplaceAll(text, f.token, "the token"))
			}
		}
	}
}
