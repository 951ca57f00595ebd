package e2e_test

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// balancer is one address for all nodes of a fleet, as a deployment has it: each
// connection goes to the next node that accepts it.
type balancer struct {
	url      string
	listener net.Listener
	group    sync.WaitGroup

	mu    sync.Mutex
	nodes []string
	next  int
	open  map[net.Conn]struct{}
	ended bool
}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{url: "http://" + listener.Addr().String(), listener: listener, open: map[net.Conn]struct{}{}}
	b.group.Go(b.accept)
	t.Cleanup(b.close)
	return b
}

func (b *balancer) add(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = append(b.nodes, addr)
}

func (b *balancer) remove(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = slices.DeleteFunc(b.nodes, func(other string) bool { return other == addr })
}

func (b *balancer) accept() {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.group.Go(func() { b.serve(client) })
	}
}

func (b *balancer) serve(client net.Conn) {
	defer b.forget(client)
	node := b.dial()
	if node == nil || !b.remember(client, node) {
		return
	}
	defer b.forget(node)
	var pipes sync.WaitGroup
	pipes.Go(func() { pipe(node, client) })
	pipes.Go(func() { pipe(client, node) })
	pipes.Wait()
}

// pipe copies one direction and passes its end on.
func pipe(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_, _ = to.Close(), from.Close() // a cut ends both directions
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// dial connects to the next node that accepts, nil if none does.
func (b *balancer) dial() net.Conn {
	b.mu.Lock()
	b.next++
	nodes := slices.Clone(b.nodes)
	first := b.next
	b.mu.Unlock()
	for i := range nodes {
		if conn, err := net.Dial("tcp", nodes[(first+i)%len(nodes)]); err == nil {
			return conn
		}
	}
	return nil
}

func (b *balancer) remember(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range conns {
		b.open[c] = struct{}{}
		if b.ended {
			_ = c.Close()
		}
	}
	return !b.ended
}

func (b *balancer) forget(conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, conn)
	_ = conn.Close()
}

func (b *balancer) close() {
	_ = b.listener.Close()
	b.mu.Lock()
	b.ended = true
	for c := range b.open {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.group.Wait()
}
