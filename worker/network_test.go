package worker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// pipeListener is a network in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

var errRefusedConnection = errors.New("connection refused")

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, errRefusedConnection
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// network serves the worker over pipes, and returns a client for it.
func (h *harness) network() *http.Client {
	l := newPipeListener()
	server := &http.Server{Handler: http.HandlerFunc(h.w.serveOwn)} // as Serve does
	go func() { _ = server.Serve(l) }()
	transport := &http.Transport{DialContext: l.dial}
	h.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		synctest.Wait()
	})
	return &http.Client{Transport: transport}
}

// outgoing makes a request as pinboard's proxy would.
func (h *harness) outgoing(ctx context.Context, path string) *http.Request {
	h.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://worker:8000"+path, nil)
	require.NoError(h.t, err)
	r.Header.Set(wire.HeaderAttestation, h.mint(attest.Claims{}))
	r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(h.epoch, 10))
	return r
}
