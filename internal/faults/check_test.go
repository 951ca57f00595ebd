package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

const ms = time.Millisecond

// Makers of a record: all about the id "x". Process A has the lives A/1, A/2, …
func granted(process string, sent, end time.Duration) faults.Event {
	return faults.Event{Kind: faults.Granted, Process: process, Begin: sent, At: sent + ms, End: end}
}

func served(life string, epoch, op int64, count int, begin, end time.Duration) faults.Event {
	return faults.Event{Kind: faults.Served, Process: life[:1], ID: "x", Life: life, Epoch: epoch, Op: op, Count: count, Begin: begin, End: end}
}

func ticked(life string, epoch int64, at time.Duration) faults.Event {
	return faults.Event{Kind: faults.Ticked, Process: life[:1], ID: "x", Life: life, Epoch: epoch, Begin: at}
}

func gaveUp(process, id string, at time.Duration) faults.Event {
	return faults.Event{Kind: faults.GaveUp, Process: process, ID: id, Begin: at}
}

func kept(process string, at time.Duration, ids ...string) faults.Event {
	return faults.Event{Kind: faults.Kept, Process: process, Begin: at, IDs: ids}
}

func acked(e faults.Event) faults.Ack {
	return faults.Ack{ID: e.ID, Op: e.Op, Process: e.Process, Life: e.Life, Epoch: e.Epoch, Count: e.Count, Sent: e.Begin - ms, Received: e.End + ms}
}

// events are those of a record in which A and B have leases of a second from 0
// and from 1000 ms on, one after the other, and whatever else.
func events(more ...faults.Event) []faults.Event {
	return append([]faults.Event{granted("A", 0, 1000*ms), granted("B", 1000*ms, 2000*ms)}, more...)
}

func TestWhatIsRight(t *testing.T) {
	t.Parallel()
	late := served("A/1", 5, 2, 2, 900*ms, 1300*ms)
	for name, h := range map[string]faults.History{
		"nothing": {},
		"the next owner after the lease": {Events: events(
			served("A/1", 5, 1, 1, 10*ms, 20*ms), served("B/1", 6, 2, 1, 1010*ms, 1020*ms))},
		"the next owner after a release": {Events: append(events(granted("B", 0, 1000*ms)),
			served("A/1", 5, 1, 1, 10*ms, 20*ms), gaveUp("A", "x", 30*ms), served("B/1", 6, 2, 1, 40*ms, 50*ms))},
		"the next owner after a deregistration": {Events: append(events(granted("B", 0, 1000*ms)),
			ticked("A/1", 5, 10*ms), gaveUp("A", "", 30*ms), ticked("B/1", 6, 40*ms))},
		"the next owner of what was not listed again": {Events: append(events(granted("B", 0, 1000*ms)),
			ticked("A/1", 5, 10*ms), kept("A", 30*ms, "y"), ticked("B/1", 6, 40*ms))},
		"a raised epoch in one life": {Events: events(
			served("A/1", 5, 1, 1, 10*ms, 20*ms), served("A/1", 6, 2, 2, 30*ms, 40*ms))},
		"a lease that was renewed before the process decided": {Events: []faults.Event{
			granted("A", 5*ms, 1000*ms), {Kind: faults.Ticked, Process: "A", ID: "x", Life: "A/1", Epoch: 5, Begin: 5 * ms, Entered: 7 * ms}}},
		"two requests side by side while the epoch is raised": {Events: events(
			served("A/1", 6, 2, 2, 10*ms, 31*ms), served("A/1", 5, 1, 1, 11*ms, 30*ms))},
		"the same process again": {Events: events(
			served("A/1", 5, 1, 1, 10*ms, 20*ms), gaveUp("A", "x", 25*ms), served("A/2", 6, 2, 1, 30*ms, 40*ms))},
		"an operation that was under way in a frozen process": {Events: events(
			served("A/1", 5, 1, 1, 10*ms, 20*ms), late, served("B/1", 6, 3, 1, 1010*ms, 1020*ms))},
		"and was answered by a process that does not guard that": {
			Events: events(served("A/1", 5, 1, 1, 10*ms, 20*ms), late, served("B/1", 6, 3, 1, 1010*ms, 1020*ms)),
			Acks:   []faults.Ack{acked(late)}, Unguarded: map[string]bool{"A": true}},
		"an owner whose placement a failover lost, in its window": {
			Events:    append(events(granted("A", 900*ms, 2000*ms), granted("B", 0, 1000*ms)), ticked("A/1", 5, 100*ms), ticked("B/1", 6, 400*ms), ticked("A/1", 5, 1500*ms)),
			Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 300 * ms, Window: 500 * ms}}},
		"an owner whose renewal a failover lost, in its window": {
			Events:    append(events(granted("B", 0, 1000*ms)), ticked("A/1", 5, 10*ms), ticked("B/1", 6, 700*ms), ticked("A/1", 5, 800*ms)),
			Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 300 * ms, Window: 500 * ms}}},
		"an owner placed by the old master, which was still written to, after the new one's": {
			Events:    append(events(granted("A", 0, 2000*ms), granted("B", 0, 1000*ms)), ticked("A/1", 5, 250*ms), ticked("B/1", 6, 260*ms), ticked("A/1", 5, 270*ms)),
			Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 200 * ms, Window: 500 * ms}}},
		"acks in any order of requests that overlap": {
			Events: events(served("A/1", 5, 1, 1, 10*ms, 21*ms), served("A/1", 5, 2, 2, 9*ms, 22*ms)),
			Acks:   []faults.Ack{acked(served("A/1", 5, 1, 1, 10*ms, 21*ms)), acked(served("A/1", 5, 2, 2, 9*ms, 22*ms))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, faults.Check(h))
		})
	}
}

func TestWhatIsWrong(t *testing.T) {
	t.Parallel()
	first := served("A/1", 5, 1, 1, 10*ms, 20*ms)
	late := served("A/1", 5, 2, 2, 900*ms, 1300*ms)
	lost := first
	lost.Count = 2
	for name, c := range map[string]struct {
		faults.History
		rules []faults.Rule
	}{
		"a worker that ignores its lease": {
			faults.History{Events: events(first, ticked("A/1", 5, 1500*ms))}, []faults.Rule{faults.WithinLease}},
		"a worker that ignores its lease while another one serves": {
			faults.History{Events: events(first, served("B/1", 6, 2, 1, 1100*ms, 1110*ms), ticked("A/1", 5, 1500*ms))},
			[]faults.Rule{faults.OneOwner, faults.WithinLease}},
		"a worker that answers past its lease": {
			faults.History{Events: events(first, late), Acks: []faults.Ack{acked(late)}}, []faults.Rule{faults.WithinLease}},
		"a worker that answers when another one serves": {
			faults.History{Events: events(first, late, served("B/1", 6, 3, 1, 1100*ms, 1110*ms)), Acks: []faults.Ack{acked(late)}},
			[]faults.Rule{faults.OneOwner, faults.WithinLease}},
		"a lease that was renewed only after the process had decided": {
			faults.History{Events: []faults.Event{
				granted("A", 5*ms, 1000*ms), {Kind: faults.Ticked, Process: "A", ID: "x", Life: "A/1", Epoch: 5, Begin: 4 * ms, Entered: 5 * ms}}},
			[]faults.Rule{faults.WithinLease}},
		"a process without any lease": {
			faults.History{Events: []faults.Event{ticked("C/1", 5, 10*ms)}}, []faults.Rule{faults.WithinLease}},
		"a store that places early, the owner being silent": {
			faults.History{Events: events(granted("B", 0, 900*ms), first, served("B/1", 6, 2, 1, 500*ms, 510*ms))},
			[]faults.Rule{faults.NoEarlyPlacement}},
		"a store that places early, on a release of before": {
			faults.History{Events: events(granted("B", 0, 900*ms), gaveUp("A", "x", 5*ms), first, served("B/1", 6, 2, 1, 500*ms, 510*ms))},
			[]faults.Rule{faults.NoEarlyPlacement}},
		"a store that places early, on the release of another id": {
			faults.History{Events: events(granted("B", 0, 900*ms), first, gaveUp("A", "y", 30*ms), kept("A", 40*ms, "x"), served("B/1", 6, 2, 1, 500*ms, 510*ms))},
			[]faults.Rule{faults.NoEarlyPlacement}},
		"two owners at once": {
			faults.History{Events: events(granted("B", 0, 900*ms), first, ticked("B/1", 6, 500*ms), ticked("A/1", 5, 600*ms))},
			[]faults.Rule{faults.OneOwner, faults.NoEarlyPlacement}},
		"two instances in one process at once": {
			faults.History{Events: events(first, served("A/2", 6, 2, 1, 30*ms, 40*ms), served("A/1", 5, 3, 2, 50*ms, 60*ms))},
			[]faults.Rule{faults.OneOwner}},
		"an epoch that repeats": {
			faults.History{Events: events(first, served("B/1", 5, 2, 1, 1100*ms, 1110*ms))}, []faults.Rule{faults.EpochsRise}},
		"an epoch that falls": {
			faults.History{Events: events(first, served("B/1", 4, 2, 1, 1100*ms, 1110*ms))}, []faults.Rule{faults.EpochsRise}},
		"an epoch that repeats in one process": {
			faults.History{Events: events(first, gaveUp("A", "x", 25*ms), served("A/2", 5, 2, 1, 30*ms, 40*ms))}, []faults.Rule{faults.EpochsRise}},
		"an epoch that falls in one life": {
			faults.History{Events: events(first, served("A/1", 4, 2, 2, 30*ms, 40*ms))}, []faults.Rule{faults.EpochsRise}},
		"an epoch that comes back after two owners": {
			faults.History{Events: append(events(granted("C", 2000*ms, 3000*ms)),
				served("A/1", 7, 1, 1, 10*ms, 20*ms), served("B/1", 8, 2, 1, 1100*ms, 1110*ms), served("C/1", 7, 3, 1, 2100*ms, 2110*ms))},
			[]faults.Rule{faults.EpochsRise}},
		"an owner that is placed anew long after a failover, with a placement of before": {
			faults.History{
				Events:    append(events(granted("B", 0, 1000*ms)), ticked("A/1", 5, 10*ms), ticked("B/1", 6, 900*ms)),
				Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 300 * ms, Window: 500 * ms}},
			}, []faults.Rule{faults.NoEarlyPlacement}},
		"an owner whose placement a failover lost, and that is asked all the same": {
			faults.History{
				Events: append(events(granted("A", 900*ms, 2000*ms), granted("B", 0, 1000*ms)),
					ticked("A/1", 5, 100*ms), ticked("B/1", 6, 400*ms), served("A/1", 5, 1, 1, 1500*ms, 1510*ms)),
				Acks:      []faults.Ack{acked(served("A/1", 5, 1, 1, 1500*ms, 1510*ms))},
				Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 300 * ms, Window: 500 * ms}},
			}, []faults.Rule{faults.OneOwner, faults.NoEarlyPlacement}},
		"a second owner before there was another master": {
			faults.History{
				Events: append(events(granted("A", 0, 2000*ms), granted("B", 0, 1000*ms)),
					ticked("A/1", 5, 100*ms), ticked("B/1", 6, 150*ms), ticked("A/1", 5, 170*ms)),
				Failovers: []faults.Failover{{From: 50 * ms, To: 300 * ms, Taken: 200 * ms, Window: 500 * ms}},
			}, []faults.Rule{faults.OneOwner, faults.NoEarlyPlacement}},
		"an ack that nobody has done": {
			faults.History{Events: events(), Acks: []faults.Ack{acked(first)}}, []faults.Rule{faults.AckedIsDone}},
		"an ack of another count": {
			faults.History{Events: events(first), Acks: []faults.Ack{acked(lost)}}, []faults.Rule{faults.AckedIsDone}},
		"an ack before it was done": {
			faults.History{Events: events(first), Acks: []faults.Ack{acked(served("A/1", 5, 1, 1, 10*ms, 11*ms))}}, []faults.Rule{faults.AckedIsDone}},
		"an operation that was done twice": {
			faults.History{Events: events(first, served("A/1", 5, 1, 2, 30*ms, 40*ms))}, []faults.Rule{faults.DoneOnce}},
		"an instance that forgot an operation": {
			faults.History{Events: events(first, served("A/1", 5, 2, 1, 30*ms, 40*ms))}, []faults.Rule{faults.AckedIsDone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var rules []faults.Rule
			for _, v := range faults.Check(c.History) {
				rules = append(rules, v.Rule)
			}
			require.Subset(t, rules, c.rules)
			require.Subset(t, c.rules, rules, "and nothing else")
		})
	}
}
