package hop

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// Outflow writes to a connection, and has no piece of it wait for its reader for
// longer than a pause. Where the connection is a socket, what it has room for costs
// no timer and little stack. Write is for one goroutine at a time, FinishBy for
// any, all after Init.
type Outflow struct {
	conn  net.Conn
	pause time.Duration
	raw   syscall.RawConn            // nil where there is no socket to write to
	try   func(fd uintptr) (ok bool) // send, made once

	left []byte
	err  error

	mu sync.Mutex
	by time.Time // see FinishBy; zero for no such time
}

// Init makes it what goes by the connection. See Inflow.Init for types of the host's
// own.
func (out *Outflow) Init(conn net.Conn, pause time.Duration) {
	out.conn, out.pause = conn, pause
	if out.raw = socket(conn); out.raw != nil {
		out.try = out.send
	}
}

// Write implements io.Writer.
func (out *Outflow) Write(p []byte) (int, error) {
	if out.raw == nil {
		return out.wait(p)
	}
	out.left, out.err = p, nil
	err := out.raw.Write(out.try)
	if err == nil {
		err = out.err
	}
	left := out.left
	out.left = nil
	n := len(p) - len(left)
	if err == nil && len(left) > 0 {
		var more int
		more, err = out.wait(left)
		n += more
	}
	return n, err
}

// send writes what there is room for.
func (out *Outflow) send(fd uintptr) (ok bool) {
	n, err := tryWrite(int(fd), out.left)
	out.left = out.left[n:]
	if err != syscall.EAGAIN {
		out.err = err
	}
	return true
}

// wait writes what may have to wait.
func (out *Outflow) wait(p []byte) (int, error) {
	out.deadline(time.Now().Add(out.pause))
	n, err := out.conn.Write(p)
	if err == nil {
		out.deadline(time.Time{})
	}
	return n, err
}

func (out *Outflow) deadline(t time.Time) {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.by.IsZero() {
		_ = out.conn.SetWriteDeadline(t)
	}
}

// FinishBy has writes fail that are not done then, whatever the pause.
func (out *Outflow) FinishBy(t time.Time) {
	out.mu.Lock()
	defer out.mu.Unlock()
	out.by = t
	_ = out.conn.SetWriteDeadline(t)
}
