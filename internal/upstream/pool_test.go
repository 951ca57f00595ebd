package upstream

import (
	"context"
	"errors"
	"io"
	"net"
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

func TestAConnectionThatCannotBeMadeIsSaid(t *testing.T) {
	t.Parallel()
	planted := errors.New("planted")
	p := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, planted }})
	_, err := p.Do(t.Context(), &Request{Method: "GET", Target: "/", Origin: ParseOrigin("http://w")})
	require.ErrorIs(t, err, planted)
	require.Equal(t, Error{Err: planted, NoConnection: true}, *failure(t, err))
	requireUnused(t, p)
}

// A worker may close a connection as soon as it is idle, without having said so.
func TestAConnectionThatWasClosedWhileIdleIsNotUsed(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		for _, surplus := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"} {
			answered := make(chan struct{})
			w := start(t, func(p *peer) {
				if head := p.head(); head == "" {
					return
				}
				p.ok("good")
				if p.n%2 == 0 {
					select {
					case <-answered:
					case <-p.t.Context().Done():
					}
					p.send(surplus)
					return
				}
				echo(p)
			})
			pool := w.pool()
			g, err := do(t.Context(), pool, w.post("/", "body"))
			require.NoError(t, err)
			require.Equal(t, "good", g.body)
			close(answered)
			require.Eventually(t, func() bool { return !stillGood(pool) }, patience, time.Millisecond)
			g, err = do(t.Context(), pool, w.post("/", "body"))
			require.NoError(t, err)
			require.Equal(t, "good", g.body)
			require.Equal(t, 2, w.connections())
		}
	})
}

// stillGood reports whether the pool's idle connections can be used.
func stillGood(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.origins {
		for _, c := range o.free {
			if !c.alive() {
				return false
			}
			c.idle.start()
		}
	}
	return true
}

// dying answers the first request of the first connection, and ends that under
// the second one, after as much of an answer as it is told.
func dying(answer string) func(*peer) {
	return func(p *peer) {
		if p.n > 0 {
			echo(p)
			return
		}
		head := p.head()
		_, _, _ = p.body(head)
		p.ok("")
		if head = p.head(); head != "" {
			_, _, _ = p.body(head)
			p.send(answer)
		}
	}
}

func TestOnlyWhatMayBeRepeatedIsSentAgain(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		for _, c := range []struct {
			answer     string
			repeatable bool
			body       bool
			again      bool
		}{
			{"", true, false, true},
			{"", true, true, true},
			{"", false, false, false},
			{"", false, true, false},
			{"H", true, false, false},
		} {
			w := start(t, dying(c.answer))
			pool := w.pool()
			_, err := do(t.Context(), pool, w.request("GET", "/"))
			require.NoError(t, err)
			r := w.request("PUT", "/")
			if c.body {
				r = w.post("/", "body")
			}
			r.Repeatable = c.repeatable
			g, err := do(t.Context(), pool, r)
			if c.again {
				require.NoError(t, err)
				require.Equal(t, c.body, strings.HasSuffix(g.body, "body"))
				require.Equal(t, 2, w.connections())
				continue
			}
			require.Error(t, err)
			require.Equal(t, Error{Err: failure(t, err).Err, Connected: true, Sent: true}, *failure(t, err))
			require.Equal(t, 1, w.connections())
		}
	})
}

func TestAFirstConnectionIsNotTriedTwice(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, func(p *peer) { p.head() })
	_, err := do(t.Context(), w.pool(), w.request("GET", "/"))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, 1, w.connections())
}

// deaf is a connection that fails before anything is written.
type deaf struct {
	net.Conn
	now *atomic.Bool
}

func (d deaf) Write(p []byte) (int, error) {
	if d.now.Load() {
		return 0, errors.New("planted")
	}
	return d.Conn.Write(p)
}

func TestWhatWasNotSentIsSentOnAnotherConnection(t *testing.T) {
	t.Parallel()
	w := newMemoryWorker(t, echo)
	var now atomic.Bool
	dials := 0
	pool := w.pool(func(c *Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			conn, err := dial(ctx, network, addr)
			if dials == 1 {
				conn = deaf{conn, &now}
			}
			return conn, err
		}
	})
	_, err := do(t.Context(), pool, w.request("GET", "/"))
	require.NoError(t, err)
	now.Store(true)
	g, err := do(t.Context(), pool, w.post("/", "body"))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(g.body, "body"), g.body)
	require.Equal(t, 2, dials)

	dials = 0 // and it fails at once
	pool.CloseIdle()
	_, err = do(t.Context(), pool, w.post("/", "body"))
	require.ErrorContains(t, err, "planted")
	require.Equal(t, Error{Err: failure(t, err).Err, Connected: true}, *failure(t, err))
}

func TestIdleConnectionsEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 10)
		w := newMemoryWorker(t, func(p *peer) { echo(p); ended <- time.Now() })
		pool := w.pool()
		start := time.Now()
		two := func() {
			first, err := pool.Do(t.Context(), w.request("GET", "/"))
			require.NoError(t, err)
			second, err := pool.Do(t.Context(), w.request("GET", "/"))
			require.NoError(t, err)
			read(first)
			time.Sleep(time.Second)
			read(second)
		}
		two()
		require.Equal(t, 4*time.Second, (<-ended).Sub(start))
		require.Equal(t, 5*time.Second, (<-ended).Sub(start))
		requireUnused(t, pool)

		start = time.Now()
		two()
		time.Sleep(2 * time.Second) // the one that was used last is used again
		_, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, (<-ended).Sub(start))
		require.Equal(t, 7*time.Second, (<-ended).Sub(start))
		require.Equal(t, 4, w.connections())
	})
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit Config
		want  int
	}{
		{Config{}, 4},
		{Config{MaxIdlePerOrigin: 2}, 2},
		{Config{MaxIdle: 2}, 2},
		{Config{MaxIdlePerOrigin: -1}, 0}, // as net/http takes it
		{Config{DisableKeepAlives: true}, 0},
	} {
		limit := c.limit
		w := newTCPWorker(t, echo)
		limit.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return w.dial(ctx) }
		pool := New(limit)
		t.Cleanup(pool.CloseIdle)
		var open []*Response
		for range 4 {
			resp, err := pool.Do(t.Context(), w.request("GET", "/"))
			require.NoError(t, err)
			open = append(open, resp)
		}
		for _, resp := range open {
			g := read(resp)
			require.NoError(t, g.err)
			require.Equal(t, limit.DisableKeepAlives, strings.Contains(g.body, "Connection: close\r\n"))
		}
		requireIdle(t, pool, c.want)
	}
}

func TestConnectionsToOneWorkerMayBeBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, echo)
		pool := w.pool(func(c *Config) { c.MaxPerOrigin = 1 })
		first, err := pool.Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = pool.Do(ctx, w.request("GET", "/"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, failure(t, err).NoConnection)
		var waiting sync.WaitGroup
		for range 5 {
			waiting.Go(func() {
				_, err := do(t.Context(), pool, w.request("GET", "/"))
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		read(first)
		waiting.Wait()
		require.Equal(t, 1, w.connections())
	})
}

func TestAConnectionIsUsedOnlyWhereItMayLead(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, echo)
	pool := w.pool()
	refused := errors.New("not there")
	r := w.request("GET", "/")
	allowed := error(nil)
	r.Allowed = func(addr netip.Addr) error {
		require.Equal(t, "127.0.0.1", addr.String())
		return allowed
	}
	_, err := do(t.Context(), pool, r)
	require.NoError(t, err)
	requireIdle(t, pool, 1)
	allowed = refused
	_, err = do(t.Context(), pool, r)
	require.ErrorIs(t, err, refused)
	require.Equal(t, Error{Err: refused, NoConnection: true}, *failure(t, err))
	requireIdle(t, pool, 0)
}

func TestWorkersAreKeptApart(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, echo)
	pool := w.pool()
	for _, origin := range []string{"http://a", "http://b", "http://a:8000", "http://a/base"} {
		r := w.request("GET", "/")
		r.Origin = ParseOrigin(origin)
		_, err := do(t.Context(), pool, r)
		require.NoError(t, err)
	}
	require.Equal(t, 3, w.connections(), "the last one is the first one's")
}

func TestACertificateOfAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	w := newTLSWorker(t, echo)
	pool := w.pool()
	r := w.request("GET", "/")
	r.Origin = ParseOrigin("https://other.test")
	_, err := do(t.Context(), pool, r)
	require.ErrorContains(t, err, "certificate")
	require.True(t, failure(t, err).NoConnection)
	require.False(t, failure(t, err).Connected)
}

func TestAHandshakeMayTakeOnlySoLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) { _, _ = io.Copy(io.Discard, p.r) })
		pool := w.pool(func(c *Config) { c.HandshakeTimeout = 3 * time.Second })
		r := w.request("GET", "/")
		r.Origin = ParseOrigin("https://w")
		start := time.Now()
		_, err := do(t.Context(), pool, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestAWorkerMayLeaveWhatIsSentUnreadOnlySoLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pause = 3 * time.Second
		w := newMemoryWorker(t, func(p *peer) {
			head := p.head()
			if strings.HasPrefix(head, "POST /slow") {
				for read := 0; read < 200_000; {
					time.Sleep(pause - time.Second)
					n, err := io.ReadFull(p.r, make([]byte, 50_000))
					if err != nil {
						return
					}
					read += n
				}
				p.ok("slow")
				return
			}
			time.Sleep(time.Hour)
		})
		pool := w.pool(func(c *Config) { c.WritePause = pause })
		g, err := do(t.Context(), pool, w.post("/slow", strings.Repeat("b", 200_000)))
		require.NoError(t, err)
		require.Equal(t, "slow", g.body)
		start := time.Now()
		_, err = do(t.Context(), pool, w.post("/stuck", strings.Repeat("b", 200_000)))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.True(t, failure(t, err).Sent)
		require.Equal(t, pause+lateAnswer, time.Since(start))
	})
}
