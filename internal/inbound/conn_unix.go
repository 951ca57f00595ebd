//go:build unix

package inbound

import (
	"io"
	"os"
	"syscall"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// join has the lanes move what the socket has or takes, and wait only then.
func (c *Conn) join() error {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	c.in.move, c.in.step = raw.Read, c.onReadable
	c.out.move, c.out.step = raw.Write, c.onWritable
	return nil
}

// onReadable reads once there is something, or the end.
func (c *Conn) onReadable(fd uintptr) bool {
	n, err := sock.Read(int(fd), c.in.p)
	switch {
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

// onWritable writes until all is written.
func (c *Conn) onWritable(fd uintptr) bool {
	for l := &c.out; ; {
		n, err := sock.Write(int(fd), l.p[l.n:])
		l.n += n
		switch {
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
