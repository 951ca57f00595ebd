// Package redistest runs real redis-servers for tests: standalone ones, and
// clusters of three masters. Servers listen on the loopback address or a unix
// socket, keep their files in a temporary directory and end with the test. A
// machine without redis-server fails the test; it is never skipped.
package redistest
