package faults

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// checkAcks compares what clients were told with what instances did.
func (c *checker) checkAcks() {
	for _, op := range slices.Sorted(maps.Keys(c.served)) {
		if done := c.served[op]; len(done) > 1 {
			c.violated(DoneOnce, done[0].ID, done[1].End, "operation %d by %s and by %s", op, done[0].Life, done[1].Life)
		}
	}
	for _, op := range slices.Sorted(maps.Keys(c.acks)) {
		for _, a := range c.acks[op] {
			c.checkAck(a)
		}
	}
	c.checkCounts()
	c.checkOrder()
}

func (c *checker) checkAck(a Ack) {
	i := slices.IndexFunc(c.served[a.Op], func(e Event) bool { return e.Life == a.Life && e.ID == a.ID })
	if i < 0 {
		c.violated(AckedIsDone, a.ID, a.Received, "operation %d, acked by %s, is not in its journal", a.Op, a.Life)
		return
	}
	e := c.served[a.Op][i]
	if e.Count != a.Count || e.Epoch != a.Epoch || e.Process != a.Process {
		c.violated(AckedIsDone, a.ID, a.Received, "operation %d was acked as %+v and done as %+v", a.Op, a, e)
	}
	if e.Begin < a.Sent || e.End > a.Received {
		c.violated(AckedIsDone, a.ID, a.Received, "operation %d was done from %v to %v, but sent at %v and acked at %v",
			a.Op, e.Begin, e.End, a.Sent, a.Received)
	}
}

// checkCounts checks that each instance counted each operation once: what it
// had counted before was never lost.
func (c *checker) checkCounts() {
	lives := map[string][]Event{}
	for _, e := range c.Events {
		if e.Kind == Served {
			lives[e.Life] = append(lives[e.Life], e)
		}
	}
	for _, life := range slices.Sorted(maps.Keys(lives)) {
		done := lives[life]
		slices.SortStableFunc(done, func(a, b Event) int { return cmp.Compare(a.End, b.End) })
		for i, e := range done {
			if e.Count != i+1 {
				c.violated(AckedIsDone, e.ID, e.End, "%s counted %d with its operation number %d", life, e.Count, i+1)
				break
			}
		}
	}
}

// checkOrder checks that an operation sees all those of the same instance that
// were acked before it was sent.
func (c *checker) checkOrder() {
	lives := map[string][]Ack{}
	for _, a := range c.Acks {
		lives[a.Life] = append(lives[a.Life], a)
	}
	for _, life := range slices.Sorted(maps.Keys(lives)) {
		bySent := lives[life]
		slices.SortStableFunc(bySent, func(a, b Ack) int { return cmp.Compare(a.Sent, b.Sent) })
		byReceived := slices.SortedStableFunc(slices.Values(bySent), func(a, b Ack) int { return cmp.Compare(a.Received, b.Received) })
		before, highest, at := 0, 0, time.Duration(0)
		for _, a := range bySent {
			for before < len(byReceived) && byReceived[before].Received < a.Sent {
				if byReceived[before].Count > highest {
					highest, at = byReceived[before].Count, byReceived[before].Received
				}
				before++
			}
			if a.Count <= highest {
				c.violated(AckedIsDone, a.ID, a.Received, "%s acked count %d, though %d was acked at %v, before the request", life, a.Count, highest, at)
			}
		}
	}
}
