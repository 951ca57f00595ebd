package inbound

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// longAgo as a deadline ends what waits.
var longAgo = time.Unix(1, 0)

// lane is one direction of a connection, with its deadline. What waits is ended by
// the deadline as by that of a net.Conn; the socket has it only while something waits,
// or a former one, which is as good as long as that is no later.
type lane struct {
	// move is RawConn's Read or Write, apply the socket's own way of setting a deadline.
	move  func(func(fd uintptr) bool) error
	apply func(time.Time) error

	turn sync.Mutex // one transfer at a time; guards what follows
	step func(fd uintptr) bool
	p    []byte
	n    int
	err  error

	mu    sync.Mutex
	want  time.Time // zero: none
	set   time.Time // what the socket has
	busy  bool      // something may wait for the socket
	exact int       // the socket is used without a transfer: it must have what is wanted
	cut   bool      // what waits is to end, whatever is wanted
}

// transfer reads or writes by steps until one has no need of another.
func (l *lane) transfer(p []byte) (n int, err error) {
	l.turn.Lock()
	defer l.turn.Unlock()
	if !l.begin() {
		return 0, os.ErrDeadlineExceeded
	}
	defer l.end()
	l.p, l.n, l.err = p, 0, nil
	defer func() { l.p = nil }()
	for {
		err = l.move(l.step)
		if err == nil {
			return l.n, l.err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			if op, ok := errors.AsType[*net.OpError](err); ok {
				err = op.Err // the operation has another name here
			}
			return l.n, err
		}
		if l.over() {
			return l.n, os.ErrDeadlineExceeded
		}
	}
}

func (l *lane) begin() (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.past() {
		return false
	}
	l.busy = true
	return true
}

func (l *lane) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
}

// waits is called by a step that will wait for the socket.
func (l *lane) waits() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.arm() // a socket that is closed shows it
}

// change sets what is wanted.
func (l *lane) change(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want = t
	switch {
	case l.exact > 0:
		return l.put(t)
	case l.busy:
		return l.arm()
	}
	return nil
}

// past reports whether the deadline is over; the caller holds the lock.
func (l *lane) past() bool { return !l.want.IsZero() && time.Until(l.want) <= 0 }

// arm has the socket end what waits no later than is wanted; the caller holds the
// lock. Earlier does no harm: see over.
func (l *lane) arm() error {
	if l.want.IsZero() || !l.set.IsZero() && !l.set.After(l.want) {
		return nil
	}
	return l.put(l.want)
}

// put sets the socket's deadline; the caller holds the lock.
func (l *lane) put(t time.Time) error {
	l.set = t
	return l.apply(t)
}

// over reports whether what waited has to end, since the socket's deadline is over.
// If not, the socket gets the one that is wanted.
func (l *lane) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.past() {
		return true
	}
	_ = l.put(l.want)
	return false
}

// lend has the socket keep the deadline by itself until takeBack.
func (l *lane) lend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exact++; l.exact == 1 {
		_ = l.put(l.want)
	}
}

func (l *lane) takeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exact--
}
