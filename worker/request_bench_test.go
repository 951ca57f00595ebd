package worker

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// sink is a ResponseWriter that costs nothing, for what a request costs apart
// from net/http's server.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header               { return s.header }
func (s *sink) WriteHeader(int)                   {}
func (s *sink) Write(p []byte) (int, error)       { return len(p), nil }
func (s *sink) WriteString(t string) (int, error) { return len(t), nil }

// bareWorker is a registered worker without a harness.
func bareWorker(tb testing.TB, opts Options, construct Constructor) (w *Worker, stop func()) {
	tb.Helper()
	pb := &fakePinboard{began: time.Now()}
	opts.PinboardURL, opts.Token, opts.AdvertiseURL, opts.Transport = "http://pinboard:8080", "t", "http://worker:8000", pb
	w, err := build(opts, none, systemClock, func() float64 { return 1 })
	require.NoError(tb, err)
	pb.worker = w
	require.NoError(tb, w.Host("/c", construct))
	require.NoError(tb, w.Start())
	require.NoError(tb, w.AwaitReady(tb.Context()))
	return w, func() { require.NoError(tb, w.Shutdown(context.Background())) }
}

// browserRequest is one as a node of pinboard sends it for a browser.
func browserRequest(tb testing.TB, w *Worker, path string, claims attest.Claims) *http.Request {
	tb.Helper()
	u, err := url.ParseRequestURI(path)
	require.NoError(tb, err)
	claims.Audience = w.reg.sessionID()
	token, err := attest.Mint(w.reg.secret, claims, time.Now())
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	r := &http.Request{
		Method: http.MethodGet, URL: u, RequestURI: path, Host: "app.example", Body: http.NoBody,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: "10.0.0.1:4000",
		Header: http.Header{
			"User-Agent": {"Mozilla/5.0"}, "Accept": {"application/json"}, "Accept-Language": {"en-GB,en;q=0.5"},
			"Accept-Encoding": {"gzip, deflate, br"}, "Cookie": {"theme=dark; seen=1"},
			"X-Forwarded-For": {"198.51.100.7"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"app.example"},
			wire.HeaderEpoch: {strconv.FormatInt(1_764_460_800_000_000, 10)}, wire.HeaderAttestation: {token},
		},
	}
	return r.WithContext(ctx)
}

// BenchmarkRequest is what a request to a live instance costs, above net/http's
// server and the application's handler.
func BenchmarkRequest(b *testing.B) {
	w, stop := bareWorker(b, Options{}, serving(func(_ *Instance, rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "hello")
	}))
	defer stop()
	r := browserRequest(b, w, "/c/thread-17/messages?after=17", attest.Claims{})
	rw := &sink{header: http.Header{}}
	u, epoch, attested := *r.URL, r.Header[wire.HeaderEpoch], r.Header[wire.HeaderAttestation]
	b.Run("server of the host's", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.ServeHTTP(rw, r)
		}
	})
	b.Run("own server", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			*r.URL = u
			r.Header[wire.HeaderEpoch], r.Header[wire.HeaderAttestation] = epoch, attested // it takes them out
			w.serveOwn(rw, r)
		}
	})
}
