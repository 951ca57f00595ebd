package faults

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Rule names what was violated.
type Rule string

const (
	// OneOwner: two instances served one id at overlapping times.
	OneOwner Rule = "one owner"
	// EpochsRise: a later instance of an id has no higher placement epoch.
	EpochsRise Rule = "epochs rise"
	// WithinLease: a process served or answered without a lease as granted.
	WithinLease Rule = "within the lease"
	// NoEarlyPlacement: an id was served elsewhere while its owner's lease
	// ran, and the owner had not given it up.
	NoEarlyPlacement Rule = "no early placement"
	// AckedIsDone: what a client was told is not what an instance did.
	AckedIsDone Rule = "acked is done"
	// DoneOnce: an operation was carried out twice.
	DoneOnce Rule = "done once"
)

// Violation is a promise that was not kept.
type Violation struct {
	Rule Rule
	ID   string
	At   time.Duration // of Now
	What string
}

// String tells the violation on one line.
func (v Violation) String() string {
	return fmt.Sprintf("%v: %s: id %q: %s", v.At, v.Rule, v.ID, v.What)
}

// Check returns what in the history violates pinboard's promises, in order of
// time; nothing if all were kept.
//
// Every time in an Event is taken so that it proves something: a process that
// served a request, or ticked, was entitled to the id at a moment not before Begin,
// and not after Entered. So of two instances of one id, all that the one
// began must lie before all that the other began. An operation under way when
// its process was frozen ends late; that counts only if a client was told of it,
// and only in a process that guards its answers (History.Unguarded).
func Check(h History) []Violation {
	c := newChecker(h)
	for _, id := range slices.Sorted(maps.Keys(c.spans)) {
		spans := c.spans[id]
		slices.SortFunc(spans, func(a, b *span) int { return cmp.Compare(a.first, b.first) })
		c.checkOwners(id, spans)
		c.checkEpochs(id, spans)
		c.checkEarly(id, spans)
	}
	c.checkLeases()
	c.checkAcks()
	slices.SortStableFunc(c.found, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return c.found
}

// span is what one instance did in one placement.
type span struct {
	process, life string
	epoch         int64
	first, last   time.Duration // when the first and the last of it began
	end           time.Duration // of the last of it whose answer counted
	asked         time.Duration // when the last of it began that a client was told of
	firstEnd      time.Duration
}

func (s *span) String() string {
	return fmt.Sprintf("%s (epoch %d, from %v to %v)", s.life, s.epoch, s.first, s.end)
}

// ownership is what a process had of pinboard.
type ownership struct {
	grants  []Event // in order of At, End being the furthest so far
	givenUp []Event // GaveUp and Kept
}

// covered returns until when the process had a lease, as it knew at t.
func (o *ownership) covered(t time.Duration) time.Duration {
	n, _ := slices.BinarySearchFunc(o.grants, t, func(g Event, t time.Duration) int {
		if g.At <= t {
			return -1
		}
		return 1
	})
	if n == 0 {
		return 0
	}
	return o.grants[n-1].End
}

// entitled reports whether the process had a lease when it decided to do e.
func (o *ownership) entitled(e Event) bool {
	return e.Begin < o.covered(e.Begin) || slices.ContainsFunc(o.grants, func(g Event) bool {
		return e.Begin <= g.At && g.At <= e.Entered && g.At < g.End
	})
}

// gaveUp reports whether the process gave the id up in that time.
func (o *ownership) gaveUp(id string, from, to time.Duration) bool {
	return slices.ContainsFunc(o.givenUp, func(e Event) bool {
		if e.Begin < from || e.Begin > to {
			return false
		}
		if e.Kind == Kept {
			return !slices.Contains(e.IDs, id)
		}
		return e.ID == "" || e.ID == id
	})
}

type checker struct {
	History
	acks      map[int64][]Ack    // by operation
	served    map[int64][]Event  // by operation
	spans     map[string][]*span // by id
	processes map[string]*ownership
	found     []Violation
}

func newChecker(h History) *checker {
	c := &checker{
		History: h, acks: map[int64][]Ack{}, served: map[int64][]Event{},
		spans: map[string][]*span{}, processes: map[string]*ownership{},
	}
	for _, a := range h.Acks {
		c.acks[a.Op] = append(c.acks[a.Op], a)
	}
	for _, e := range h.Events {
		c.take(e)
	}
	for _, o := range c.processes {
		slices.SortStableFunc(o.grants, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
		for i := 1; i < len(o.grants); i++ {
			o.grants[i].End = max(o.grants[i].End, o.grants[i-1].End)
		}
	}
	return c
}

func (c *checker) take(e Event) {
	o := c.processes[e.Process]
	if o == nil {
		o = &ownership{}
		c.processes[e.Process] = o
	}
	switch e.Kind {
	case Granted:
		o.grants = append(o.grants, e)
	case GaveUp, Kept:
		o.givenUp = append(o.givenUp, e)
	case Served:
		c.served[e.Op] = append(c.served[e.Op], e)
		c.extend(e)
	case Ticked:
		c.extend(e)
	}
}

// extend adds an event to the span that it belongs to.
func (c *checker) extend(e Event) {
	i := slices.IndexFunc(c.spans[e.ID], func(s *span) bool { return s.life == e.Life && s.epoch == e.Epoch })
	end := max(e.Begin, e.End)
	if i < 0 {
		s := &span{process: e.Process, life: e.Life, epoch: e.Epoch, first: e.Begin, last: e.Begin, firstEnd: end, end: e.Begin}
		c.spans[e.ID] = append(c.spans[e.ID], s)
		i = len(c.spans[e.ID]) - 1
	}
	s := c.spans[e.ID][i]
	s.first, s.last = min(s.first, e.Begin), max(s.last, e.Begin)
	s.firstEnd = min(s.firstEnd, end)
	s.end = max(s.end, e.Begin)
	if c.answered(e) {
		s.end = max(s.end, e.End)
	}
	if c.acked(e) {
		s.asked = max(s.asked, e.Begin)
	}
}

func (c *checker) acked(e Event) bool {
	return e.Kind == Served && slices.ContainsFunc(c.acks[e.Op], func(a Ack) bool { return a.Life == e.Life })
}

// lost reports whether the store forgot in a failover that the id was a's, or
// that its lease was renewed, and placed it at b therefore.
func (c *checker) lost(a, b *span) bool {
	return slices.ContainsFunc(c.Failovers, func(f Failover) bool {
		placementLost := a.first >= f.From && a.first <= f.To && b.first >= f.Taken
		renewalLost := b.first >= f.Taken && b.first <= f.To+f.Window
		return (placementLost || renewalLost) && a.asked <= b.first+f.Window
	})
}

// answered reports whether a client was told of an operation by a process that
// tells only what it may.
func (c *checker) answered(e Event) bool {
	return !c.Unguarded[e.Process] && c.acked(e)
}

func (c *checker) violated(rule Rule, id string, at time.Duration, format string, args ...any) {
	c.found = append(c.found, Violation{Rule: rule, ID: id, At: at, What: fmt.Sprintf(format, args...)})
}

// checkOwners looks for instances that overlap.
func (c *checker) checkOwners(id string, spans []*span) {
	for i, b := range spans {
		for _, a := range spans[:i] {
			if a.life != b.life && a.end >= b.first && !c.lost(a, b) {
				c.violated(OneOwner, id, b.first, "%v and %v", a, b)
			}
		}
	}
}

// checkEpochs compares each placement with the highest one before it.
func (c *checker) checkEpochs(id string, spans []*span) {
	var highest *span
	for _, s := range spans {
		switch {
		case highest == nil || s.epoch > highest.epoch:
			highest = s
		case s.life != highest.life:
			c.violated(EpochsRise, id, s.first, "%v after %v", s, highest)
		case highest.firstEnd < s.last: // and not just side by side
			c.violated(EpochsRise, id, s.last, "%v went back to epoch %d", highest, s.epoch)
		}
	}
}

// checkEarly looks at each change from one process to another one.
func (c *checker) checkEarly(id string, spans []*span) {
	for i, b := range spans[min(1, len(spans)):] {
		a := spans[i]
		if a.process == b.process || c.lost(a, b) {
			continue
		}
		o := c.processes[a.process]
		if until := o.covered(b.first); until > b.first && !o.gaveUp(id, a.first, b.first) {
			c.violated(NoEarlyPlacement, id, b.first, "%v, while %s had a lease until %v", b, a.life, until)
		}
	}
}

// checkLeases looks for what was done without a lease.
func (c *checker) checkLeases() {
	for _, e := range c.Events {
		if e.Kind != Served && e.Kind != Ticked {
			continue
		}
		o := c.processes[e.Process]
		if !o.entitled(e) {
			c.violated(WithinLease, e.ID, e.Begin, "%s %s, its lease as granted ended at %v", e.Life, e.Kind, o.covered(e.Begin))
			continue
		}
		if until := o.covered(e.End); c.answered(e) && e.End >= until {
			c.violated(WithinLease, e.ID, e.End, "%s answered, its lease as granted ended at %v", e.Life, until)
		}
	}
}
