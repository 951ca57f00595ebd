package hop

import (
	"io"
	"net"
	"syscall"
)

// Inflow is what comes by a connection. Where the connection is a socket it
// holds no buffer while nothing comes, so that thousands of idle streams hold
// none. It is for one goroutine at a time, after Init.
type Inflow struct {
	conn net.Conn
	raw  syscall.RawConn // nil where there is no socket to look at
	// receive and comes, made once.
	try, look func(fd uintptr) (ok bool)

	buf  *Buffer // nil without one
	size int64   // of the next one
	n    int     // what the last read brought
	err  error

	waited bool // see Await
}

// Init makes it what comes by the connection. A type of the host's own may
// read in a way of its own, and so its Read is used, unless the type has the
// method
//
//	Socket() *net.TCPConn
//
// which says that its Read and Write are those of the socket.
func (in *Inflow) Init(conn net.Conn) {
	in.conn, in.size = conn, -1
	if in.raw = socket(conn); in.raw != nil {
		in.try, in.look = in.receive, in.comes
	}
}

// Await returns when Next has something to do, on a small stack and without a
// buffer. It may also return at once.
func (in *Inflow) Await() {
	if in.raw != nil {
		in.done()
		in.Drop()
		in.waited = false
		_ = in.raw.Read(in.look) // Next finds the same error
	}
}

// comes reports whether something has come: it looks only once, and then it is told.
func (in *Inflow) comes(fd uintptr) bool {
	if in.waited {
		return true
	}
	in.waited = true
	return !Quiet(int(fd))
}

// Next waits until something has come and returns it; it is good until the next
// call of Next or Drop. io.EOF is the orderly end. The error may come together
// with something.
func (in *Inflow) Next() ([]byte, error) {
	in.done()
	if in.raw == nil {
		n, err := in.conn.Read(in.space())
		in.n = n
		return in.buf.Space()[:n], err
	}
	in.err = nil
	if err := in.raw.Read(in.try); err != nil {
		in.Drop()
		return nil, err
	}
	return in.buf.Space()[:in.n], in.err
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
	in.n, in.err = tryRead(int(fd), in.space())
	if in.err == syscall.EAGAIN {
		in.Drop()
		return false
	}
	if in.n == 0 && in.err == nil {
		in.err = io.EOF
	}
	return true
}
