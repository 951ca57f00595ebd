package faults

import (
	"cmp"
	"maps"
	"slices"
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
// had counted before was never lost. With checkAck it follows that an operation
// sees all those of its instance that were acked before it was sent: they had
// ended before it began.
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
