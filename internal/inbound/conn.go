package inbound

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Conn is a connection to a client. As a net.Conn it is used like the one below it,
// but for this: while a server's handler runs, a Read of one byte may return at once,
// with nothing and without an error; the context that Context has returned is
// cancelled instead, a moment after the client has left. Who takes the connection
// over from the server must call HandedOver before anything is read.
type Conn struct {
	tcp    *net.TCPConn
	in     lane
	out    lane
	leaves *Leaves
	close  func() error

	// What follows is guarded by in.mu.
	gone   context.CancelFunc // nil: nobody is told that the client leaves
	handed bool
	unread bool // a Read returned nothing, and none has come since
	since  uint32
	noted  bool
	look   *look // for a client that leaves; also one that has ended, until it is asked
}

// New returns a Conn. closed is called once, when it is closed.
func New(tcp *net.TCPConn, leaves *Leaves, closed func()) (*Conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &Conn{tcp: tcp, leaves: leaves}
	c.in.move, c.in.apply, c.in.step = raw.Read, tcp.SetReadDeadline, c.onReadable
	c.out.move, c.out.apply, c.out.step = raw.Write, tcp.SetWriteDeadline, c.onWritable
	c.close = sync.OnceValue(func() error {
		defer closed()
		return tcp.Close()
	})
	return c, nil
}

// Context returns a context for what is done for the client: it is cancelled when the
// connection is closed or, during a handler, the client has left.
func (c *Conn) Context(ctx context.Context) context.Context {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	ctx, c.gone = context.WithCancel(ctx)
	return ctx
}

// HandedOver says that the connection is the server's no more.
func (c *Conn) HandedOver() {
	c.in.mu.Lock()
	c.handed = true
	c.in.mu.Unlock()
	c.endLook()
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (n int, err error) {
	if len(p) == 0 || len(p) == 1 && c.putOff() {
		return 0, nil
	}
	if n, err, ok := c.looked(p); ok {
		return n, err
	}
	n, err = c.in.transfer(p)
	return n, c.fault("read", err)
}

// onReadable reads once there is something, or the end.
func (c *Conn) onReadable(fd uintptr) bool {
	for {
		n, err := syscall.Read(int(fd), c.in.p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			c.in.waits()
			return false
		case err != nil:
			c.in.err = os.NewSyscallError("read", err)
		case n == 0:
			c.in.err = io.EOF
		default:
			c.in.n = n
		}
		return true
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	n, err = c.out.transfer(p)
	return n, c.fault("write", err)
}

// onWritable writes until all is written.
func (c *Conn) onWritable(fd uintptr) bool {
	for l := &c.out; ; {
		n, err := syscall.Write(int(fd), l.p[l.n:])
		l.n += max(n, 0)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			l.waits()
			return false
		case err != nil:
			l.err = os.NewSyscallError("write", err)
			return true
		case l.n == len(l.p):
			return true
		}
	}
}

// ReadFrom implements io.ReaderFrom: the kernel may move what comes by another socket.
func (c *Conn) ReadFrom(src io.Reader) (n int64, err error) {
	c.out.turn.Lock()
	defer c.out.turn.Unlock()
	c.out.lend()
	defer c.out.takeBack()
	return c.tcp.ReadFrom(src)
}

// fault returns an error as a *net.TCPConn would.
func (c *Conn) fault(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.in.change(t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.out.change(t) }

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := c.close()
	c.in.mu.Lock()
	gone := c.gone
	c.in.mu.Unlock()
	if gone != nil {
		gone()
	}
	return err
}

// CloseWrite ends what is sent to the client.
func (c *Conn) CloseWrite() error { return c.tcp.CloseWrite() }

// SetLinger is that of a *net.TCPConn.
func (c *Conn) SetLinger(sec int) error { return c.tcp.SetLinger(sec) }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// Socket returns the connection below, to be read and written instead of this one from
// now on; the deadlines of both are the same. It is nil where something of what the
// client has sent was read already, which only Read can return.
func (c *Conn) Socket() *net.TCPConn {
	c.in.mu.Lock()
	early := c.look != nil
	c.in.mu.Unlock()
	if early {
		return nil
	}
	c.in.lend()
	c.out.lend()
	return c.tcp
}
