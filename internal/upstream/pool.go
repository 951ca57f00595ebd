package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Config says how a Pool makes and keeps connections.
type Config struct {
	// Dial makes a connection. Required. It may panic.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is the model for connections with TLS. It is copied. Default: the
	// zero Config.
	TLS *tls.Config
	// HandshakeTimeout bounds a TLS handshake. Default: no bound.
	HandshakeTimeout time.Duration
	// IdleTimeout is how long an idle connection is kept. Default: 4 s.
	IdleTimeout time.Duration
	// MaxIdlePerOrigin is how many idle connections are kept to one worker,
	// MaxIdle to all together. Default: no bound.
	MaxIdlePerOrigin, MaxIdle int
	// MaxPerOrigin is how many connections to one worker there may be; a
	// request waits for one. Default: no bound.
	MaxPerOrigin int
	// DisableKeepAlives has every request use a connection of its own.
	DisableKeepAlives bool
	// WritePause is how long one piece of what is sent, at most 32 KiB, may wait
	// for the worker to read it. Default: no bound.
	WritePause time.Duration
	// ContinueTimeout is how long a body is held back for a worker that does
	// not answer "Expect: 100-continue". Default: 5 s.
	ContinueTimeout time.Duration
	// MaxHeaderBytes bounds the heads and trailers of one answer together.
	// Default: 1 MiB.
	MaxHeaderBytes int
}

// Pool keeps connections to workers and sends requests on them. It is safe for
// concurrent use. New makes one.
type Pool struct {
	cfg     Config
	strides strides

	mu      sync.Mutex
	origins map[originKey]*origin
	idle    int         // connections, of all origins
	timer   *time.Timer // ends idle connections; nil while there are none
}

type originKey struct {
	tls        bool
	name, addr string
}

// origin is the connections to one worker. All but key and turns is guarded by
// Pool.mu.
type origin struct {
	key   originKey
	turns chan struct{} // full while all connections are in use; nil without a bound
	free  []*conn       // the one used last at the end
	users int           // requests that have a connection, or are getting one
}

// New returns a Pool. It starts nothing.
func New(cfg Config) *Pool {
	cfg.IdleTimeout = cmp.Or(cfg.IdleTimeout, 4*time.Second)
	cfg.ContinueTimeout = cmp.Or(cfg.ContinueTimeout, 5*time.Second)
	cfg.MaxHeaderBytes = cmp.Or(cfg.MaxHeaderBytes, 1<<20)
	if cfg.TLS == nil {
		cfg.TLS = &tls.Config{} //nolint:gosec // Go's own minimum
	}
	cfg.TLS = cfg.TLS.Clone()
	cfg.TLS.NextProtos = nil // nothing but HTTP/1.1 is spoken
	return &Pool{cfg: cfg, strides: make(strides, maxStrides), origins: map[originKey]*origin{}}
}

// Do sends a request and waits for the head of the final answer. ctx cancels
// the exchange up to Response.Close. Every error is an *Error.
func (p *Pool) Do(ctx context.Context, req *Request) (*Response, error) {
	var failure Error // copied where it is returned, so that success costs none
	if failure.Err = req.validate(); failure.Err != nil {
		return nil, failure.copy()
	}
	for again := false; ; again = true {
		if failure.Err = ctx.Err(); failure.Err != nil {
			failure.NoConnection = !failure.Connected
			return nil, failure.copy()
		}
		c, reused, waited, err := p.acquire(ctx, req, again)
		if err != nil {
			failure.Err, failure.NoConnection = err, true
			return nil, failure.copy()
		}
		if err := req.ready(waited); err != nil {
			p.release(c, true)
			failure.Err, failure.NoConnection = err, true
			return nil, failure.copy()
		}
		failure.Connected = true
		c.begin(reused)
		r := newResponse()
		r.c, r.pool, r.req, r.stop = c, p, req, afterFunc(ctx, c.onAbort)
		err = r.try()
		if err == nil {
			return r, nil
		}
		heard := c.heard
		r.Close()
		sent := c.sent()
		failure.Sent = failure.Sent || sent
		failure.Err = err
		if !reused || ctx.Err() != nil || !byWorker(err) || sent && (heard || !req.Repeatable) {
			return nil, failure.copy()
		}
		if err := req.rewind(); err != nil {
			failure.Err = errors.Join(failure.Err, err)
			return nil, failure.copy()
		}
	}
}

// byWorker reports whether it is the worker that ended a request which failed with
// err, and not what waited for it, or the request's own body.
func byWorker(err error) bool {
	_, own := errors.AsType[*sourceError](err)
	return !own && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ErrTooLate)
}

// afterFunc is context.AfterFunc without what that costs, where a context can do
// without.
func afterFunc(ctx context.Context, f func()) (stop func() bool) {
	if able, ok := ctx.(interface{ AfterFunc(func()) func() bool }); ok {
		return able.AfterFunc(f)
	}
	return context.AfterFunc(ctx, f)
}

// rewind makes the request ready for a second try.
func (r *Request) rewind() (err error) {
	if r.Body != nil {
		r.Body, err = r.Rewind()
	}
	return err
}

// acquire returns a connection that the request may use: an idle one, unless it
// must be fresh. waited says that it may have taken a while.
func (p *Pool) acquire(ctx context.Context, req *Request, fresh bool) (c *conn, reused, waited bool, err error) {
	o := p.enter(&req.Origin)
	if waited, err = o.takeTurn(ctx); err != nil {
		p.leave(o)
		return nil, false, false, err
	}
	for !fresh {
		c := p.pop(o)
		if c == nil {
			break
		}
		if time.Since(c.since) < p.cfg.IdleTimeout && (c.looksItself(req) || c.alive()) && (req.Allowed == nil || req.Allowed(c.addr) == nil) {
			return c, true, waited, nil
		}
		_ = c.Close()
	}
	if o.turns != nil {
		if c := p.pop(o); c != nil {
			_ = c.Close() // the new one takes its place
		}
	}
	defer func() {
		if c == nil { // no connection, or a Dial that panics
			p.done(o)
		}
	}()
	c, err = p.dial(ctx, o, req)
	return c, false, true, err
}

func (p *Pool) enter(at *Origin) *origin {
	key := originKey{tls: at.TLS, name: at.Name, addr: at.Addr}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.origins[key]
	if o == nil {
		o = &origin{key: key}
		if p.cfg.MaxPerOrigin > 0 {
			o.turns = make(chan struct{}, p.cfg.MaxPerOrigin)
		}
		p.origins[key] = o
	}
	o.users++
	return o
}

// leave is the opposite of enter.
func (p *Pool) leave(o *origin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left(o)
}

// left forgets an origin that nobody uses; the caller holds the lock.
func (p *Pool) left(o *origin) {
	if o.users--; o.users == 0 && len(o.free) == 0 {
		delete(p.origins, o.key)
	}
}

// done gives back what acquire took.
func (p *Pool) done(o *origin) {
	p.leave(o)
	o.endTurn()
}

// takeTurn waits until there may be one more connection, where their number is
// bounded, and reports whether it had to.
func (o *origin) takeTurn(ctx context.Context) (waited bool, err error) {
	if o.turns == nil {
		return false, nil
	}
	select {
	case o.turns <- struct{}{}:
		return false, nil
	default:
	}
	select {
	case o.turns <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return false, fmt.Errorf("wait for a connection: %w", ctx.Err())
	}
}

// endTurn lets the next one have a connection, where their number is bounded.
func (o *origin) endTurn() {
	if o.turns != nil {
		<-o.turns
	}
}

// pop takes the idle connection that was used last; nil if there is none.
func (p *Pool) pop(o *origin) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(o.free) - 1
	if last < 0 {
		return nil
	}
	c := o.free[last]
	o.free[last] = nil
	o.free = o.free[:last]
	p.idle--
	return c
}

// release takes a connection back, to keep it or, when it was closed, to forget
// it.
func (p *Pool) release(c *conn, keep bool) {
	if keep = keep && !p.cfg.DisableKeepAlives; keep {
		c.idle.start()
	}
	if !p.takeBack(c, keep) {
		_ = c.Close()
	}
	c.origin.endTurn()
}

// takeBack is leave for who had the connection. It keeps that if it is to be kept
// and there is room, and reports whether it has.
func (p *Pool) takeBack(c *conn, keep bool) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := c.origin
	defer p.left(o)
	if !keep || full(len(o.free), p.cfg.MaxIdlePerOrigin) || full(p.idle, p.cfg.MaxIdle) {
		return false
	}
	c.since = time.Now()
	o.free = append(o.free, c)
	p.idle++
	if p.timer == nil {
		p.timer = time.AfterFunc(p.cfg.IdleTimeout, p.expire)
	}
	return true
}

// full reports whether there are n of no more than most; 0 is no bound.
func full(n, most int) bool { return most != 0 && n >= most }

// expire closes the connections that have been idle for long enough.
func (p *Pool) expire() {
	for _, c := range p.takeOld() {
		c.end()
	}
}

// takeOld takes the connections that have been idle for long enough, and sets
// the timer for the others.
func (p *Pool) takeOld() (old []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	first := now
	for _, o := range p.origins {
		young := slices.IndexFunc(o.free, func(c *conn) bool { return now.Sub(c.since) < p.cfg.IdleTimeout })
		if young < 0 {
			young = len(o.free)
		} else if since := o.free[young].since; since.Before(first) {
			first = since
		}
		old = p.take(old, o, young)
	}
	p.timer = nil
	if p.idle > 0 {
		p.timer = time.AfterFunc(first.Add(p.cfg.IdleTimeout).Sub(now), p.expire)
	}
	return old
}

// take appends the n connections that were used least lately, which are idle no
// more; the caller holds the lock.
func (p *Pool) take(taken []*conn, o *origin, n int) []*conn {
	taken = append(taken, o.free[:n]...)
	o.free = slices.Delete(o.free, 0, n)
	p.idle -= n
	if o.users == 0 && len(o.free) == 0 {
		delete(p.origins, o.key)
	}
	return taken
}

// CloseIdle closes the connections that carry nothing.
func (p *Pool) CloseIdle() {
	for _, c := range p.takeIdle() {
		c.end()
	}
}

// takeIdle takes all idle connections.
func (p *Pool) takeIdle() (all []*conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.origins {
		all = p.take(all, o, len(o.free))
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	return all
}

// dial makes a connection.
func (p *Pool) dial(ctx context.Context, o *origin, req *Request) (*conn, error) {
	if req.Within != nil {
		ctx = req.Within(ctx)
	}
	raw, err := p.cfg.Dial(ctx, "tcp", o.key.addr)
	if err != nil {
		return nil, err
	}
	c := newConn(raw, o, p.cfg.WritePause)
	if req.Allowed != nil {
		err = req.Allowed(c.addr)
	}
	if err == nil && o.key.tls {
		err = p.secure(ctx, c)
	}
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

func (p *Pool) secure(ctx context.Context, c *conn) error {
	if d := p.cfg.HandshakeTimeout; d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	cfg := p.cfg.TLS
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = c.origin.key.name
	}
	t := tls.Client(c.wire, cfg)
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.secure(t)
	return nil
}
