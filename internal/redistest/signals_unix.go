//go:build unix

package redistest

import "syscall"

const (
	freeze = syscall.SIGSTOP
	thaw   = syscall.SIGCONT
)
