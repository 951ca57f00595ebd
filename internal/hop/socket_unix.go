//go:build unix

package hop

import (
	"net"
	"os"
	"syscall"
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
	for {
		n, err := syscall.Read(fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, syscall.EAGAIN
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		}
		return n, nil
	}
}

// tryWrite writes what there is room for. The error is syscall.EAGAIN if that is not
// all.
func tryWrite(fd int, p []byte) (int, error) {
	for {
		n, err := syscall.Write(fd, p)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, syscall.EAGAIN
		case err != nil:
			return 0, os.NewSyscallError("write", err)
		case n < len(p):
			return n, syscall.EAGAIN
		}
		return n, nil
	}
}

// Quiet reports whether nothing has come by a socket, not its end either. What has
// come stays there.
func Quiet(fd int) bool {
	var one [1]byte
	for {
		_, _, err := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err != syscall.EINTR {
			return err == syscall.EAGAIN
		}
	}
}
