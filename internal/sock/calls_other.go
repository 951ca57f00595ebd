//go:build unix && (!linux || race || msan)

package sock

import "syscall"

// The race detector learns from these calls that what was done before a write
// comes before what is done after the read of it, and the memory sanitizer what was
// written to.

func read(fd int, p []byte) (int, error)  { return syscall.Read(fd, p) }
func write(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }

func peek(fd int) error {
	var one [1]byte
	_, _, err := syscall.Recvfrom(fd, one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err
}
