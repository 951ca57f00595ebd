//go:build linux

package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

const (
	// lostIDs is how many ids of each master are placed in what its replica
	// never sees.
	lostIDs = 12
	// outlasting is a lease that a failover is shorter than: with a shorter one
	// all owners of before would be over by the time of a second placement.
	outlasting = 6 * time.Second
)

// failing is how a master comes to be replaced.
type failing struct {
	name string
	// fail ends the master's time, and returns when the new master was there at
	// the earliest.
	fail func(*testing.T, *member, *member) (taken time.Duration)
}

// killed: the others find out and elect the replica.
var killed = failing{"is killed", func(_ *testing.T, master, _ *member) time.Duration {
	taken := faults.Now()
	master.Kill()
	return taken
}}

// secluded: all but the nodes lose it, and it goes on taking their writes.
var secluded = failing{"is cut off from all but the nodes", func(_ *testing.T, master, _ *member) time.Duration {
	taken := faults.Now()
	master.watch.Cut()
	return taken
}}

// ordered has an operator make the replica the master; the old one is not asked.
func ordered(how string) failing {
	return failing{"is replaced by CLUSTER FAILOVER " + how, func(t *testing.T, _, replica *member) time.Duration {
		t.Helper()
		taken := faults.Now()
		replica.command(t, "CLUSTER", "FAILOVER", how)
		return taken
	}}
}

func TestASentinelFailoverThatLosesWritesStaysInItsWindow(t *testing.T) {
	t.Parallel()
	testSentinelFailover(t, killed)
}

func TestASentinelFailoverWhileTheOldMasterIsWrittenToStaysInItsWindow(t *testing.T) {
	t.Parallel()
	if !*long {
		t.Log("run with -long")
		return
	}
	testSentinelFailover(t, secluded)
}

func testSentinelFailover(t *testing.T, how failing) {
	var s sentinels
	f := newFleet(t, plan{workers: workerCount, lease: outlasting, idle: 2 * outlasting, lawless: -1, store: s.start})
	l := startLoad(t, f, 1)
	f.requireRecovered(t, l) // a new store's quarantine is longer than what is to be lost
	r := replacements{lost: map[int]faults.Ack{}}
	f.failOver(t, l, s.members[0], s.members[1], how, &r)
	f.requireInWindows(t, l, r)
}

// TestClusterFailoversThatLoseWritesStayInTheirWindows has each master of a
// cluster replaced, one after the other, in all ways there are. The rows of some
// namespaces are on each of them, and the fleet's records on one.
func TestClusterFailoversThatLoseWritesStayInTheirWindows(t *testing.T) {
	t.Parallel()
	var c cluster
	f := newFleet(t, plan{
		workers: workerCount, lease: outlasting, idle: 2 * outlasting, lawless: -1, store: c.start,
		namespaces: []string{"/rooms", "/halls", "/decks", "/lofts", "/yards", "/barns"},
	})
	l := startLoad(t, f, 1)
	f.requireRecovered(t, l)
	r := replacements{lost: map[int]faults.Ack{}}
	for i, how := range []failing{killed, ordered("FORCE"), ordered("TAKEOVER")} {
		f.failOver(t, l, c.members[i], c.members[shards+i], how, &r)
		// Only what is replaced once can be told apart.
		f.requireRecovered(t, l)
	}
	f.requireInWindows(t, l, r)
}

// replacements are what the failovers of a run have done.
type replacements struct {
	windows []faults.Failover
	lost    map[int]faults.Ack // ids placed in what was lost, by number
	// quick: after one of them, all of its ids were served again while each
	// session that the replica knew of was live.
	quick bool
}

// failOver has a master replaced by a replica that did not see what was written
// last: ids are placed in it.
func (f *fleet) failOver(t *testing.T, l *load, master, replica *member, how failing, r *replacements) {
	t.Helper()
	master.copies.Cut()
	from := faults.Now()
	before := len(r.lost)
	await(t, "ids are placed that the replica does not hear of", func() bool {
		number := l.unused()
		if a, err := l.operate(context.Background(), f.nodes[0], number, 0); err == nil {
			r.lost[number] = a
		}
		return len(r.lost) == before+lostIDs
	})
	taken := how.fail(t, master, replica)
	await(t, "the replica is the master", replica.master)
	await(t, "no node writes to the old master", func() bool { return master.nodes.Open() == 0 || !master.master() })
	to := faults.Now()
	t.Logf("from %v the replica heard nothing, at %v the master %s, at %v all nodes had another one", from, taken, how.name, to)

	// The same ids again, for clients that would have them elsewhere.
	l.shift.Add(1000)
	for number := range r.lost {
		await(t, f.idOf(number)+" is served again", func() bool {
			_, err := l.operate(context.Background(), f.nodes[1], number, 0)
			return err == nil
		})
	}
	r.windows = append(r.windows, faults.Failover{From: from, To: to, Taken: taken, Window: f.lease})
	r.quick = r.quick || faults.Now()-from < f.lease-2*heartbeat
}

// requireInWindows ends the run, and checks that what was violated was so within
// the windows.
func (f *fleet) requireInWindows(t *testing.T, l *load, r replacements) {
	t.Helper()
	waitUntil(faults.Now() + f.lease) // for owners of before to be heard of, if they are
	f.requireRecovered(t, l)
	acks := l.end()
	f.stop()
	h := f.history(t, acks)
	outside := faults.Check(h)
	h.Failovers = r.windows
	var done []timed
	for _, w := range r.windows {
		done = append(done, timed{at: w.From, what: "a replica hears nothing any more"}, timed{at: w.To, what: "and is the master now"})
	}
	report(t, faults.Check(h), done)
	if r.quick { // else the leases of before may have been over
		require.NotEmpty(t, outside, "something was placed twice")
	}
	twice, longest := overlaps(h, r.lost, r.windows[0].Taken)
	t.Logf("answers: %v; of %d ids placed in lost writes %d were placed a second time; the first owner lived on for up to %v",
		l.statuses, len(r.lost), twice, longest)
	f.requireCleanOutputs(t)
}

// overlaps returns how many of the ids have a second owner, and for how long the
// first ones took themselves for the owner at the same time.
func overlaps(h faults.History, lost map[int]faults.Ack, taken time.Duration) (twice int, longest time.Duration) {
	for _, first := range lost {
		second, last := time.Duration(0), time.Duration(0)
		for _, e := range h.Events {
			switch {
			case e.ID != first.ID:
			case e.Life == first.Life:
				last = max(last, e.Begin)
			case e.Begin > taken && (second == 0 || e.Begin < second):
				second = e.Begin
			}
		}
		if second > 0 {
			twice++
			longest = max(longest, last-second)
		}
	}
	return twice, longest
}
