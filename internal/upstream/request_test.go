package upstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnOriginIsWhatAnAdvertiseURLSays(t *testing.T) {
	t.Parallel()
	for advertised, want := range map[string]Origin{
		"http://10.0.0.1:8000":         {Name: "10.0.0.1", Addr: "10.0.0.1:8000", Host: "10.0.0.1:8000"},
		"http://w.example":             {Name: "w.example", Addr: "w.example:80", Host: "w.example"},
		"https://w.example/":           {TLS: true, Name: "w.example", Addr: "w.example:443", Host: "w.example"},
		"https://[2001:db8::1]/a/b/":   {TLS: true, Name: "2001:db8::1", Addr: "[2001:db8::1]:443", Host: "[2001:db8::1]", Base: "/a/b"},
		"http://[2001:db8::1]:80/a%2f": {Name: "2001:db8::1", Addr: "[2001:db8::1]:80", Host: "[2001:db8::1]:80", Base: "/a%2f"},
	} {
		require.Equal(t, want, ParseOrigin(advertised), advertised)
	}
}

func TestARequestIsWrittenAsItIs(t *testing.T) {
	t.Parallel()
	fields, ok := AppendField(nil, "X-A", "1, \t\xff")
	require.True(t, ok)
	fields, _ = AppendField(fields, "X-B", "")
	body := func(r *Request) { r.Body = strings.NewReader("body") }
	for _, c := range []struct {
		method string
		change func(*Request)
		want   string
	}{
		{"GET", nil, "GET /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\n%s\r\n"},
		{"GET", func(r *Request) { r.Host = "" }, "GET /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: \r\n%s\r\n"},
		{"DELETE", nil, "DELETE /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\n%s\r\n"},
		{"POST", nil, "POST /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\nContent-Length: 0\r\n%s\r\n"},
		{"PUT", func(r *Request) { body(r); r.Length = 4 }, "PUT /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n%s\r\n"},
		{"PUT", func(r *Request) { body(r); r.Length, r.Expect = 4, true },
			"PUT /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\nExpect: 100-continue\r\n%s\r\n"},
		{"GET", func(r *Request) { body(r); r.Length = -1 }, "GET /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n%s\r\n"},
		{"GET", func(r *Request) { body(r); r.Length, r.Trailer = -1, http.Header{"X-T": nil, "a b": nil} },
			"GET /base/a%2Fb?c=%zz HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n%s\r\n"},
	} {
		r := &Request{Origin: ParseOrigin("http://w:1/base/"), Method: c.method, Target: "/a%2Fb?c=%zz", Host: "p", Fields: fields}
		if c.change != nil {
			c.change(r)
		}
		require.NoError(t, r.validate())
		want := strings.Replace(c.want, "%s", "X-A: 1, \t\xff\r\nX-B: \r\n", 1)
		require.Equal(t, want, string(r.appendHead(nil, false)))
	}
}

func TestTheLastRequestOnAConnectionSaysSoUnlessItSwitches(t *testing.T) {
	t.Parallel()
	r := &Request{Origin: ParseOrigin("http://w:1"), Method: "GET", Target: "/", Fields: []byte("Connection: Upgrade\r\nUpgrade: websocket\r\n")}
	require.Contains(t, string(r.appendHead(nil, true)), "Connection: close\r\n")
	r.Switch = true
	require.NotContains(t, string(r.appendHead(nil, true)), "close")
}

func TestWhatWouldBeReadAsMoreThanOneRequestIsNotSent(t *testing.T) {
	t.Parallel()
	w := newMemoryWorker(t, echo)
	pool := w.pool()
	for _, change := range []func(*Request){
		func(r *Request) { r.Method = "" },
		func(r *Request) { r.Method = "GET / HTTP/1.1\r\nX: " },
		func(r *Request) { r.Target = "" },
		func(r *Request) { r.Target = "/a b" },
		func(r *Request) { r.Target = "/a\r\nX: b" },
		func(r *Request) { r.Target = "/\x00" },
		func(r *Request) { r.Host = "p\r\nX: b" },
		func(r *Request) { r.Host = "p q" },
	} {
		r := w.request("GET", "/")
		change(r)
		_, err := pool.Do(t.Context(), r)
		require.ErrorIs(t, err, ErrMalformedRequest)
		require.Equal(t, Error{Err: failure(t, err).Err}, *failure(t, err))
	}
	require.Zero(t, w.connections())
	for _, field := range [][2]string{{"", "a"}, {"a b", "c"}, {"a:", "c"}, {"a", "b\r\nc: d"}, {"a", "b\n"}, {"a", "\x00"}, {"a", "\x0b"}, {"a", "\x7f"}, {"ä", "a"}} {
		fields, ok := AppendField([]byte("x"), field[0], field[1])
		require.False(t, ok, field)
		require.Equal(t, "x", string(fields))
	}
}

func TestBodiesArriveWhole(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			for head := p.head(); head != ""; head = p.head() {
				body, trailers, err := p.body(head)
				if err != nil {
					return
				}
				p.ok(body + trailers)
			}
		})
		pool := w.pool()
		for _, size := range []int{0, 1, 1024, smallBuffer, largeBuffer - 8, largeBuffer, 1 << 20} {
			text := strings.Repeat("b", size)
			if size > 0 {
				g, err := do(t.Context(), pool, w.post("/", text))
				require.NoError(t, err)
				require.NoError(t, g.err)
				require.True(t, text == g.body, "%d: %d", size, len(g.body))
			}
			r := w.post("/", text)
			r.Length = -1
			r.Trailer = http.Header{"X-Sum": nil, "Bad\r\n": {"x"}}
			r.Body = io.MultiReader(r.Body, atEOF(func() { r.Trailer["X-Sum"] = []string{"1", "2"} }))
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.NoError(t, g.err)
			require.True(t, text+"X-Sum: 1\r\nX-Sum: 2\r\n" == g.body, "%d: %d", size, len(g.body))
		}
		require.Equal(t, 1, w.connections())
	})
}

// atEOF is an empty body.
type atEOF func()

func (f atEOF) Read([]byte) (int, error) { f(); return 0, io.EOF }

// A worker may answer while it does not read, and goes on to send.
func TestAnEarlyAnswerDoesNotWaitForTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			time.Sleep(time.Second) // the client's write is stuck by now
			p.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno")
			<-p.t.Context().Done()
		})
		pool := w.pool()
		g, err := do(t.Context(), pool, w.post("/", strings.Repeat("b", 1<<20)))
		require.NoError(t, err)
		require.NoError(t, g.err)
		require.Equal(t, 413, g.Status)
		require.Equal(t, "no", g.body)
		requireIdle(t, pool, 0)
	})
}

func TestAHeadWaitsForItsBodyOnlyAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		heads := make(chan time.Time, 1)
		w := newMemoryWorker(t, func(p *peer) {
			head := p.head()
			heads <- time.Now()
			body, _, _ := p.body(head)
			p.ok(body)
		})
		start := time.Now()
		r := w.post("/", "text")
		r.Body = io.MultiReader(atEOF(func() { time.Sleep(time.Hour) }), r.Body)
		g, err := do(t.Context(), w.pool(), r)
		require.NoError(t, err)
		require.Equal(t, "text", g.body)
		require.Equal(t, headDelay, (<-heads).Sub(start))
	})
}

// C11
func TestAnExpectedBodyIsSentOnlyWhenItIsAskedFor(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			for head := p.head(); head != ""; head = p.head() {
				if strings.Contains(head, "/refused") {
					p.send("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
					if rest, _ := io.ReadAll(p.r); len(rest) > 0 {
						p.t.Errorf("a body that was not asked for: %q", rest)
					}
					return
				}
				p.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
				body, _, _ := p.body(head)
				p.ok(body)
			}
		})
		pool := w.pool()
		for range 20 {
			r := w.post("/refused", "text")
			r.Expect = true
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.Equal(t, 503, g.Status)
			requireIdle(t, pool, 0)
		}
		for range 5 {
			r := w.post("/", "text")
			r.Expect = true
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.Equal(t, "text", g.body)
		}
		require.Equal(t, 21, w.connections())
	})
}

func TestAWorkerThatIgnoresAnExpectationGetsTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, echo)
		r := w.post("/", "text")
		r.Expect = true
		start := time.Now()
		g, err := do(t.Context(), w.pool(), r)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(g.body, "text"), g.body)
		require.Equal(t, 5*time.Second, time.Since(start))
	})
}

func TestABodyThatFailsEndsTheRequest(t *testing.T) {
	t.Parallel()
	planted := errors.New("planted")
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		for _, c := range []struct {
			body   io.Reader
			length int64
			want   error
		}{
			{io.MultiReader(strings.NewReader("te"), iotest.ErrReader(planted)), 4, planted},
			{io.MultiReader(strings.NewReader("te"), iotest.ErrReader(planted)), -1, planted},
			{strings.NewReader("te"), 4, errShort},
			{strings.NewReader("texts"), 4, errSurplus},
		} {
			got := make(chan string, 1)
			w := start(t, func(p *peer) {
				head := p.head()
				body, trailers, err := p.body(head)
				if head != "" && err == nil {
					got <- body + trailers
				}
				close(got)
			})
			r := w.post("/", "")
			r.Body, r.Length = c.body, c.length
			_, err := do(t.Context(), w.pool(), r)
			require.ErrorIs(t, err, c.want)
			whole, ok := <-got
			require.False(t, ok, "it looked whole: %q", whole)
		}
	})
}

func TestContentIsSentWithTheHead(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, echo)
		pool := w.pool()
		for _, size := range []int{1, 100, smallBuffer - headRoom, smallBuffer, 20_000, 100_000} {
			r := w.request("POST", "/")
			r.Content = []byte(strings.Repeat("c", size))
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(g.body, string(r.Content)), "%d bytes", size)
			require.Contains(t, g.body, fmt.Sprintf("Content-Length: %d\r\n", size))
			requireIdle(t, pool, 1)
		}
		require.Equal(t, 1, w.connections())
	})
}

// The worker may have read it before it closed.
func TestContentIsNotSentTwice(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		var posts atomic.Int32
		w := start(t, func(p *peer) {
			if head := p.head(); strings.HasPrefix(head, "POST") {
				posts.Add(1)
				_, _, _ = p.body(head)
				return
			}
			p.ok("idle now")
			if head := p.head(); strings.HasPrefix(head, "POST") {
				posts.Add(1)
				_, _, _ = p.body(head)
			}
		})
		pool := w.pool()
		_, err := do(t.Context(), pool, w.request("GET", "/"))
		require.NoError(t, err)
		r := w.request("POST", "/")
		r.Content = []byte("once")
		_, err = do(t.Context(), pool, r)
		require.True(t, failure(t, err).Sent)
		require.EqualValues(t, 1, posts.Load())
	})
}
