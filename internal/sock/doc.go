// Package sock reads from and writes to sockets that are not waited for. What it
// calls returns at once, so on Linux the runtime is not told of it as of a call
// that may block: that would cost more than some of the calls, would have a thread
// of the runtime's woken by the first request after a moment without any, and would
// let another thread take over whenever a call lasts longer than 20 µs.
package sock
