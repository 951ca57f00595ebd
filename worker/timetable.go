package worker

import (
	"container/heap"
	"math"
	"time"
)

// never is later than any moment of the monotonic clock, already earlier. That
// clock may be negative: only differences count.
const (
	never   = time.Duration(math.MaxInt64)
	already = time.Duration(math.MinInt64)
)

// later returns the moment d after at: never, where the sum is out of range.
// Options and callers may give the longest Duration for "without an end".
func later(at, d time.Duration) time.Duration {
	if at > 0 && d > never-at {
		return never
	}
	return at + d
}

// timetable knows which instance is to be looked at next. It is lazy: an
// instance that is used again keeps its place, and is put back when its turn
// comes, so that a request costs nothing here. Guarded by the directory's lock.
type timetable struct {
	expired func() // called without the lock when something is due

	queue   dueQueue
	timer   *time.Timer
	armed   time.Duration // what the timer waits for, never if nothing
	stopped bool
}

// put makes sure that inst is looked at by then.
func (t *timetable) put(inst *Instance, due time.Duration) {
	switch {
	case due == never || inst.index >= 0 && inst.due <= due:
		return
	case inst.index >= 0:
		inst.due = due
		heap.Fix(&t.queue, inst.index)
	default:
		inst.due = due
		heap.Push(&t.queue, inst)
	}
	if t.timer == nil || t.queue[0].due < t.armed {
		t.arm(inst.dir.clock().mono)
	}
}

// pop takes the first instance that is due, nil if there is none.
func (t *timetable) pop(now time.Duration) *Instance {
	if len(t.queue) == 0 || t.queue[0].due > now {
		return nil
	}
	return heap.Pop(&t.queue).(*Instance) // it holds nothing else
}

func (t *timetable) remove(inst *Instance) {
	if inst.index >= 0 {
		heap.Remove(&t.queue, inst.index)
	}
}

// arm sets the timer for the first instance.
func (t *timetable) arm(now time.Duration) {
	t.armed = never
	if t.stopped || len(t.queue) == 0 {
		return
	}
	t.armed = t.queue[0].due
	if t.timer == nil {
		t.timer = time.AfterFunc(t.armed-now, t.expired)
	} else {
		t.timer.Reset(t.armed - now)
	}
}

func (t *timetable) stop() {
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// dueQueue is a heap (container/heap) by due.
type dueQueue []*Instance

func (q dueQueue) Len() int           { return len(q) }
func (q dueQueue) Less(a, b int) bool { return q[a].due < q[b].due }
func (q dueQueue) Swap(a, b int) {
	q[a], q[b] = q[b], q[a]
	q[a].index, q[b].index = a, b
}

func (q *dueQueue) Push(x any) {
	inst := x.(*Instance) // only put pushes
	inst.index = len(*q)
	*q = append(*q, inst)
}

func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	inst := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	inst.index = -1
	return inst
}
