// Package memnet is a network inside of one process: connections that no other
// process can make, see or listen to.
//
// Unlike those of net.Pipe they have buffers. Two sides that both write before
// they read, as the ends of a WebSocket may, would wait for each other for ever
// over net.Pipe, and do not over any real network.
package memnet

import (
	"context"
	"net"
	"sync"
)

// Listener is a net.Listener that Dial connects to.
type Listener struct {
	dialled chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// NewListener returns a listener, which must be closed.
func NewListener() *Listener {
	return &Listener{dialled: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial returns a new connection as soon as it was accepted. Its error is ctx's,
// or net.ErrClosed.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	near, far := Pipe()
	select {
	case l.dialled <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept returns the next connection that is dialled; net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.dialled:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial. Connections that were accepted stay open.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address without meaning.
func (l *Listener) Addr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory" }
