package upstream

import "golang.org/x/sys/unix"

// waiting returns how many bytes of what has come can be read.
func (d *descriptor) waiting() (n int64) {
	_ = d.Control(func(fd uintptr) {
		if there, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = int64(there)
		}
	})
	return n
}
