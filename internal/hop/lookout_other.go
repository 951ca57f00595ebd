//go:build !linux

package hop

import "net"

type lookout struct{}

func (*lookout) watch(net.Conn, Told) *Watched { return nil }

// Watched is a connection that is watched.
type Watched struct{}

// End ends that.
func (*Watched) End() {}
