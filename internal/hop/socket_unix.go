//go:build unix

package hop

import (
	"net"
	"os"
	"syscall"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// socket returns the descriptor that a connection reads from, nil if it does
// something of its own in between.
func socket(conn net.Conn) syscall.RawConn {
	var below syscall.Conn
	switch conn := conn.(type) {
	case *net.TCPConn:
		below = conn
	case *net.UnixConn:
		below = conn
	case interface{ Socket() *net.TCPConn }:
		tcp := conn.Socket()
		if tcp == nil {
			return nil
		}
		below = tcp
	default:
		return nil
	}
	raw, err := below.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// tryRead reads what is there. The error is syscall.EAGAIN if that is nothing.
func tryRead(fd int, p []byte) (int, error) {
	n, err := sock.Read(fd, p)
	if err != nil && err != syscall.EAGAIN {
		err = os.NewSyscallError("read", err)
	}
	return n, err
}

// tryWrite writes what there is room for. The error is syscall.EAGAIN if that is not
// all.
func tryWrite(fd int, p []byte) (int, error) {
	n, err := sock.Write(fd, p)
	switch {
	case err != nil && err != syscall.EAGAIN:
		err = os.NewSyscallError("write", err)
	case n < len(p):
		err = syscall.EAGAIN
	}
	return n, err
}
