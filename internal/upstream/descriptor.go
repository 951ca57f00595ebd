//go:build unix

package upstream

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// descriptor is the socket below a connection. Its methods save what the usual
// ones would cost on every request: a read that is known to be in vain, because
// the worker can't have answered yet, and a buffer while there is nothing to
// put in it.
type descriptor struct {
	syscall.RawConn
	c *conn
	// plain: the socket carries the messages themselves, not TLS.
	plain bool

	// onReadable, comes, onPoll and onPeek, made once.
	readable func(fd uintptr) bool
	look     func(fd uintptr) bool
	poll     func(fd uintptr) bool
	peek     func(fd uintptr)
	waited   bool // see await
	dry      bool // the last read took all there was

	up    []byte // to be written
	upErr error
	push  func(fd uintptr) bool // onWritable, made once

	out  []byte // to be written before the read
	n    int    // read
	err  error
	idle bool // see stop
	one  [1]byte
}

// newDescriptor returns the descriptor of a socket that is the bottom of c, nil
// if raw is no socket. A type of the host's is none, even if it has the methods
// of one that it embeds: what it does on its own must not be gone around.
func newDescriptor(raw net.Conn, c *conn) *descriptor {
	var socket syscall.Conn
	switch raw := raw.(type) {
	case *net.TCPConn:
		socket = raw
	case *net.UnixConn:
		socket = raw
	default:
		return nil
	}
	rc, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	d := &descriptor{RawConn: rc, c: c, plain: true}
	d.readable = d.onReadable
	d.peek = d.onPeek
	return d
}

// exchange writes p, and then waits for what comes back, which is to be found
// in the connection's input. Where only some of p could be written, it returns
// what is left. A connection that was idle is looked at first: the error is
// errNotIdle, and nothing was written, if something came meanwhile.
func (d *descriptor) exchange(p []byte) (left []byte, err error) {
	d.out = p
	_, err = d.read()
	left, d.out = d.out, nil
	return left, err
}

// read waits until something was read into the connection's input.
func (d *descriptor) read() (int, error) {
	d.n, d.err = 0, nil
	if err := d.Read(d.readable); err != nil {
		return 0, err
	}
	if d.n > 0 {
		d.c.heard = true
	}
	return d.n, d.err
}

// onReadable does what there is to do until it would have to wait: then it
// returns false, and is called again when the socket may be read from.
func (d *descriptor) onReadable(fd uintptr) bool {
	if d.out != nil {
		// Looked at only now: what comes from here on wakes whoever waits, and
		// what has come is no answer to what is about to be sent.
		if d.c.reused && !sock.Quiet(int(fd)) {
			d.err = errNotIdle
			return true
		}
		if d.send(int(fd)); d.out != nil {
			return true // that failed, or did not fit
		}
		return false // the answer can't be there yet
	}
	space := d.c.in.space()
	n, err := sock.Read(int(fd), space)
	switch {
	case err == syscall.EAGAIN:
		d.c.in.drop()
		return false
	case err != nil:
		d.err = os.NewSyscallError("read", err)
	case n == 0:
		d.err = io.EOF
	default:
		d.n = n
		d.dry = n < len(space)
		d.c.in.took(n)
	}
	return true
}

// send writes what is to be written before the read.
func (d *descriptor) send(fd int) {
	if d.out, d.err = d.c.wire.tryWrite(fd, d.out); len(d.out) == 0 {
		d.out = nil
	}
}

// tryWrite writes of p what there is room for, and returns what is left.
func (w *wire) tryWrite(fd int, p []byte) (left []byte, err error) {
	w.written.Add(int64(len(p)))
	n, err := sock.Write(fd, p)
	w.written.Add(int64(n - len(p)))
	if err != nil && err != syscall.EAGAIN {
		return p, os.NewSyscallError("write", err)
	}
	return p[n:], nil
}

// write writes of p what there is room for, and returns what is left. It may be called
// while another goroutine reads.
func (d *descriptor) write(p []byte) (left []byte, err error) {
	if d.push == nil { // few need it
		d.push = d.onWritable
	}
	d.up, d.upErr = p, nil
	err = d.Write(d.push)
	if err == nil {
		err = d.upErr
	}
	left, d.up = d.up, nil
	return left, err
}

func (d *descriptor) onWritable(fd uintptr) bool {
	d.up, d.upErr = d.c.wire.tryWrite(int(fd), d.up)
	return true
}

// peruse is read, but does not wait: the error is errNothing if nothing is there.
func (d *descriptor) peruse() (int, error) {
	if d.poll == nil { // few need it
		d.poll = d.onPoll
	}
	d.n, d.err = 0, nil
	if err := d.Read(d.poll); err != nil {
		return 0, err
	}
	return d.n, d.err
}

func (d *descriptor) onPoll(fd uintptr) bool {
	if !d.onReadable(fd) {
		d.dry, d.err = true, errNothing
	}
	return true
}

// await returns when the socket may be read from, or the wait has failed.
func (d *descriptor) await() {
	d.waited = false
	if d.look == nil { // few need it
		d.look = d.comes
	}
	_ = d.Read(d.look) // whoever reads then finds the same error
}

// comes reports whether something has come: it looks only once, and then it is told.
func (d *descriptor) comes(fd uintptr) bool {
	if d.waited {
		return true
	}
	d.waited = true
	return !sock.Quiet(int(fd))
}

// start implements idleness: the socket is looked at when it is needed.
func (*descriptor) start() {}

// stop implements idleness.
func (d *descriptor) stop() bool {
	if !d.plain && !d.drained() {
		return false
	}
	d.idle = false
	err := d.Control(d.peek)
	return err == nil && d.idle
}

// drained reports whether TLS has handed out all that it has read of the socket.
func (d *descriptor) drained() bool {
	_ = d.c.SetReadDeadline(longAgo)
	_, err := d.c.Read(d.one[:])
	return os.IsTimeout(err) && d.c.SetReadDeadline(time.Time{}) == nil
}

func (d *descriptor) onPeek(fd uintptr) { d.idle = sock.Quiet(int(fd)) }
