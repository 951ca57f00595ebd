package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows an informational answer belongs to its request, also when nobody
// has waited for it.
func TestAConnectionIsNotKeptBeforeItsFinalAnswer(t *testing.T) {
	t.Parallel()
	planted := errors.New("planted")
	const hint = "HTTP/1.1 103 Early Hints\r\n\r\n"
	for name, c := range map[string]struct {
		hints, rest string
		inform      error
	}{
		"given up":            {hint, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", planted},
		"malformed status":    {hint + "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", nil},
		"malformed field":     {hint + "HTTP/1.1 200 OK\r\nX : y\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", nil},
		"malformed framing":   {hint + "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", nil},
		"malformed, no hints": {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
				w := start(t, func(p *peer) {
					if p.head(); p.n > 0 {
						p.ok("mine")
						return
					}
					p.send(c.hints)
					if p.head() != "" { // a second request on the same connection
						p.send(c.rest)
					}
				})
				pool := w.pool()
				r := w.request("GET", "/")
				r.Inform = func(int, Header) error { return c.inform }
				_, err := do(t.Context(), pool, r)
				require.Error(t, err)
				requireIdle(t, pool, 0)
				g, err := do(t.Context(), pool, w.request("GET", "/"))
				require.NoError(t, err)
				require.Equal(t, "mine", g.body)
			})
		})
	}
}

// TLS may have read more than it has handed out.
func TestSurplusWithinTLSEndsAConnection(t *testing.T) {
	t.Parallel()
	w := newTLSWorker(t, func(p *peer) {
		for p.head() != "" {
			if p.n > 0 {
				p.ok("mine")
				continue
			}
			b := p.Conn.(*tls.Conn).NetConn().(*batch)
			b.hold = true
			p.ok("mine")
			p.ok("other") // a record of its own, in the same packet
			b.release()
		}
	})
	pool := w.pool()
	for range 3 {
		g, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		require.Equal(t, "mine", g.body)
	}
	require.Equal(t, 2, w.connections(), "and without surplus it is kept")
}

// counted is a connection of a dialer of the host's that does something of its
// own with what passes, and has the methods of the socket below all the same.
type counted struct {
	*net.TCPConn
	passed *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.passed.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.passed.Add(int64(n))
	return n, err
}

func TestNothingPassesByAConnectionOfTheHosts(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, once("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", false))
	var passed atomic.Int64
	dial := w.dial
	w.dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return counted{c.(*net.TCPConn), &passed}, nil
	}
	pool := w.pool()
	for i := range 3 {
		g, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		require.Equal(t, "body", g.body)
		const both = len("GET / HTTP/1.1\r\nHost: p\r\n\r\n") + len("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
		require.EqualValues(t, (i+1)*both, passed.Load())
	}
	require.Equal(t, 1, w.connections())
}

// A body after a piece of a head would be read as the rest of that head.
func TestNothingFollowsAHeadThatWasNotSentWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got := make(chan string, 1)
		w := newMemoryWorker(t, func(p *peer) {
			time.Sleep(5 * time.Second)
			all, _ := io.ReadAll(p.r)
			got <- string(all)
		})
		pool := w.pool(func(c *Config) { c.WritePause = time.Second })
		r := w.post("/", "\r\nX-Smuggled: 1\r\n\r\n")
		r.Fields, _ = AppendField(nil, "X-Long", strings.Repeat("x", 40_000))
		r.Body = io.MultiReader(atEOF(func() { time.Sleep(3 * time.Second) }), r.Body)
		start := time.Now()
		_, err := do(t.Context(), pool, r)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, headDelay+time.Second+lateAnswer, time.Since(start), "it is not waited for")
		require.NotContains(t, <-got, "X-Smuggled")
	})
}

// asked runs a function in the first read of a body.
type asked struct {
	io.Reader
	first func()
}

func (a *asked) Read(p []byte) (int, error) {
	if a.first != nil {
		a.first()
		a.first = nil
	}
	return a.Reader.Read(p)
}

// An idle connection on which the worker says something in the last moment.
func TestWhatComesBeforeARequestIsNoAnswerToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		surplus, sent := make(chan struct{}), make(chan struct{})
		w := newMemoryWorker(t, func(p *peer) {
			p.head()
			p.ok("mine")
			if p.n == 0 {
				<-surplus
				p.send("HTTP/1.1 408 Request Timeout\r\nContent-Length: 5\r\n\r\nother")
				close(sent)
				return
			}
			echo(p)
		})
		pool := w.pool()
		_, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		r := w.post("/", "body")
		r.Body = &asked{r.Body, func() { close(surplus); <-sent; synctest.Wait() }}
		g, err := do(t.Context(), pool, r)
		require.NoError(t, err)
		require.Equal(t, "mine", g.body)
		require.Equal(t, 200, g.Status)
		require.Equal(t, 2, w.connections())
	})
}

// A worker that only takes its time may be at work on the request.
func TestWhatWaitsTooLongIsNotSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			p.head()
			p.ok("")
			time.Sleep(time.Hour)
		})
		pool := w.pool(func(c *Config) { c.WritePause = time.Second })
		_, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		r := w.request("GET", "/")
		r.Fields, _ = AppendField(nil, "X-Long", strings.Repeat("x", 40_000))
		_, err = do(t.Context(), pool, r)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.True(t, failure(t, err).Sent)
		require.Equal(t, 1, w.connections())
	})
}

// The second try of a request has trailers of its own: what is left of the first
// may still be looking at the former ones.
func TestEachTryHasItsTrailers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			if p.n > 0 {
				echo(p)
				return
			}
			p.head()
			p.ok("")
			p.head() // and ends
		})
		pool := w.pool()
		_, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		again := make(chan struct{})
		r := w.request("PUT", "/")
		r.Repeatable, r.Length, r.Trailer = true, -1, http.Header{"X-Sum": nil}
		first := r.Trailer
		r.Body = atEOF(func() {
			<-again
			first["X-Sum"] = []string{"first"}
		})
		r.Rewind = func() (io.Reader, error) {
			second := http.Header{"X-Sum": nil}
			r.Trailer = second
			close(again)
			return atEOF(func() { second["X-Sum"] = []string{"second"} }), nil
		}
		g, err := do(t.Context(), pool, r)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(g.body, "X-Sum: second\r\n"), g.body)
	})
}

// A worker that does not read must not hold a request that was given up, also
// not for the orderly end of TLS.
func TestGivingUpDoesNotWaitForTheWorker(t *testing.T) {
	t.Parallel()
	source := httptest.NewUnstartedServer(nil) // for its certificate
	source.StartTLS()
	t.Cleanup(source.Close)
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			server := tls.Server(p.Conn, &tls.Config{Certificates: source.TLS.Certificates, MinVersion: tls.VersionTLS13})
			if server.Handshake() == nil {
				<-p.t.Context().Done()
			}
		})
		roots := x509.NewCertPool()
		roots.AddCert(source.Certificate())
		w.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, Time: func() time.Time { return source.Certificate().NotBefore.Add(time.Hour) }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := do(ctx, w.pool(), w.post("/", strings.Repeat("b", 100_000)))
		require.Error(t, err)
		require.True(t, failure(t, err).Sent)
		require.Equal(t, time.Second, time.Since(start))
	})
}

// RFC 9112, section 6.1: such an answer has no body, and its worker may send one.
func TestAnAnswerThatContradictsItselfIsTheLastOne(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n",
	} {
		w := newTCPWorker(t, once(raw, false))
		pool := w.pool()
		g, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		require.Equal(t, 204, g.Status)
		requireIdle(t, pool, 0)
	}
}

// The last moment is after the choice of a connection and before the request.
func TestAnIdleConnectionIsLookedAtInTheLastMoment(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(*peer){
		"surplus": func(p *peer) { p.send("HTTP/1.1 408 Request Timeout\r\nContent-Length: 5\r\n\r\nother") },
		"end":     func(p *peer) { _ = p.Conn.(*net.TCPConn).CloseWrite() }, // and it goes on reading
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, said := make(chan struct{}), make(chan struct{})
			w := newTCPWorker(t, func(p *peer) {
				p.head()
				p.ok("mine")
				if p.n == 0 {
					<-now
					say(p)
					close(said)
					_, _ = io.Copy(io.Discard, p.r)
				}
			})
			pool := w.pool()
			_, err := do(t.Context(), pool, w.request("GET", "/"))
			require.NoError(t, err)
			requireIdle(t, pool, 1)
			r := w.request("GET", "/")
			r.Repeatable = false // nothing was sent
			var once sync.Once
			r.Allowed = func(netip.Addr) error {
				once.Do(func() { close(now); <-said })
				return nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			g, err := do(ctx, pool, r)
			require.NoError(t, err)
			require.Equal(t, "mine", g.body)
			require.Equal(t, 2, w.connections())
		})
	}
}
