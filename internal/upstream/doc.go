// Package upstream is the client side of HTTP/1.1 towards workers: a pool of
// connections on which a request runs on its caller's goroutine.
//
// net/http's Transport has two goroutines on every connection, and hands each
// request from one to the other and back. A proxy that does little else pays
// more for that than for all the rest of its work. Here the caller writes the
// head, waits, and reads the answer itself; only a request with a body has a
// goroutine of its own that sends it, because a worker may answer before it has
// read all of that.
//
// What comes from a worker is read strictly: an answer that two readers could
// take for different ones is an error, not a guess.
package upstream
