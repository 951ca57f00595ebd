package hop

import "net"

// Told is who hears of a connection that something has come, or that it has ended.
// It is called with a lock: it must not wait for anything, nor call the Lookout.
type Told interface {
	// Told is called once at the beginning if something is there, and each time
	// that more comes. ended says that the other side has ended, or this one: there may be
	// something before that, but nothing comes after it. It is also said of what has urgent
	// data in it. From then on a read that was not filled may have left something.
	Told(ended bool)
}

// Lookout looks out for what comes by many connections, with one goroutine and one
// file for all of them, which are there while something is watched. The zero Lookout
// is ready, and safe for concurrent use. Only Linux has one.
type Lookout struct{ lookout }

// Watch has t told of a connection until the Watched is ended. It returns nil where
// that is not possible: the connection is not a socket itself (see Inflow.Init), the
// system has no means, or no file left for it. Meanwhile nobody may wait in a Read of it.
// What ends here, by Close or by a deadline for reading, is told of within seconds.
func (l *Lookout) Watch(conn net.Conn, t Told) *Watched { return l.watch(conn, t) }
