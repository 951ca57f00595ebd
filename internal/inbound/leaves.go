package inbound

import (
	"errors"
	"os"

	"github.com/pinboard-go/pinboard/internal/rounds"
)

// Leaves looks for clients that leave during their requests. Its zero value is ready.
type Leaves struct{ rounds.Rounds[*Conn] }

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
	c.unread, c.since = true, c.leaves.Now()
	if !c.noted {
		c.noted = true
		c.leaves.Note(c)
	}
	return true
}

// Due begins to look after the client if its request takes long. It is for Leaves.
func (c *Conn) Due(now uint32) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.noted = false
	switch {
	case !c.unread || c.handed || c.look != nil:
	case !rounds.Long(c.since, now):
		c.noted = true
		c.leaves.Note(c)
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
