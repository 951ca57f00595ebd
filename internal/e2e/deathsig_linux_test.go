package e2e_test

import (
	"os/exec"
	"syscall"
)

// endWithParent has the kernel end the program when the test process dies
// without its clean-ups, as it does when a test runs out of time.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
