package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/inbound"
	"github.com/pinboard-go/pinboard/internal/quota"
)

const (
	maxConnections = 20_000
	// shares is how many addresses it takes at least to have all connections: a few that
	// take what they can leave room for the workers, whose leases depend on it.
	shares = 8
	// otherFiles is how many files the process needs for itself, the pipes of long
	// answers among them.
	otherFiles = 256
	// manyFiles is how many files may be open where nothing bounds them.
	manyFiles = 1 << 30
	// fullEvery is how often the log says that connections are turned away, or cut.
	fullEvery = 10 * time.Second

	// turnedAway is sent on a connection too many, whatever it is about to ask.
	turnedAway = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 55\r\n" +
		"Retry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n" +
		`{"error":"this node has as many connections as it may"}`
)

// connections accepts only so many connections at once. One too many takes the place
// of one of the network that has the most, if that has more than its own; else it is
// answered and closed: in a queue nobody would know of it.
type connections struct {
	net.Listener
	quota   *quota.Quota[netip.Prefix]
	most    int // there may be
	each    int // address may have
	crowd   *crowd
	trusted []netip.Prefix
	log     *zap.Logger
	refused atomic.Int64
	leaves  inbound.Leaves
	cut     atomic.Int64

	// When the log last told; Accept is not called twice at once.
	saidRefused, saidCut time.Time
}

// limitConnections bounds the connections of a listener as the environment says.
func limitConnections(l net.Listener, env *pinboard.Environment, log *zap.Logger) *connections {
	most := env.MaxConnections
	fits := (openFiles() - otherFiles) / 2 // each may need one to a worker
	switch {
	case most == 0:
		most = max(1, min(maxConnections, fits))
	case most > fits:
		log.Warn("PINBOARD_MAX_CONNECTIONS is more than the process has files for: raise the limit of open files",
			zap.Int("connections", most), zap.Int("fit", fits))
	}
	each := env.MaxConnectionsPerAddress
	if each == 0 {
		each = max(1, most/shares)
	}
	return &connections{
		Listener: l, quota: quota.New[netip.Prefix](most, each), most: most, each: each,
		crowd: newCrowd(), trusted: env.Options.TrustedProxies, log: log,
	}
}

// Accept returns the next connection that is not one too many.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		site := l.site(conn)
		share, fault := l.quota.Take(site)
		// For a trusted proxy nobody is cut: nothing says for whom it comes, and in front
		// of all clients it would take the connections of the workers, one by one.
		if errors.Is(fault, quota.ErrFull) && site.IsValid() && l.makeRoom(site) {
			share, fault = l.quota.Take(site)
		}
		if fault == nil {
			if client := l.count(conn.(*net.TCPConn), site, share); client != nil { // main listens on TCP only
				return client, nil
			}
			continue
		}
		l.refused.Add(1)
		if now := time.Now(); now.Sub(l.saidRefused) >= fullEvery {
			l.saidRefused = now
			l.log.Warn("connections are turned away", zap.Stringer("from", conn.RemoteAddr()), zap.Bool("all", errors.Is(fault, quota.ErrFull)))
		}
		// Fits into the buffer of a socket that is new.
		_, _ = io.WriteString(conn, turnedAway)
		_ = conn.Close()
	}
}

// makeRoom cuts a connection of the network that has the most, if that has more than
// the site's own network would have. So whoever has few connections gets one more,
// and who comes again after a cut does not.
func (l *connections) makeRoom(site netip.Prefix) bool {
	one := l.crowd.excess(networkOf(site))
	if one == nil {
		return false
	}
	if !one.idle.Load() {
		_ = one.SetLinger(0) // an answer that is cut must not look whole
	}
	_ = one.Close()
	l.cut.Add(1)
	if now := time.Now(); now.Sub(l.saidCut) >= fullEvery {
		l.saidCut = now
		l.log.Warn("connections are cut for those of others", zap.Stringer("network", one.network))
	}
	return true
}

// count returns the connection as one that counts until it is closed; nil if it is
// closed already.
func (l *connections) count(conn *net.TCPConn, site netip.Prefix, share *quota.Share) *counted {
	c := &counted{network: networkOf(site)}
	c.idle.Store(true)
	c.keep = func() {}
	client, err := inbound.New(conn, &l.leaves, func() {
		c.keep()
		l.quota.Give(share)
	})
	if err != nil {
		_ = conn.Close()
		l.quota.Give(share)
		return nil
	}
	c.Conn = client
	if site.IsValid() { // what is no trusted proxy's can be cut
		l.crowd.join(c)
		c.keep = sync.OnceFunc(func() { l.crowd.leave(c) })
	}
	return c
}

// context is an http.Server's ConnContext.
func (l *connections) context(ctx context.Context, conn net.Conn) context.Context {
	c := countedBelow(conn)
	if c == nil {
		return ctx
	}
	ctx = context.WithValue(ctx, connectionKey{}, c)
	if conn != net.Conn(c) {
		return ctx // TLS, which reads ahead
	}
	return c.Context(ctx)
}

// follow is an http.Server's ConnState: it notes which connections have a request, and
// tells those that are taken over.
func (l *connections) follow(conn net.Conn, state http.ConnState) {
	c := countedBelow(conn)
	if c == nil {
		return
	}
	if state == http.StateHijacked && conn == net.Conn(c) {
		c.HandedOver()
	}
	c.idle.Store(state == http.StateNew || state == http.StateIdle)
}

// countedBelow returns the connection, which TLS may be spoken on; nil for another one.
func countedBelow(conn net.Conn) *counted {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	c, _ := conn.(*counted)
	return c
}

// site is who a connection counts for; the zero Prefix for a trusted proxy.
func (l *connections) site(conn net.Conn) netip.Prefix {
	ap, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(l.trusted, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return netip.Prefix{}
	}
	return quota.Site(addr)
}

// counted is a connection that counts until it is closed.
type counted struct {
	*inbound.Conn
	network netip.Prefix
	idle    atomic.Bool // nothing of a request has come, or none since the last answer
	keep    func()      // has it never be cut; it is nobody's in the crowd then
}
