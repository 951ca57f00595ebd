//go:build !unix

package e2e_test

import "syscall"

// There is no process that these could be sent to.
const (
	freezes = syscall.Signal(0)
	thaws   = syscall.Signal(0)
)
