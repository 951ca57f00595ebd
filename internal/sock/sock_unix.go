//go:build unix

package sock

import "syscall"

// long is the size, in bytes, from which on copying takes so long that it must not
// keep other goroutines and the garbage collector waiting.
const long = 32<<10 + 1

// Read reads what has come, at most len(p) bytes, which must not be 0. The error is a syscall.Errno,
// and syscall.EAGAIN if nothing is there; at the end it returns 0 and no error.
func Read(fd int, p []byte) (int, error) {
	for {
		n, err := read(fd, p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Write writes what there is room for, which may be less than p. The error is a
// syscall.Errno, and syscall.EAGAIN if there is room for nothing.
func Write(fd int, p []byte) (int, error) {
	for {
		n, err := write(fd, p)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// Quiet reports whether nothing has come, not the end either. What has come stays
// there.
func Quiet(fd int) bool {
	for {
		err := peek(fd)
		if err != syscall.EINTR {
			return err == syscall.EAGAIN
		}
	}
}
