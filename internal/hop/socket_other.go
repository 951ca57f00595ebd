//go:build !unix

package hop

import (
	"errors"
	"net"
	"syscall"
)

// socket returns nil: here connections are read as any other.
func socket(net.Conn) syscall.RawConn { return nil }

func tryRead(int, []byte) (int, error) { return 0, errors.ErrUnsupported }

func tryWrite(int, []byte) (int, error) { return 0, errors.ErrUnsupported }
