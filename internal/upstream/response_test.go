package upstream

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// once answers every request with the same raw bytes, and ends the connection
// if these do not say where they end.
func once(raw string, last bool) func(*peer) {
	return func(p *peer) {
		for head := p.head(); head != ""; head = p.head() {
			p.send(raw)
			if last {
				return
			}
		}
	}
}

func TestAnswersAreReadForWhatTheyAre(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", largeBuffer)
	for _, c := range []struct {
		method, raw string
		status      int
		header      Header
		length      int64
		body        string
		trailer     Header
		keep        bool
	}{
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", 200, Header{{"Content-Length", "4"}}, 4, "body", nil, true},
		{"GET", "HTTP/1.1 200\r\ncontent-length:4 \t\r\nX-A:\r\nx-a: \t b \xff\t\r\n\r\nbody", 200,
			Header{{"Content-Length", "4"}, {"X-A", ""}, {"X-A", "b \xff"}}, 4, "body", nil, true},
		{"GET", "HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", 404, Header{{"Content-Length", "0"}}, 0, "", nil, true},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", 200, Header{{"Content-Length", "4"}}, 0, "", nil, true},
		{"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, Header{{"Transfer-Encoding", "chunked"}}, 0, "", nil, true},
		{"GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, Header{}, 0, "", nil, true},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n", 304, Header{{"Content-Length", "4"}}, 0, "", nil, true},
		{"GET", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 4\r\n\r\nbody", 200,
			Header{{"Connection", "x, Close"}, {"Content-Length", "4"}}, 4, "body", nil, false},
		{"GET", "HTTP/1.1 200 OK\r\n\r\n" + long, 200, Header{}, -1, long, nil, false},
		{"GET", "HTTP/1.0 200 OK\r\n\r\nbody", 200, Header{}, -1, "body", nil, false},
		{"GET", "HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody", 200,
			Header{{"Content-Length", "4"}, {"Connection", "keep-alive"}}, 4, "body", nil, false},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodyX", 200, Header{{"Content-Length", "4"}}, 4, "body", nil, false},
		{"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n4\r\nbody\r\n0A;x=\"y\"\r\n0123456789\r\n1 \t\r\n!\r\n00\r\n\r\n", 200,
			Header{{"Transfer-Encoding", "Chunked"}}, -1, "body0123456789!", nil, true},
		{"GET", "HTTP/1.1 200 OK\r\nTrailer: X-T, x-u,, b c\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + long + "\r\n0\r\nx-t: 1\r\nX-Other: 2\r\n\r\n", 200,
			Header{{"Trailer", "X-T, x-u,, b c"}, {"Transfer-Encoding", "chunked"}}, -1, long, Header{{"X-T", "1"}, {"X-Other", "2"}}, true},
	} {
		onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
			w := start(t, once(c.raw, !c.keep))
			pool := w.pool()
			for range 2 {
				g, err := do(t.Context(), pool, w.request(c.method, "/"))
				require.NoError(t, err)
				require.NoError(t, g.err)
				require.Equal(t, c.status, g.Status)
				require.Equal(t, c.header, g.Header)
				require.Equal(t, c.length, g.Length)
				require.True(t, c.body == g.body, "%.99q", g.body)
				require.Equal(t, c.trailer, g.Trailer)
			}
			want := 2
			if c.keep {
				want = 1
			}
			require.Equal(t, want, w.connections())
		})
	}
}

func TestAnAnswerThatCouldBeReadInTwoWaysIsAnError(t *testing.T) {
	t.Parallel()
	const ok, chunked = "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, raw := range []string{
		// Status lines.
		"\r\nHTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.2 200 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 +20 OK\r\n\r\n", "HTTP/1.1 099 OK\r\n\r\n", "http/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 O\rK\r\n\r\n", "HTTP/1.1 200 O\x00K\r\n\r\n", "ICY 200 OK\r\n\r\n",
		// Lines.
		"HTTP/1.1 200 OK\nContent-Length: 0\n\n", ok + "Content-Length: 0\n\r\n", ok + "Content-Length: 0\r\n\n",
		ok + "Content-Length: 0\r\nX\n", ok + "X: a\rContent-Length: 9\r\n\r\n", ok + "X: a\x00\r\n\r\n", ok + "X: a\x0bb\r\n\r\n", ok + "X: \x7f\r\n\r\n", ok + "X: a\r\n b\r\n\r\n", ok + "\tX: a\r\n\r\n",
		ok + "X : a\r\n\r\n", ok + "Content-Length : 0\r\n\r\n", ok + ": a\r\n\r\n", ok + "X\r\n\r\n", ok + "X a: b\r\n\r\n",
		// Framing.
		ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", ok + "Content-Length: 1\r\ncontent-length: 1\r\n\r\na",
		ok + "Content-Length: 1, 1\r\n\r\na", ok + "Content-Length: +1\r\n\r\na", ok + "Content-Length: -1\r\n\r\n",
		ok + "Content-Length: 0x1\r\n\r\na", ok + "Content-Length:\r\n\r\n", ok + "Content-Length: 1_0\r\n\r\n0123456789",
		ok + "Content-Length: 9223372036854775808\r\n\r\n", ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ok + "Transfer-Encoding: xchunked\r\n\r\n",
		ok + "Transfer-Encoding:\r\n\r\n", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		ok + "Trailer: x, content-length\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		// Chunks.
		chunked + "\r\n", chunked + "x\r\n", chunked + "-1\r\n", chunked + "0x1\r\na\r\n0\r\n\r\n", chunked + " 1\r\na\r\n0\r\n\r\n",
		chunked + "1\na\r\n0\r\n\r\n", chunked + "1\r\na\n0\r\n\r\n", chunked + "1\r\nab\r\n0\r\n\r\n", chunked + "1 2\r\na\r\n0\r\n\r\n",
		chunked + "1;a\rb\r\na\r\n0\r\n\r\n", chunked + "10000000000000001\r\na\r\n0\r\n\r\n", chunked + "0\r\nX : a\r\n\r\n",
		chunked + "0\r\nX: a\n\r\n", chunked + "1;" + strings.Repeat("x", smallBuffer) + "\r\na\r\n0\r\n\r\n",
		// Broken off.
		"", "HTTP/1.1 200 OK", ok + "Content-Length: 2\r\n", ok + "Content-Length: 2\r\n\r\na", chunked, chunked + "2\r\na", chunked + "1\r\na",
		chunked + "1\r\na\r\n", chunked + "1\r\na\r\n0\r\n", chunked + "1\r\na\r\n0\r\nX: a\r\n",
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			w := newTCPWorker(t, once(raw, true))
			pool := w.pool()
			r := w.request("GET", "/")
			r.Repeatable = false
			g, err := do(t.Context(), pool, r)
			if err == nil {
				err = g.err
			} else {
				require.Equal(t, Error{Err: err.(*Error).Err, Connected: true, Sent: true}, *failure(t, err))
			}
			require.Error(t, err, "%q", raw)
			require.NotErrorIs(t, err, io.EOF, "%q", raw)
			requireIdle(t, pool, 0)
		})
	}
}

func TestInformationalAnswersPassInOrder(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, once("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"+
			"HTTP/1.1 102 Processing\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", false))
		pool := w.pool()
		for range 2 {
			var seen []int
			r := w.request("GET", "/")
			r.Inform = func(status int, h Header) error {
				if seen = append(seen, status); status == 103 {
					require.Equal(t, "</a>", h.Get("Link"))
				}
				return nil
			}
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.Equal(t, []int{103, 100, 102}, seen)
			require.Equal(t, Header{{"Content-Length", "4"}}, g.Header)
			require.Equal(t, "body", g.body)
		}
		require.Equal(t, 1, w.connections())
	})
}

func TestHeadsAndTrailersHaveALimitTogether(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 10_000) + "\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20_000), // and never an end
		strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 500) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("x", 10_000) + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: 1\r\n", 2_000),
	} {
		w := newTCPWorker(t, func(p *peer) {
			p.head()
			p.send(raw)
			_, _ = io.Copy(io.Discard, p.r)
		})
		g, err := do(t.Context(), w.pool(func(c *Config) { c.MaxHeaderBytes = 8 << 10 }), w.request("GET", "/"))
		if err == nil {
			err = g.err
		}
		require.ErrorIs(t, err, errTooLong, "%.60q", raw)
	}
	w := newTCPWorker(t, once("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 900_000)+"\r\nContent-Length: 0\r\n\r\n", false))
	pool := w.pool()
	for range 2 {
		g, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		require.Len(t, g.Header.Get("X"), 900_000)
	}
	require.Equal(t, 1, w.connections())
}

func TestAnAnswerIsReadAsItComes(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		step := make(chan string)
		w := start(t, func(p *peer) {
			p.head()
			for raw := range step {
				p.send(raw)
			}
		})
		defer close(step)
		resp, err := func() (*Response, error) {
			go func() { step <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" }()
			return w.pool().Do(t.Context(), w.request("GET", "/"))
		}()
		require.NoError(t, err)
		defer resp.Close()
		require.False(t, resp.Ready())
		step <- "3\r\none\r\n"
		piece, err := resp.Next()
		require.NoError(t, err)
		require.Equal(t, "one", string(piece))
		step <- "3\r\ntwo\r\n5\r"
		piece, err = resp.Next()
		require.NoError(t, err)
		require.Equal(t, "two", string(piece))
		require.False(t, resp.Ready(), "what is there is not a piece yet")
		step <- "\nthree\r\n0\r\n\r\n"
		piece, err = resp.Next()
		require.Equal(t, io.EOF, err)
		require.Equal(t, "three", string(piece))
	})
}

func TestAProtocolSwitchHandsTheConnectionOver(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nearly")
			_, _ = io.Copy(p.Conn, p.r)
		})
		pool := w.pool()
		resp, err := pool.Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, resp.Status)
		conn, early := resp.Conn()
		got := append([]byte(nil), early...)
		_, err = io.WriteString(conn, "-late")
		require.NoError(t, err)
		rest := make([]byte, len("early-late")-len(early))
		_, err = io.ReadFull(conn, rest)
		require.NoError(t, err)
		require.Equal(t, "early-late", string(append(got, rest...)))
		resp.Close()
		requireIdle(t, pool, 0)
		_, err = conn.Read(rest)
		require.Error(t, err)
	})
}

func TestSurplusEndsAConnection(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		for _, raw := range []string{
			"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody!", "HTTP/1.1 204 No Content\r\n\r\nbody",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
		} {
			w := start(t, once(raw, false))
			pool := w.pool()
			for range 2 {
				g, err := do(t.Context(), pool, w.request("GET", "/"))
				require.NoError(t, err)
				require.NoError(t, g.err)
				requireIdle(t, pool, 0)
			}
			require.Equal(t, 2, w.connections())
		}
	})
}

// What could not be sent does not shorten an answer that has begun.
func TestAnAnswerMayTakeLongerThanTheRequestThatFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
			time.Sleep(time.Minute)
			p.send("body")
		})
		pool := w.pool(func(c *Config) { c.WritePause = time.Second })
		g, err := do(t.Context(), pool, w.post("/", strings.Repeat("b", 1<<20)))
		require.NoError(t, err)
		require.NoError(t, g.err)
		require.Equal(t, "body", g.body)
	})
}

func TestNothingLiftsAnAbort(t *testing.T) {
	t.Parallel()
	w := newMemoryWorker(t, func(p *peer) { <-p.t.Context().Done() })
	raw, err := w.dial(t.Context())
	require.NoError(t, err)
	c := newConn(raw, nil, time.Hour)
	defer func() { _ = c.Close() }()
	c.abort()
	c.readBy(time.Time{})
	require.ErrorIs(t, c.fill(), os.ErrDeadlineExceeded)
	require.ErrorIs(t, c.write([]byte("x"), nil), os.ErrDeadlineExceeded)
}

func TestCancellingEndsWhateverWaits(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		reached := make(chan struct{}, 1)
		ended := make(chan struct{}, 1)
		w := start(t, func(p *peer) {
			head := p.head()
			switch {
			case strings.Contains(head, "/upload"):
				_, _ = p.r.Peek(1)
			}
			reached <- struct{}{}
			_, _ = io.Copy(io.Discard, p.r)
			ended <- struct{}{}
		})
		pool := w.pool()
		for _, path := range []string{"/head", "/upload"} {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-reached; cancel() }()
			r := w.request("GET", path)
			if path == "/upload" {
				r = w.post(path, "b")
				stuck, write := io.Pipe()
				r.Body, r.Length = io.MultiReader(r.Body, stuck), 9
				defer func() { _ = write.Close() }()
			}
			_, err := pool.Do(ctx, r)
			require.Error(t, err)
			require.True(t, failure(t, err).Sent)
			<-ended
		}
		requireIdle(t, pool, 0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := pool.Do(ctx, w.request("GET", "/"))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, Error{Err: context.Canceled, NoConnection: true}, *failure(t, err))
	})
}

func TestCancellingEndsABody(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		ended := make(chan struct{})
		w := start(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbo")
			_, _ = io.Copy(io.Discard, p.r)
			close(ended)
		})
		pool := w.pool()
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := pool.Do(ctx, w.request("GET", "/"))
		require.NoError(t, err)
		piece, err := resp.Next()
		require.NoError(t, err)
		require.Equal(t, "bo", string(piece))
		go cancel()
		_, err = resp.Next()
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
		_, again := resp.Next()
		require.Equal(t, err, again)
		resp.Close()
		resp.Close()
		_, err = resp.Next()
		require.Error(t, err)
		<-ended
		requireIdle(t, pool, 0)
		requireUnused(t, pool)
	})
}
