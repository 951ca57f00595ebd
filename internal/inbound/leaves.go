package inbound

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// lookAfter is how long, at least, a request takes before its client is looked after;
// it may be twice as long.
const lookAfter = 5 * time.Millisecond

// Leaves looks for clients that leave during their requests. Its zero value is ready;
// it has a timer only while there are requests.
type Leaves struct {
	round atomic.Uint32 // counts ticks

	mu         sync.Mutex
	young, old []*Conn // noted in the present round, and in the one before
	spare      []*Conn
	timer      *time.Timer // nil while there is nothing
}

// note has the connection asked by a tick whether its request takes long.
func (l *Leaves) note(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.young = append(l.young, c)
	if l.timer == nil {
		l.timer = time.AfterFunc(lookAfter, l.tick)
	}
}

func (l *Leaves) tick() {
	due := l.turn()
	now := l.round.Load()
	for i, c := range due {
		c.due(now)
		due[i] = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare = due[:0]
}

// turn begins another round, and returns who is to be asked.
func (l *Leaves) turn() (due []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round.Add(1)
	due, l.old, l.young, l.spare = l.old, l.young, l.spare, nil
	if l.timer = nil; len(due)+len(l.old) > 0 {
		l.timer = time.AfterFunc(lookAfter, l.tick)
	}
	return due
}

// look waits for something to come of a client that is not expected to send anything.
type look struct {
	done chan struct{}
	one  [1]byte
	n    int
	err  error
}

// putOff reports whether a read of one byte, which the server makes to be told of a
// client that leaves, can do without: somebody looks if the request takes long.
func (c *Conn) putOff() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	// Any other read of one byte is made again when it brings nothing, once.
	if c.gone == nil || c.handed || c.unread || c.look != nil || c.in.past() {
		return false
	}
	c.unread, c.since = true, c.leaves.round.Load()
	if !c.queued {
		c.queued = true
		c.leaves.note(c)
	}
	return true
}

// due begins to look after the client if its request has gone on for a whole round.
func (c *Conn) due(round uint32) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.queued = false
	switch {
	case !c.unread || c.handed || c.look != nil:
	case round-c.since < 2:
		c.queued = true
		c.leaves.note(c)
	default:
		c.look = &look{done: make(chan struct{})}
		go c.await(c.look)
	}
}

func (c *Conn) await(k *look) {
	k.n, k.err = c.in.transfer(k.one[:])
	c.in.mu.Lock()
	left := k.err != nil && !c.in.cut // any other error is as good as an end, as it is to the server
	gone := c.gone
	c.in.mu.Unlock()
	close(k.done)
	if left {
		gone()
	}
}

// endLook ends the look for a client that leaves, if there is one, and returns it if
// it has found anything.
func (c *Conn) endLook() *look {
	c.in.mu.Lock()
	c.unread = false
	k := c.look
	if k != nil {
		c.in.cut = true
		_ = c.in.put(longAgo)
	}
	c.in.mu.Unlock()
	if k == nil {
		return nil
	}
	<-k.done
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.cut = false
	if errors.Is(k.err, os.ErrDeadlineExceeded) && !c.in.past() {
		c.look = nil // that was for us
		return nil
	}
	return k
}

// looked returns what a look for the client has read, if that is anything.
func (c *Conn) looked(p []byte) (n int, err error, ok bool) { //nolint:revive // as Read's
	k := c.endLook()
	if k == nil {
		return 0, nil, false
	}
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.look = nil
	return copy(p, k.one[:k.n]), c.fault("read", k.err), true
}
