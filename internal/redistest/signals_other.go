//go:build !unix

package redistest

import "syscall"

// There is no redis-server that these could be sent to.
const (
	freeze = syscall.Signal(0)
	thaw   = syscall.Signal(0)
)
