// Package inbound has connections to clients do what net/http's server asks of them
// for every request only where it makes a difference.
//
// For each request the server sets six deadlines, each a timer, and starts a read that
// is to tell it of a client that leaves during the handler: two switches of goroutines
// and a system call that finds nothing. A request takes less than a millisecond as a
// rule, and none of that comes to anything. A Conn sets a deadline when something waits
// for the socket, and looks for a client that leaves when the request has taken a while.
package inbound
