package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
)

// patience bounds what must come anyway.
const patience = 20 * time.Second

// worker is a raw server: it hands each connection to a script.
type worker struct {
	t        *testing.T
	listener net.Listener
	dial     func(context.Context) (net.Conn, error)
	tls      *tls.Config // of its clients; nil without TLS
	script   func(*peer)

	mu      sync.Mutex
	conns   []net.Conn
	serving sync.WaitGroup
}

// peer is one connection as the worker sees it.
type peer struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
	n int // which connection this is, from 0
}

// wires are the kinds of connections that behave alike: those with a descriptor,
// those without, and TLS on either.
var wires = map[string]func(*testing.T, func(*peer)) *worker{
	"tcp":     newTCPWorker,
	"memory":  newMemoryWorker,
	"wrapped": newWrappedWorker,
	"tls":     newTLSWorker,
}

// onEveryWire runs a test on each kind of connection.
func onEveryWire(t *testing.T, test func(t *testing.T, start func(*testing.T, func(*peer)) *worker)) {
	for name, start := range wires {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

func newWorker(t *testing.T, l net.Listener, script func(*peer), dial func(context.Context) (net.Conn, error)) *worker {
	w := &worker{t: t, listener: l, script: script, dial: dial}
	w.serving.Go(w.accept)
	t.Cleanup(w.stop)
	return w
}

func newMemoryWorker(t *testing.T, script func(*peer)) *worker {
	l := memnet.NewListener()
	return newWorker(t, l, script, l.Dial)
}

func newTCPWorker(t *testing.T, script func(*peer)) *worker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return newWorker(t, l, script, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	})
}

// hidden is a connection of a dialer of the host's that wraps it.
type hidden struct{ net.Conn }

func newWrappedWorker(t *testing.T, script func(*peer)) *worker {
	t.Helper()
	w := newTCPWorker(t, script)
	dial := w.dial
	w.dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return hidden{c}, nil
	}
	return w
}

// batch is a connection whose writes can be held back, to leave together.
type batch struct {
	net.Conn
	hold bool
	held []byte
}

func (b *batch) Write(p []byte) (int, error) {
	if !b.hold {
		return b.Conn.Write(p)
	}
	b.held = append(b.held, p...)
	return len(p), nil
}

func (b *batch) release() {
	_, _ = b.Conn.Write(b.held)
	b.hold, b.held = false, nil
}

func newTLSWorker(t *testing.T, script func(*peer)) *worker {
	t.Helper()
	source := httptest.NewUnstartedServer(nil) // for its certificate
	source.StartTLS()
	t.Cleanup(source.Close)
	w := newTCPWorker(t, func(p *peer) {
		p.Conn = tls.Server(&batch{Conn: p.Conn}, &tls.Config{Certificates: source.TLS.Certificates, MinVersion: tls.VersionTLS13})
		p.r = bufio.NewReader(p.Conn)
		script(p)
	})
	roots := x509.NewCertPool()
	roots.AddCert(source.Certificate())
	w.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	return w
}

func (w *worker) accept() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		p := &peer{Conn: conn, t: w.t, r: bufio.NewReader(conn), n: len(w.conns)}
		w.conns = append(w.conns, conn)
		w.mu.Unlock()
		w.serving.Go(func() {
			defer func() { _ = p.Close() }()
			w.script(p)
		})
	}
}

func (w *worker) stop() {
	_ = w.listener.Close()
	w.mu.Lock()
	for _, conn := range w.conns {
		_ = conn.Close()
	}
	w.mu.Unlock()
	w.serving.Wait()
}

func (w *worker) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.conns)
}

// pool returns a Pool that dials the worker, whatever the address.
func (w *worker) pool(changes ...func(*Config)) *Pool {
	cfg := Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) }, TLS: w.tls}
	for _, change := range changes {
		change(&cfg)
	}
	p := New(cfg)
	w.t.Cleanup(p.CloseIdle)
	return p
}

// request returns a request to the worker.
func (w *worker) request(method, target string) *Request {
	scheme := "http"
	if w.tls != nil {
		scheme = "https"
	}
	return &Request{Origin: ParseOrigin(scheme + "://example.com"), Method: method, Target: target, Host: "p",
		Repeatable: method == "GET"}
}

// post returns a request with a body of that text.
func (w *worker) post(target, text string) *Request {
	r := w.request("POST", target)
	r.Length = int64(len(text))
	r.Rewind = func() (io.Reader, error) { return strings.NewReader(text), nil }
	r.Body, _ = r.Rewind()
	return r
}

// got is an answer read to its end.
type got struct {
	Response
	body string
	err  error
}

// do sends the request and reads the answer.
func do(ctx context.Context, p *Pool, r *Request) (got, error) {
	resp, err := p.Do(ctx, r)
	if err != nil {
		return got{}, err
	}
	g := read(resp)
	return g, nil
}

// read reads an answer to its end, which g.err says of if it is not in order.
func read(resp *Response) (g got) {
	var body bytes.Buffer
	for g.err == nil {
		var piece []byte
		piece, g.err = resp.Next()
		body.Write(piece)
	}
	if g.err == io.EOF {
		g.err = nil
	}
	resp.Close()
	g.Status, g.Header, g.Length, g.Trailer = resp.Status, resp.Header, resp.Length, resp.Trailer
	g.body = body.String()
	return g
}

// failure returns the *Error that a request ended with.
func failure(t *testing.T, err error) *Error {
	t.Helper()
	f, ok := errors.AsType[*Error](err)
	require.True(t, ok, "%v", err)
	return f
}

// head reads the head of a request; "" when the connection ended.
func (p *peer) head() string {
	var head strings.Builder
	for {
		line, err := p.r.ReadString('\n')
		if err != nil {
			return ""
		}
		if line == "\r\n" {
			return head.String()
		}
		head.WriteString(line)
	}
}

// body reads the body that a head announces, and trailers raw.
func (p *peer) body(head string) (body, trailers string, err error) {
	if strings.Contains(head, "Transfer-Encoding: chunked\r\n") {
		b, err := io.ReadAll(httputil.NewChunkedReader(p.r))
		for err == nil {
			var line string
			if line, err = p.r.ReadString('\n'); line == "\r\n" {
				break
			}
			trailers += line
		}
		return string(b), trailers, err
	}
	_, rest, _ := strings.Cut(head, "Content-Length: ")
	digits, _, _ := strings.Cut(rest, "\r\n")
	n, _ := strconv.Atoi(digits)
	b := make([]byte, n)
	n, err = io.ReadFull(p.r, b)
	return string(b[:n]), "", err
}

// send writes raw bytes. That the client has gone is for the test to notice.
func (p *peer) send(raw string) { _, _ = io.WriteString(p.Conn, raw) }

// ok answers with a text.
func (p *peer) ok(text string) {
	p.send("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(text)) + "\r\n\r\n" + text)
}

// echo answers every request with its head and body.
func echo(p *peer) {
	for head := p.head(); head != ""; head = p.head() {
		body, trailers, err := p.body(head)
		if err != nil {
			return
		}
		p.ok(head + body + trailers)
	}
}

// idle returns how many connections the pool keeps, and to how many workers it
// has or gets some.
func idle(p *Pool) (connections, workers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idle, len(p.origins)
}

// requireIdle fails the test if the pool does not keep so many connections.
func requireIdle(t *testing.T, p *Pool, want int) {
	t.Helper()
	n, _ := idle(p)
	require.Equal(t, want, n)
}

// requireUnused fails the test if the pool remembers anything.
func requireUnused(t *testing.T, p *Pool) {
	t.Helper()
	connections, workers := idle(p)
	require.Zero(t, connections)
	require.Zero(t, workers)
}
