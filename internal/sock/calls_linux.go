//go:build !race && !msan

package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The flags have these calls return at once even if somebody has made the socket a
// blocking one, as os.File.Fd does to the socket that net.TCPConn.File shares.

func read(fd int, p []byte) (int, error) {
	if len(p) >= long {
		return syscall.Read(fd, p)
	}
	return call(unix.SYS_RECVFROM, fd, p, unix.MSG_DONTWAIT)
}

func write(fd int, p []byte) (int, error) {
	if len(p) >= long {
		return syscall.Write(fd, p)
	}
	return call(unix.SYS_SENDTO, fd, p, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func peek(fd int) error {
	var one [1]byte
	_, err := call(unix.SYS_RECVFROM, fd, one[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return err
}

// call makes a system call of which the runtime knows nothing.
func call(number uintptr, fd int, p []byte, flags uintptr) (int, error) {
	n, _, errno := syscall.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
