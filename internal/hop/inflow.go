package hop

import (
	"io"
	"net"
	"syscall"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// Inflow is what comes by a connection. Where the connection is a socket it
// holds no buffer while nothing comes, so that thousands of idle streams hold
// none. It is for one goroutine at a time, after Init.
type Inflow struct {
	conn net.Conn
	raw  syscall.RawConn // nil where there is no socket to look at
	// receive, comes and peruse, made when they are needed.
	try, look, poll func(fd uintptr) (ok bool)

	buf  *Buffer // nil without one
	size int64   // of the next one
	n    int     // what the last read brought
	err  error

	waited bool // see Await
	// polled: there is what Poll has read. drained: the last read took all there was.
	polled, drained bool
}

// Init makes it what comes by the connection. A type of the host's own may
// read in a way of its own, and so its Read is used, unless the type has the
// method
//
//	Socket() *net.TCPConn
//
// which says that its Read and Write are those of the socket, unless it is nil.
func (in *Inflow) Init(conn net.Conn) {
	in.conn, in.size = conn, -1
	in.raw = socket(conn)
}

// Await returns when Next has something to do, on a small stack and without a
// buffer. It may also return at once.
func (in *Inflow) Await() {
	if in.n > 0 && !in.drained {
		return // more is likely there, and a look costs as much as a read
	}
	if in.raw != nil {
		in.done()
		in.Drop()
		in.waited = false
		if in.look == nil {
			in.look = in.comes
		}
		_ = in.raw.Read(in.look) // Next finds the same error
	}
}

// comes reports whether something has come: it looks only once, and then it is told.
func (in *Inflow) comes(fd uintptr) bool {
	if in.waited {
		return true
	}
	in.waited = true
	return !sock.Quiet(int(fd))
}

// Poll reports whether Next has something without waiting, and holds no buffer if not. It
// does not look where the last read took all there was, unless again: that is for what has
// come since, of which a Lookout tells, and for the end. The connection must be a socket.
func (in *Inflow) Poll(again bool) bool {
	if in.polled {
		return true
	}
	in.done()
	if in.drained && !again {
		in.Drop()
		return false
	}
	if in.poll == nil {
		in.poll = in.peruse
	}
	in.err = nil
	if err := in.raw.Read(in.poll); err != nil {
		in.Drop()
		in.err = err
	}
	in.polled = in.err != syscall.EAGAIN
	return in.polled
}

// peruse reads what is there, and does not wait.
func (in *Inflow) peruse(fd uintptr) bool {
	if !in.receive(fd) {
		in.err = syscall.EAGAIN
	}
	return true
}

// Next waits until something has come and returns it; it is good until the next
// call of Next or Drop. io.EOF is the orderly end. The error may come together
// with something.
func (in *Inflow) Next() ([]byte, error) {
	if in.polled {
		in.polled = false
		return in.got(), in.err
	}
	in.done()
	if in.raw == nil {
		n, err := in.conn.Read(in.space())
		in.n = n
		return in.buf.Space()[:n], err
	}
	if in.try == nil {
		in.try = in.receive
	}
	in.err = nil
	if err := in.raw.Read(in.try); err != nil {
		in.Drop()
		return nil, err
	}
	return in.got(), in.err
}

// got is what the last read brought.
func (in *Inflow) got() []byte {
	if in.buf == nil {
		return nil
	}
	return in.buf.Space()[:in.n]
}

// Drop gives back what is held. Next may be called again.
func (in *Inflow) Drop() {
	if in.buf != nil {
		in.buf.Put()
		in.buf = nil
	}
	in.n = 0
}

// done is done with what the last read brought, and chooses the size of the
// buffer by it.
func (in *Inflow) done() {
	if in.n == 0 {
		return
	}
	if in.n >= SmallBuffer {
		in.size = LargeBuffer
	} else {
		in.size = -1
	}
	in.buf.Took(in.n)
	in.n = 0
}

func (in *Inflow) space() []byte {
	if in.buf == nil {
		in.buf = GetBuffer(in.size)
	}
	return in.buf.Space()
}

// receive reads what is there, and gives the buffer back before it has to wait.
func (in *Inflow) receive(fd uintptr) (ok bool) {
	space := in.space()
	in.n, in.err = tryRead(int(fd), space)
	in.drained = in.n < len(space)
	if in.err == syscall.EAGAIN {
		in.Drop()
		return false
	}
	if in.n == 0 && in.err == nil {
		in.err = io.EOF
	}
	return true
}
