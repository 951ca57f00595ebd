//go:build !unix

package inbound

import "io"

// join has the lanes move by the socket's own Read and Write, which do not tell that
// they wait: here the socket always has the deadline.
func (c *Conn) join() error {
	if _, err := c.tcp.SyscallConn(); err != nil {
		return err
	}
	c.in.move, c.out.move = c.in.by(c.tcp.Read), c.out.by(c.tcp.Write)
	c.in.lend()
	c.out.lend()
	return nil
}

func (l *lane) by(move func(p []byte) (int, error)) func(func(uintptr) bool) error {
	return func(func(uintptr) bool) error {
		n, err := move(l.p[l.n:])
		l.n += n
		if err == io.EOF {
			l.err = err
			return nil
		}
		return err
	}
}
