//go:build unix

package e2e_test

import "syscall"

const (
	freezes = syscall.SIGSTOP
	thaws   = syscall.SIGCONT
)
