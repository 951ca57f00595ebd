package faults

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Route says which link a new connection belongs to, by the address of who
// opened it, and whom to dial for it. A nil link resets the connection.
type Route func(peer *net.TCPAddr) (link *Link, target string)

// Gate is an address behind which a part of a fleet is reached, so that the way
// there can be broken. Its methods are safe for concurrent use.
type Gate struct {
	addr  string
	route Route
	group sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while unplugged
	pairs    map[*pair]struct{}
	closed   bool
}

// NewGate listens on a free port of the loopback address. Whoever makes a gate
// closes it.
func NewGate(route Route) (*Gate, error) {
	g := &Gate{addr: "127.0.0.1:0", route: route, pairs: map[*pair]struct{}{}}
	if err := g.Plug(); err != nil {
		return nil, err
	}
	return g, nil
}

// Addr is the gate's host and port.
func (g *Gate) Addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.addr
}

// Plug lets the gate accept connections. It does so from the start.
func (g *Gate) Plug() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil || g.closed {
		return nil
	}
	listener, err := net.Listen("tcp4", g.addr)
	if err != nil {
		return fmt.Errorf("open a gate: %w", err)
	}
	g.listener, g.addr = listener, listener.Addr().String()
	g.group.Go(func() { g.accept(listener) })
	return nil
}

// Unplug refuses connections, as the system does for a process that is gone.
// Those that are open stay so.
func (g *Gate) Unplug() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		_ = g.listener.Close()
		g.listener = nil
	}
}

// Close ends the gate and all its connections, and waits for them.
func (g *Gate) Close() {
	g.Unplug()
	g.mu.Lock()
	g.closed = true
	for p := range g.pairs {
		p.reset()
	}
	g.mu.Unlock()
	g.group.Wait()
}

func (g *Gate) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		g.group.Go(func() { g.serve(conn.(*net.TCPConn)) }) // a TCP listener's
	}
}

// dialWithin is how long the part behind a gate, on the same machine, may take
// to accept.
const dialWithin = 5 * time.Second

func (g *Gate) serve(from *net.TCPConn) {
	p := &pair{from: from, done: make(chan struct{})}
	defer p.close()
	if !g.add(p) {
		return
	}
	defer g.remove(p)
	link, target := g.route(from.RemoteAddr().(*net.TCPAddr)) // it is TCP
	if link == nil || !link.pass(p.done) {
		p.reset()
		return
	}
	to, err := net.DialTimeout("tcp4", target, dialWithin)
	if err != nil || !p.joined(to.(*net.TCPConn)) { // dialled as TCP
		p.reset()
		return
	}
	link.add(p)
	defer link.remove(p)
	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(link, p.to, p.from) })
	pumps.Go(func() { p.pump(link, p.from, p.to) })
	pumps.Wait()
}

// add keeps a connection for Close, and reports false after that.
func (g *Gate) add(p *pair) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.pairs[p] = struct{}{}
	return true
}

func (g *Gate) remove(p *pair) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.pairs, p)
}
