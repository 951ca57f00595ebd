package pinboard

import (
	"net"
	"sync/atomic"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// dozer follows a direction of a stream that goes on apart, and has no goroutine while
// nothing comes. Where its connection can't be watched it is follow, with one that
// waits.
type dozer struct {
	turns   dozing
	watched *hop.Watched // nil: see follow
	state   atomic.Int32
	ended   atomic.Bool // a read that was not filled may have left something: see hop.Told
}

// dozing is a direction that can do without a goroutine.
type dozing interface {
	turns
	// poll reports whether there is something to pass on, without waiting. It need not
	// look where nothing was left the last time, unless again.
	poll(again bool) bool
}

// States of a dozer. A call of Told while a goroutine runs is kept: what came may have
// done so after that has looked.
const (
	awake  int32 = iota // a goroutine runs
	nudged              // one does, and must look again
	asleep
)

// follow begins to follow a direction, whose connection is nil if that can't be watched.
func (z *dozer) follow(t dozing, l *hop.Lookout, conn net.Conn) {
	z.turns = t
	if conn != nil {
		z.watched = l.Watch(conn, z)
	}
	if z.watched == nil {
		go follow(t)
		return
	}
	go z.run()
}

// Told implements hop.Told. It is also called when the direction is to look at what
// became of its connection, at any time and by anybody.
func (z *dozer) Told(ended bool) {
	if ended {
		z.ended.Store(true)
	}
	if z.state.Swap(nudged) == asleep {
		go z.run()
	}
}

// wake has the direction look at its connection.
func (z *dozer) wake() { z.Told(false) }

// run passes on what there is.
func (z *dozer) run() {
	for {
		z.state.Store(awake) // before it looks
		for again := true; z.turns.poll(again); again = z.ended.Load() {
			if last(z.turns) {
				z.watched.End()
				z.turns.over()
				return // and the state stays: Told starts nothing any more
			}
		}
		if z.state.CompareAndSwap(awake, asleep) {
			return
		}
	}
}
