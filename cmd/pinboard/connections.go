package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
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
	// fullEvery is how often the log says that connections are turned away.
	fullEvery = 10 * time.Second

	// turnedAway is sent on a connection too many, whatever it is about to ask.
	turnedAway = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 55\r\n" +
		"Retry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n" +
		`{"error":"this node has as many connections as it may"}`
)

// connections accepts only so many connections at once. Those too many are
// answered and closed: in a queue nobody would know of them.
type connections struct {
	net.Listener
	quota   *quota.Quota[netip.Prefix]
	trusted []netip.Prefix
	log     *zap.Logger
	said    time.Time // when the log last told; Accept is not called twice at once
	refused atomic.Int64
	leaves  inbound.Leaves
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
	return &connections{Listener: l, quota: quota.New[netip.Prefix](most, each), trusted: env.Options.TrustedProxies, log: log}
}

// openFiles returns how many files the process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return 1 << 30
	}
	return int(limit.Cur)
}

// Accept returns the next connection that is not one too many.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		site := l.site(conn)
		fault := l.quota.Take(site)
		if fault == nil {
			// main listens on TCP only
			client, err := inbound.New(conn.(*net.TCPConn), &l.leaves, func() { l.quota.Give(site) })
			if err == nil {
				return client, nil
			}
			_ = conn.Close() // it was closed already
			l.quota.Give(site)
			continue
		}
		l.refused.Add(1)
		if now := time.Now(); now.Sub(l.said) >= fullEvery {
			l.said = now
			l.log.Warn("connections are turned away", zap.Stringer("from", conn.RemoteAddr()), zap.Bool("all", errors.Is(fault, quota.ErrFull)))
		}
		// Fits into the buffer of a socket that is new.
		_, _ = io.WriteString(conn, turnedAway)
		_ = conn.Close()
	}
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

// serve has a server tell connections of what it does with them.
func (l *connections) serve(server *http.Server) {
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if client, ok := conn.(*inbound.Conn); ok {
			return client.Context(ctx)
		}
		return ctx // TLS, which reads ahead
	}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if client, ok := conn.(*inbound.Conn); ok && state == http.StateHijacked {
			client.HandedOver()
		}
	}
}
