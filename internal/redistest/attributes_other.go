//go:build !linux

package redistest

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }
