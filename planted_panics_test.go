package pinboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
)

// fuse has one call of the host's code panic: the last of those that are left.
type fuse struct{ left atomic.Int64 }

func (p *fuse) call() {
	if p.left.Add(-1) == 0 {
		panic(http.ErrAbortHandler) // of which the server makes no noise
	}
}

// brittleProvider, brittleTracer and brittleSpan are the host's.
type brittleProvider struct {
	embedded.TracerProvider
	*fuse
}

func (p brittleProvider) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return brittleTracer{fuse: p.fuse}
}

type brittleTracer struct {
	embedded.Tracer
	*fuse
}

func (p brittleTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	p.call()
	return ctx, brittleSpan{fuse: p.fuse}
}

type brittleSpan struct {
	noop.Span
	*fuse
}

func (s brittleSpan) SetAttributes(...attribute.KeyValue) { s.call() }
func (s brittleSpan) SetStatus(codes.Code, string)        { s.call() }
func (s brittleSpan) SetName(string)                      { s.call() }
func (s brittleSpan) End(...trace.SpanEndOption)          { s.call() }

// brittleWriter is that of a middleware of the host's.
type brittleWriter struct {
	http.ResponseWriter
	*fuse
}

func (w brittleWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w brittleWriter) WriteHeader(status int) {
	w.call()
	w.ResponseWriter.WriteHeader(status)
}

func (w brittleWriter) Write(p []byte) (int, error) {
	w.call()
	return w.ResponseWriter.Write(p)
}

// anything answers with what the path says.
func anything(h *hit) {
	h.body()
	switch h.target[len("/counters/"):] {
	case "events":
		h.send(eventsHead + "8\r\ndata: x\n\r\n0\r\n\r\n")
	case "socket":
		h.accept()
		h.send("\x81\x01x")
		h.last = true
	case "hints":
		h.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
		h.ok("hinted")
	case "refused":
		h.refuse()
	case "cut":
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut")
		h.last = true
	case "lost":
		h.last = true
	default:
		h.ok("well")
	}
}

// The server goes on after a panic of the host's code, and so must the node: it has
// nothing left of the request.
func TestAPanicOfTheHostsCodeLeavesNothingOfItsRequest(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"plain":   "GET /counters/plain HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"body":    "POST /counters/body HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
		"chunks":  "POST /counters/chunks HTTP/1.1\r\nHost: p\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
		"hints":   "GET /counters/hints HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"refused": "GET /counters/refused HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"held":    "GET /counters/refused HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"cut":     "GET /counters/cut HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"lost":    "POST /counters/lost HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"events":  "GET /counters/events HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
		"socket":  upgradeRequest("/counters/socket"),
	} {
		for _, detach := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", detach), func(t *testing.T) {
				t.Parallel()
				p := &fuse{}
				var ours, theirs keptConns
				f := newFront(t, func(s *setup) {
					s.opts.DetachStreams, s.opts.TracerProvider = detach, brittleProvider{fuse: p}
					if name == "held" {
						s.opts.PlacementHold = 30 * time.Millisecond
					}
					s.server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
						ours.add(conn)
						return ctx
					}
					s.opts.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
						p.call()
						conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
						if err == nil {
							theirs.add(conn)
						}
						return conn, err
					}}
					s.server.ErrorLog = log.New(io.Discard, "", 0)
					s.handler = func(next http.Handler) http.Handler {
						if detach { // by a server's own writer alone
							return next
						}
						return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							next.ServeHTTP(brittleWriter{w, p}, r)
						})
					}
				})
				a, b := newFake(t, anything), newFake(t, anything)
				f.register(a, "a")
				f.register(b, "b")
				for at := int64(1); ; at++ {
					p.left.Store(at)
					c := f.ask(request)
					_, err := io.Copy(io.Discard, c.r)
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "call %d", at)
					require.NoError(t, c.Close())
					f.quiet()
					require.Zero(t, f.pb.counters.held.Load())
					f.pb.leases.mu.Lock()
					for _, s := range f.pb.leases.byID {
						require.Zero(t, s.flows, "call %d", at)
					}
					f.pb.leases.mu.Unlock()
					require.Eventually(t, func() bool {
						f.pb.proxy.closeIdle()
						return ours.closed() && theirs.closed()
					}, patience, time.Millisecond, "call %d", at)
					if p.left.Load() > 0 {
						require.Greater(t, at, int64(1))
						return
					}
				}
			})
		}
	}
}

// keptConns are connections, which are kept: what is forgotten is closed, too, when its
// memory is collected.
type keptConns struct {
	mu  sync.Mutex
	all []net.Conn
}

func (e *keptConns) add(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, conn)
}

// closed reports whether all are closed on this side.
func (e *keptConns) closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, conn := range e.all {
		if !errors.Is(conn.SetDeadline(time.Time{}), net.ErrClosed) {
			return false
		}
	}
	e.all = nil
	return true
}
