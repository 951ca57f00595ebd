package redistest

import "syscall"

// childAttributes lets a server end with a test process that is killed.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
