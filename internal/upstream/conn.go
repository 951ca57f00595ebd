package upstream

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// longAgo as a deadline ends what waits.
var longAgo = time.Unix(1, 0)

// conn is one connection to a worker. One exchange at a time uses it.
type conn struct {
	net.Conn               // what is spoken on: the wire, or TLS on it
	wire     *wire         // below TLS
	origin   *origin       // whose it is
	addr     netip.Addr    // where it leads, the zero Addr if that is no IP address
	fd       *descriptor   // nil where the bytes do not come straight from a descriptor
	idle     idleness      // tells while it is idle whether it can still be used
	since    time.Time     // idle since then
	pause    time.Duration // how long a write may wait; 0 for ever
	onAbort  func()        // abort, made once
	in       input         // what was read and not yet taken
	// What follows is of the present exchange.
	reused bool
	heard  bool  // something of an answer was read
	before int64 // what had been written before
	late   error // of a Poll, for the next fill

	mu      sync.Mutex
	aborted bool
	told    func() // of that; nil for nobody
}

// wire is a connection that counts what leaves by it.
type wire struct {
	net.Conn
	written atomic.Int64
}

// Write counts what leaves before it does: whoever looks sees too much rather
// than too little.
func (w *wire) Write(p []byte) (int, error) {
	w.written.Add(int64(len(p)))
	n, err := w.Conn.Write(p)
	w.written.Add(int64(n - len(p)))
	return n, err
}

func newConn(raw net.Conn, o *origin, pause time.Duration) *conn {
	c := &conn{wire: &wire{Conn: raw}, origin: o, pause: pause, addr: addrOf(raw.RemoteAddr())}
	c.Conn = c.wire
	c.onAbort = c.abort
	if c.fd = newDescriptor(raw, c); c.fd != nil {
		c.idle = c.fd
	} else {
		c.idle = &watcher{c: c}
	}
	return c
}

// secure has TLS spoken from now on.
func (c *conn) secure(t *tls.Conn) {
	c.Conn = t
	if c.fd != nil {
		c.fd.plain = false
	}
}

func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// begin starts an exchange.
func (c *conn) begin(reused bool) {
	c.reused, c.heard, c.before = reused, false, c.wire.written.Load()
}

// sent reports whether something of the present exchange may have left. It is
// certain only when nobody writes any more.
func (c *conn) sent() bool { return c.wire.written.Load() > c.before }

// Close ends the connection at once. The orderly end of TLS could wait for a
// worker that does not read: end is for that.
func (c *conn) Close() error { return c.wire.Close() }

// end ends an idle connection in good order, which may take seconds.
func (c *conn) end() { _ = c.Conn.Close() }

// abort ends the exchange from another goroutine: whatever waits for the
// connection fails. It can't be used after that.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.SetDeadline(longAgo) != nil { // one of the host's that can't
		_ = c.Close()
	}
	if c.told != nil {
		c.told()
	}
}

// readBy sets a deadline for reading, the zero time for none, unless the
// exchange was aborted.
func (c *conn) readBy(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.aborted {
		_ = c.SetReadDeadline(t)
	}
}

// rawConn is the connection as a caller may have it for good: the very one that
// was dialled, or TLS on it. It has no deadline left of what was written, unless the
// exchange was aborted.
func (c *conn) rawConn() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pause > 0 && !c.aborted {
		_ = c.SetWriteDeadline(time.Time{})
	}
	if c.Conn == net.Conn(c.wire) {
		return c.wire.Conn
	}
	return c.Conn
}

const (
	// smallBuffer holds the heads of nearly all messages, and short bodies.
	smallBuffer = 4 << 10
	// largeBuffer is what is read into while much comes.
	largeBuffer = 32 << 10
)

var (
	smalls = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	larges = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// getBuffer returns a buffer for at least about n bytes.
func getBuffer(n int) []byte {
	if n > smallBuffer {
		return larges.Get().(*[largeBuffer]byte)[:] // see New
	}
	return smalls.Get().(*[smallBuffer]byte)[:] // see New
}

func putBuffer(b []byte) {
	switch cap(b) {
	case smallBuffer:
		smalls.Put((*[smallBuffer]byte)(b[:smallBuffer]))
	case largeBuffer:
		larges.Put((*[largeBuffer]byte)(b[:largeBuffer]))
	}
}

// input is what was read of a connection. It has a buffer only while there is
// something in it, or a read is about to fill it.
type input struct {
	buf  []byte // nil without one
	r, w int    // what is there is buf[r:w]
	want int    // what the next buffer should hold
}

func (in *input) len() int { return in.w - in.r }

func (in *input) bytes() []byte { return in.buf[in.r:in.w] }

// space returns where to read into: at least one byte.
func (in *input) space() []byte {
	switch {
	case in.buf == nil:
		in.buf = getBuffer(in.want)
	case in.r == in.w:
		in.r, in.w = 0, 0
	case in.w == len(in.buf) && in.r > 0:
		in.w = copy(in.buf, in.bytes())
		in.r = 0
	case in.w == len(in.buf): // a long head; whoever reads it has a limit
		longer := make([]byte, 2*len(in.buf))
		in.w = copy(longer, in.bytes())
		putBuffer(in.buf)
		in.buf = longer
	}
	return in.buf[in.w:]
}

// took says that n bytes were read into space.
func (in *input) took(n int) {
	in.w += n
	if n > 0 {
		in.want = 0
		if in.w == len(in.buf) {
			in.want = largeBuffer // much comes
		}
	}
}

// take takes n bytes, which stay valid until the next space or drop.
func (in *input) take(n int) []byte {
	p := in.buf[in.r : in.r+n]
	in.r += n
	return p
}

// drop gives the buffer back if there is nothing in it.
func (in *input) drop() {
	if in.buf != nil && in.r == in.w {
		putBuffer(in.buf)
		in.buf, in.r, in.w = nil, 0, 0
	}
}

// fill waits until there is something more to take. io.EOF is the orderly end.
// What comes before anything of the request has left is no answer to it.
func (c *conn) fill() error {
	if c.late != nil {
		return c.late
	}
	c.in.drop()
	first := !c.heard
	var n int
	var err error
	if c.plain() {
		n, err = c.fd.read()
	} else {
		n, err = c.Read(c.in.space())
		c.in.took(n)
	}
	if n > 0 {
		c.heard = true
		if first && !c.sent() {
			return errUnasked
		}
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// write sends p. What there is no room for goes in pieces, of which none may wait longer
// than the pause; progress, if not nil, is called after each of them.
func (c *conn) write(p []byte, progress func()) (err error) {
	for {
		if c.plain() {
			if p, err = c.fd.write(p); err != nil || len(p) == 0 {
				return err
			}
		}
		piece := p[:min(len(p), largeBuffer)]
		if err := c.writePiece(piece); err != nil {
			return err
		}
		if progress != nil {
			progress()
		}
		if p = p[len(piece):]; len(p) == 0 {
			return nil
		}
	}
}

func (c *conn) writePiece(p []byte) error {
	if c.pause > 0 {
		c.writeBy(time.Now().Add(c.pause))
	}
	_, err := c.Write(p)
	if err == nil && c.pause > 0 && c.plain() {
		c.writeBy(time.Time{}) // which what there is room for goes without
	}
	return err
}

// writeBy sets a deadline for writing, the zero time for none, unless the exchange was
// aborted.
func (c *conn) writeBy(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.aborted {
		_ = c.SetWriteDeadline(t)
	}
}

// plain reports whether there is a descriptor, and it carries the messages themselves.
func (c *conn) plain() bool { return c.fd != nil && c.fd.plain }

// alive reports whether an idle connection can be used: nothing has come by it,
// not its end either.
func (c *conn) alive() bool { return c.idle.stop() }

// looksItself reports whether sending the request looks at the connection, so
// that nobody has to before.
func (c *conn) looksItself(req *Request) bool { return c.plain() && req.Body == nil }

// idleness watches an idle connection.
type idleness interface {
	// start is called when the connection becomes idle.
	start()
	// stop ends that, and reports whether nothing came meanwhile.
	stop() bool
}

// watcher is for a connection without a descriptor that could be looked at: it
// waits in a Read for what should not come. It ends with the connection.
type watcher struct {
	c    *conn
	done chan struct{}
	err  error
}

func (w *watcher) start() {
	w.done = make(chan struct{})
	go func() {
		defer close(w.done)
		var one [1]byte
		_, w.err = w.c.Read(one[:])
	}()
}

func (w *watcher) stop() bool {
	if w.c.SetReadDeadline(longAgo) != nil {
		_ = w.c.Close() // else it would wait for the worker
	}
	<-w.done
	return os.IsTimeout(w.err) && w.c.SetReadDeadline(time.Time{}) == nil
}
