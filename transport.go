package pinboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// idleTimeout is shorter than the 5 s after which uvicorn closes an idle
	// connection: it must not do so under a request (protocol §5).
	idleTimeout = 4 * time.Second
	// continueTimeout is how long a body is held back for a worker that never
	// answers "Expect: 100-continue".
	continueTimeout = 5 * time.Second
	// maxIdlePerWorker is more than are in use at once, as a rule: above it each request
	// makes a connection. No more are idle than were in use at once within idleTimeout.
	maxIdlePerWorker = 1024
)

// newPool returns the connections to workers for the data plane, with the
// settings of the transport that newTransport made, and the limits.
func newPool(t *http.Transport, limits *Limits) *upstream.Pool {
	return upstream.New(upstream.Config{
		Dial: t.DialContext, TLS: t.TLSClientConfig, HandshakeTimeout: t.TLSHandshakeTimeout,
		IdleTimeout: t.IdleConnTimeout, MaxIdlePerOrigin: t.MaxIdleConnsPerHost, MaxIdle: t.MaxIdleConns,
		MaxPerOrigin: t.MaxConnsPerHost, DisableKeepAlives: t.DisableKeepAlives,
		ContinueTimeout: t.ExpectContinueTimeout, WritePause: limits.WritePause,
		MaxHeaderBytes: int(t.MaxResponseHeaderBytes),
	})
}

// newTransport returns the model for connections to workers, with TLS settings
// of the host's, which may be nil, and the limits. It dials directly, adds no
// header, decodes nothing and follows no redirect (protocol §5).
func newTransport(model *http.Transport, limits *Limits) *http.Transport {
	t := &http.Transport{}
	if model != nil {
		t = model.Clone()
	}
	t.Proxy, t.GetProxyConnectHeader, t.ProxyConnectHeader = nil, nil, nil
	// A connection that these made would get around the check of its address.
	//lint:ignore SA1019 deprecated, and so not to be used
	t.Dial, t.DialTLS, t.DialTLSContext = nil, nil, nil
	dial := t.DialContext
	if dial == nil {
		dial = directDial(nil)
	}
	t.DialContext = dialer(dial, limits)
	onlyHTTP1(t)
	t.DisableCompression = true
	t.TLSHandshakeTimeout = limits.TLSTimeout
	t.ResponseHeaderTimeout = 0 // each attempt has its own
	t.ExpectContinueTimeout = cmp.Or(t.ExpectContinueTimeout, continueTimeout)
	t.MaxIdleConnsPerHost = cmp.Or(t.MaxIdleConnsPerHost, maxIdlePerWorker)
	t.MaxResponseHeaderBytes = limits.AnswerHeaderBytes
	if t.IdleConnTimeout == 0 || t.IdleConnTimeout > idleTimeout {
		t.IdleConnTimeout = idleTimeout
	}
	return t
}

// onlyHTTP1 has workers asked for HTTP/1.1 alone, whatever the model would
// speak. HTTP/2 has no upgrades, and lets requests share a connection that is
// closed when one of them may not use it.
func onlyHTTP1(t *http.Transport) {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	if t.TLSClientConfig != nil {
		// Asked for with HTTP/2 in the list, by the host or by net/http itself
		// when it copied the model, a worker would answer in it.
		t.TLSClientConfig.NextProtos = nil
	}
}

// dialer checks once more where a connection leads, for a dialer of the host's
// that had no check.
func dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error), limits *Limits) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		timed, cancel := context.WithTimeout(ctx, limits.DialTimeout)
		defer cancel()
		conn, err := dial(timed, network, addr)
		if err != nil {
			return nil, err
		}
		if err := backendOf(ctx).check(addrOf(conn.RemoteAddr())); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// directDial dials by a resolver, nil for the machine's. Of the addresses of a
// name, those that are not allowed are passed over before anything is sent to
// them.
func directDial(resolver *net.Resolver) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{Resolver: resolver, ControlContext: checkBeforeDial}).DialContext
}

// checkBeforeDial is a net.Dialer's ControlContext.
func checkBeforeDial(ctx context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read the address to dial: %w", err)
	}
	return backendOf(ctx).check(ap.Addr().Unmap())
}

// backend is what a request knows of where its connection may lead.
type backend struct {
	rules  []string
	pinned string
	addr   netip.Addr // where the connection of a probe led
	// choice is set when the name has an address that is allowed.
	choice atomic.Bool
}

type backendKey struct{}

// within has a dial's context know where it may lead.
func (b *backend) within(ctx context.Context) context.Context {
	return context.WithValue(ctx, backendKey{}, b)
}

// reached notes where a connection leads that may be used.
func (b *backend) reached(addr netip.Addr) error {
	b.addr = addr
	return nil
}

// address returns where the connection led; "" if there was none, or it has no
// address.
func (b *backend) address() string {
	if !b.addr.IsValid() {
		return ""
	}
	return b.addr.String()
}

func backendOf(ctx context.Context) *backend {
	b, _ := ctx.Value(backendKey{}).(*backend)
	return b
}

var errAddrNotAllowed = errors.New("the advertised name leads to an address that is not allowed")

// check returns nil if a connection may lead to addr. A connection without an
// address, such as a pipe of a host's own dialer, has nothing to check.
func (b *backend) check(addr netip.Addr) error {
	if b == nil || !addr.IsValid() {
		return nil
	}
	if addr.String() == b.pinned {
		b.choice.Store(true)
		return nil
	}
	rules, err := passport.ParseBackendRules(b.rules)
	if err != nil {
		return fmt.Errorf("read the backend rules: %w", err)
	}
	if !rules.AllowsDial(addr, b.pinned) {
		return errAddrNotAllowed
	}
	b.choice.Store(true)
	return nil
}

func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// closeWrite ends one direction of a connection.
func closeWrite(conn any) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
