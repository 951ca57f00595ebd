package faults

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Link is the way from one part of a fleet to another one: all connections that
// the one has opened to the other. The zero Link lets everything through. Its
// methods are safe for concurrent use.
type Link struct {
	mu    sync.Mutex
	cut   chan struct{} // closed when mended, nil while whole
	delay time.Duration
	pairs map[*pair]struct{}
}

// Cut holds everything back, new connections too, until Mend: to either side it
// looks like a network that loses all packets. Nobody is told of an end.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut == nil {
		l.cut = make(chan struct{})
	}
}

// Delay lets everything through so much later, either way. 0 ends that.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// Mend ends Cut and Delay. What was held back goes on its way.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut != nil {
		close(l.cut)
		l.cut = nil
	}
	l.delay = 0
}

// Reset ends all connections that are open, without a farewell.
func (l *Link) Reset() {
	for _, p := range l.open() {
		p.reset()
	}
}

// HalfClose ends one direction of all connections that are open, in an orderly
// way: the part that was dialled, or the one that dialled, sees an end while it
// may still send.
func (l *Link) HalfClose(dialled bool) {
	for _, p := range l.open() {
		if dialled {
			_ = p.to.CloseWrite()
		} else {
			_ = p.from.CloseWrite()
		}
	}
}

// Open returns how many connections are open.
func (l *Link) Open() int { return len(l.open()) }

func (l *Link) open() (open []*pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		open = append(open, p)
	}
	return open
}

// pass waits until something may go through, and reports false if given up on.
func (l *Link) pass(done <-chan struct{}) bool {
	for first := true; ; first = false {
		l.mu.Lock()
		cut, delay := l.cut, l.delay
		l.mu.Unlock()
		switch {
		case cut != nil:
			select {
			case <-cut:
			case <-done:
				return false
			}
		case delay > 0 && first:
			timer := time.NewTimer(delay)
			select {
			case <-timer.C:
			case <-done:
				timer.Stop()
				return false
			}
		default:
			return true
		}
	}
}

func (l *Link) add(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pairs == nil {
		l.pairs = map[*pair]struct{}{}
	}
	l.pairs[p] = struct{}{}
}

func (l *Link) remove(p *pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pairs, p)
}

// pair is a connection through a gate: the one that was accepted and the one
// that was dialled for it.
type pair struct {
	from *net.TCPConn
	to   *net.TCPConn // does not change once it is there

	mu    sync.Mutex
	ended bool
	done  chan struct{} // closed when ended
}

// joined completes the pair, and reports false if it has ended meanwhile.
func (p *pair) joined(to *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		_ = to.Close()
		return false
	}
	p.to = to
	return true
}

// reset ends both connections at once. What is on its way is dropped.
func (p *pair) reset() { p.end(true) }

// close ends both connections in an orderly way.
func (p *pair) close() { p.end(false) }

func (p *pair) end(abruptly bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	close(p.done)
	for _, c := range []*net.TCPConn{p.from, p.to} {
		if c == nil {
			continue
		}
		if abruptly {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
}

// pump carries one direction, and hands on how it ends.
func (p *pair) pump(l *Link, to, from *net.TCPConn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !l.pass(p.done) {
			return
		}
		if n > 0 {
			if _, wrote := to.Write(buffer[:n]); wrote != nil {
				err = wrote
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
		} else {
			p.reset()
		}
		return
	}
}
