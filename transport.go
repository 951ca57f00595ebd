package pinboard

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	dialTimeout = 2 * time.Second
	tlsTimeout  = 5 * time.Second
	// idleTimeout is shorter than the 5 s after which uvicorn closes an idle
	// connection: it must not do so under a request (protocol §5).
	idleTimeout = 4 * time.Second
	// continueTimeout is how long a body is held back for a worker that never
	// answers "Expect: 100-continue".
	continueTimeout  = 5 * time.Second
	maxIdlePerWorker = 128
	maxAnswerHeader  = 1 << 20 // bytes
)

// newTransport returns the transport for connections to workers, with TLS
// settings and limits of the model, which may be nil. It dials directly, adds
// no header, decodes nothing and follows no redirect (protocol §5).
func newTransport(model *http.Transport) *http.Transport {
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
	t.DialContext = dialer(dial)
	onlyHTTP1(t)
	t.DisableCompression = true
	t.TLSHandshakeTimeout = cmp.Or(t.TLSHandshakeTimeout, tlsTimeout)
	t.ExpectContinueTimeout = cmp.Or(t.ExpectContinueTimeout, continueTimeout)
	t.MaxIdleConnsPerHost = cmp.Or(t.MaxIdleConnsPerHost, maxIdlePerWorker)
	t.MaxResponseHeaderBytes = cmp.Or(t.MaxResponseHeaderBytes, maxAnswerHeader)
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

// dialError is a connection that could not be made: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialer makes connections that know where they lead and who sends on them.
func dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		c := &workerConn{Conn: conn, addr: addrOf(conn.RemoteAddr())}
		// Once more, for a dialer of the host's that had no check.
		if err := backendOf(ctx).check(c.addr); err != nil {
			_ = conn.Close()
			return nil, &dialError{err}
		}
		return c, nil
	}
}

// directDial dials by a resolver, nil for the machine's. Of the addresses of a
// name, those that are not allowed are passed over before anything is sent to
// them.
func directDial(resolver *net.Resolver) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, Resolver: resolver, ControlContext: checkBeforeDial}).DialContext
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
	addr   atomic.Pointer[netip.Addr] // where the connection leads
	// choice is set when the name has an address that is allowed.
	choice atomic.Bool
}

type backendKey struct{}

// withBackend has the connections of a request checked by the rules for backend
// hosts (protocol §10): for requests to a URL whose host is a name. pinned is
// the address that answered the registration's probe, "" during that probe. A
// connection that is not allowed is an error as if it could not be dialled.
func withBackend(ctx context.Context, rules []string, pinned string) context.Context {
	b := &backend{rules: rules, pinned: pinned}
	ctx = context.WithValue(ctx, backendKey{}, b)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conn := workerConnOf(info.Conn)
		if conn == nil {
			return
		}
		if b.check(conn.addr) != nil {
			// From the pool, dialled for another session before the name was
			// pointed elsewhere: as nothing was sent yet, the transport makes
			// a new one.
			_ = conn.Close()
			return
		}
		b.addr.Store(&conn.addr)
	}})
}

// dialledAddr returns the address that the request with this context, made by
// withBackend, was sent to; "" if it was not sent or the connection has none.
func dialledAddr(ctx context.Context) string {
	if b := backendOf(ctx); b != nil {
		if addr := b.addr.Load(); addr != nil && addr.IsValid() {
			return addr.String()
		}
	}
	return ""
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

// workerConn is a connection to a worker.
type workerConn struct {
	net.Conn
	addr   netip.Addr
	closed atomic.Bool
	// written is the number of bytes that left for the worker.
	written atomic.Int64
	body    atomic.Pointer[hop.Reader] // of the request that is on it

	mu      sync.Mutex
	reading bool          // somebody waits for bytes
	rest    chan struct{} // if not nil, closed once somebody does, or at the end
}

var errConnLost = errors.New("the connection to the worker was lost")

// carry has the loss of the connection end the sending of a request's body. The
// transport reports a lost connection only after its read of the body has
// returned, and that would wait for the client.
func (c *workerConn) carry(body *hop.Reader) {
	body.Resume() // from a connection before this one
	c.body.Store(body)
	if c.closed.Load() {
		c.drop()
	}
}

func (c *workerConn) drop() {
	if body := c.body.Swap(nil); body != nil {
		body.Abort(errConnLost)
	}
}

// Read notes that all that came before was looked at.
func (c *workerConn) Read(p []byte) (int, error) {
	c.setReading(true)
	defer c.setReading(false)
	return c.Conn.Read(p)
}

func (c *workerConn) setReading(reading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = reading
	c.wake()
}

// wake lets go who waits in atRest, if that is over. The caller holds the lock.
func (c *workerConn) wake() {
	if c.rest != nil && (c.reading || c.closed.Load()) {
		close(c.rest)
		c.rest = nil
	}
}

// atRest waits until the transport has looked at all that the worker sent with
// its last answer, before another request is written. It puts a connection back
// into its pool first and looks then: what a worker sends beyond an answer, as a
// body where none may be, would pass for the answer to that request, which may be
// another client's. When it looks in time it gives the connection up.
func (c *workerConn) atRest(ctx context.Context) {
	c.mu.Lock()
	if c.reading || c.closed.Load() {
		c.mu.Unlock()
		return
	}
	if c.rest == nil {
		c.rest = make(chan struct{})
	}
	rest := c.rest
	c.mu.Unlock()
	select {
	case <-rest:
	case <-ctx.Done():
	}
}

// Write counts what leaves, before it does: whoever looks sees too much rather
// than too little.
func (c *workerConn) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n - len(p)))
	return n, err
}

// Close closes the connection and ends what carry says.
func (c *workerConn) Close() error {
	c.closed.Store(true)
	c.mu.Lock()
	c.wake()
	c.mu.Unlock()
	c.drop()
	return c.Conn.Close()
}

// CloseWrite is for tunnels.
func (c *workerConn) CloseWrite() error { return closeWrite(c.Conn) }

// closeWrite ends one direction of a connection.
func closeWrite(conn any) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// workerConnOf returns the workerConn below TLS, nil if there is none.
func workerConnOf(conn net.Conn) *workerConn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, _ := conn.(*workerConn)
	return c
}
