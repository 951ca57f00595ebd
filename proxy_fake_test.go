package pinboard

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// fake is a worker on a raw listener. It records every byte that it gets.
type fake struct {
	t       *testing.T
	addr    string
	handler func(*hit)

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	dials    int
	hits     []*hit
	raw      bytes.Buffer
	serving  sync.WaitGroup
}

// hit is one request that a fake got.
type hit struct {
	t    *testing.T
	w    *fake
	conn net.Conn
	r    *bufio.Reader
	// head is as it came, without the last empty line.
	head           string
	method, target string
	header         http.Header
	trailer        string // raw, set by body
	last           bool   // the connection ends with this one
}

// newFake starts a worker. handler answers one request after the other on each
// connection; nil answers 200 with an empty body.
func newFake(t *testing.T, handler func(*hit)) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if handler == nil {
		handler = func(h *hit) { h.body(); h.ok("") }
	}
	w := &fake{t: t, addr: listener.Addr().String(), handler: handler, listener: listener, conns: map[net.Conn]struct{}{}}
	w.serving.Go(func() { w.accept(listener) })
	t.Cleanup(w.stop)
	return w
}

func (w *fake) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		w.dials++
		w.conns[conn] = struct{}{}
		w.mu.Unlock()
		w.serving.Go(func() { w.serve(conn) })
	}
}

// stop ends the listener and all connections, as a process that is killed.
func (w *fake) stop() {
	_ = w.listener.Close()
	w.mu.Lock()
	for conn := range w.conns {
		_ = conn.Close()
	}
	w.mu.Unlock()
	w.serving.Wait()
}

func (w *fake) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		w.mu.Lock()
		delete(w.conns, conn)
		w.mu.Unlock()
	}()
	r := bufio.NewReader(io.TeeReader(conn, recorder{w}))
	for {
		h, err := w.read(conn, r)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.hits = append(w.hits, h)
		w.mu.Unlock()
		w.handler(h)
		if h.last {
			return
		}
	}
}

type recorder struct{ w *fake }

func (r recorder) Write(p []byte) (int, error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.w.raw.Write(p)
}

func (w *fake) read(conn net.Conn, r *bufio.Reader) (*hit, error) {
	h := &hit{t: w.t, w: w, conn: conn, r: r, header: http.Header{}}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line = strings.TrimSuffix(line, "\r\n"); line == "" {
			return h, nil
		}
		if h.head == "" {
			h.head = line
			parts := strings.Split(line, " ")
			h.method, h.target = parts[0], strings.Join(parts[1:len(parts)-1], " ")
			continue
		}
		h.head += "\r\n" + line
		name, value, _ := strings.Cut(line, ": ")
		h.header.Add(name, value)
	}
}

// seen returns the requests so far.
func (w *fake) seen() []*hit {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*hit(nil), w.hits...)
}

// only returns the one request that came.
func (w *fake) only() *hit {
	w.t.Helper()
	hits := w.seen()
	require.Len(w.t, hits, 1)
	return hits[0]
}

// bytes returns everything that came, of all connections.
func (w *fake) bytes() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.raw.String()
}

func (w *fake) connections() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

// body reads the request's body to its end. An error ends the connection.
func (h *hit) body() string {
	b, err := h.bodyErr()
	if err != nil {
		h.last = true
	}
	return b
}

func (h *hit) bodyErr() (string, error) {
	if h.header.Get("Transfer-Encoding") == "chunked" {
		b, err := io.ReadAll(httputil.NewChunkedReader(h.r))
		for err == nil {
			var line string
			line, err = h.r.ReadString('\n')
			if line == "\r\n" {
				break
			}
			h.trailer += line
		}
		return string(b), err
	}
	n, _ := strconv.Atoi(h.header.Get("Content-Length"))
	b := make([]byte, n)
	n, err := io.ReadFull(h.r, b)
	return string(b[:n]), err
}

// send writes raw bytes. That the proxy has gone is for the test to notice.
func (h *hit) send(raw string) { _, _ = io.WriteString(h.conn, raw) }

func (h *hit) ok(body string, headers ...string) { h.reply(http.StatusOK, body, headers...) }

func (h *hit) reply(status int, body string, headers ...string) {
	h.send(fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\n%s\r\n%s", status, http.StatusText(status), len(body), lines(headers), body))
}

// refuse answers as a worker that will not activate the id.
func (h *hit) refuse() {
	h.reply(http.StatusServiceUnavailable, `{"detail":"lease unhealthy; retry"}`,
		"Content-Type: application/json", "pinned-refusal: lease-unhealthy")
}

// gone waits until the proxy has closed the connection.
func (h *hit) gone() {
	_, _ = io.Copy(io.Discard, h.r)
	h.last = true
}

// claims verifies that the request carries exactly one good attestation and
// epoch, and returns what is attested.
func (h *hit) claims(s *session) attest.Claims {
	h.t.Helper()
	require.Len(h.t, h.header[wire.HeaderAttestation], 1)
	require.Len(h.t, h.header[wire.HeaderEpoch], 1)
	claims, err := attest.Verify(h.header.Get(wire.HeaderAttestation), s.Secret,
		func(aud string) bool { return aud == s.SessionID }, time.Now())
	require.NoError(h.t, err)
	return claims
}

// epoch is the placement epoch that the request carries.
func (h *hit) epoch() int64 {
	h.t.Helper()
	epoch, err := strconv.ParseInt(h.header.Get(wire.HeaderEpoch), 10, 64)
	require.NoError(h.t, err)
	return epoch
}
