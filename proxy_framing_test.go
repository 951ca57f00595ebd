package pinboard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// smuggled is a request that nobody but a fault of framing makes one of.
const smuggled = "GET /counters/smuggled HTTP/1.1\r\nHost: p\r\n\r\n"

// Whether a request ends here or there is a matter of one reading: what could be
// read in two ways is refused before a worker sees any of it.
func TestARequestWhoseEndIsInDoubtReachesNobody(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.body(); h.ok("") })
	f.register(w, "a")
	const post, host = "POST /counters/alice HTTP/1.1\r\n", "Host: p\r\n"
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for _, request := range []string{
		post + host + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
		post + host + "Content-Length: 1, 1\r\n\r\nx",
		post + host + "Content-Length: +1\r\n\r\nx",
		post + host + "Content-Length: -1\r\n\r\nx",
		post + host + "Content-Length: 0x1\r\n\r\nx",
		post + host + "Content-Length: 1 1\r\n\r\nx",
		post + host + "Content-Length: 99999999999999999999\r\n\r\n",
		post + host + "Content-Length:\r\n\r\n",
		post + host + "Content-Length : 44\r\n\r\n",
		post + host + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: identity\r\n\r\n",
		post + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
		post + host + "Transfer-Encoding: chunked\r\n" + chunked + "0\r\n\r\n",
		post + host + "Trailer: Content-Length\r\n" + chunked + "0\r\nContent-Length: 44\r\n\r\n",
		post + host + "Trailer: Transfer-Encoding\r\n" + chunked + "0\r\nTransfer-Encoding: chunked\r\n\r\n",
		post + host + "X-A: b\rContent-Length: 44\r\n\r\n",
		post + host + "X-A: b\x00c\r\n\r\n",
		post + host + "X\x00A: b\r\n\r\n",
		post + host + "Pinboard-Epoch : 1\r\n\r\n",
		post + host + "no colon\r\n\r\n",
		post + " X-A: b\r\n" + host + "\r\n",
		post + host + host + "\r\n",
		post + "\r\n",
		post + "Host: a b\r\n\r\n",
		post + "Host: p/counters\r\n\r\n",
		"GET /counters/alice\r\n\r\n",
		"GET /counters/alice HTTP/2.0\r\nHost: p\r\n\r\n",
		"GET\t/counters/alice\tHTTP/1.1\r\nHost: p\r\n\r\n",
		"GET /counters/alice /counters/bob HTTP/1.1\r\nHost: p\r\n\r\n",
		"G(T /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n",
		"GET http://a%20b/counters/alice HTTP/1.1\r\nHost: p\r\n\r\n",
		"GET http://a%2fb/counters/alice HTTP/1.1\r\nHost: p\r\n\r\n",
	} {
		c := f.ask(request + smuggled)
		resp := c.answer("GET")
		require.GreaterOrEqual(t, resp.StatusCode, 400, "%q", request)
		require.True(t, resp.Close, "%q", request)
		require.Empty(t, w.seen(), "%q", request)
		require.NoError(t, c.Close())
	}
}

// Here the worker may have the request already, but not its end.
func TestABodyWhoseEndIsInDoubtNeverEnds(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		if body, err := h.bodyErr(); err == nil {
			h.t.Errorf("a whole body: %q", body)
		}
		h.last = true
	})
	f.register(w, "a")
	for _, chunks := range []string{
		"1\nx\n0\n\n", "1;\nx\r\n0\r\n\r\n", "0x1\r\nx\r\n0\r\n\r\n", "-1\r\nx\r\n0\r\n\r\n", "+1\r\nx\r\n0\r\n\r\n", "\r\nx\r\n0\r\n\r\n",
		"10000000000000001\r\nx\r\n0\r\n\r\n", "1\r\nxyz\r\n0\r\n\r\n", "1\r\nx0\r\n\r\n", "g\r\n0\r\n\r\n",
		"0\r\nX-A: b\rc\r\n\r\n", "0\r\nno colon\r\n\r\n",
	} {
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + smuggled)
		resp := c.answer("POST")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, "%q", chunks)
		require.True(t, resp.Close, "%q", chunks)
		require.NoError(t, c.Close())
	}
	require.NotContains(t, w.bytes(), "smuggled")
}

// What is odd but has one reading is framed anew: a worker sees one framing, and
// the request behind it is the client's next.
func TestARequestIsFramedAnewForItsWorker(t *testing.T) {
	t.Parallel()
	const chunked = "4\r\nbody\r\n0\r\n\r\n"
	for _, c := range []struct{ head, sent, framing string }{
		{"Content-Length: 200\r\nTransfer-Encoding: chunked", chunked, "chunked"},
		{"Transfer-Encoding: chunked\r\nContent-Length: 0", chunked, "chunked"},
		{"transfer-ENCODING: ChUnKeD", chunked, "chunked"},
		{"Transfer-Encoding:\r\n chunked", chunked, "chunked"},
		{"Connection: transfer-encoding, trailer\r\nTransfer-Encoding: chunked", chunked, "chunked"},
		{"Transfer-Encoding: chunked", "1;a=\"0\\r\\n\"\r\nb\r\n0003 \r\nody\r\n00;x\r\n\r\n", "chunked"},
		{"Content-Length: 4\r\nContent-Length: 4", "body", ""},
		{"Content-Length: 004", "body", ""},
		{"Content-Length: \t4 \t", "body", ""},
		{"Connection: content-length, expect, host\r\nContent-Length: 4", "body", ""},
		{"Trailer: X-A\r\nContent-Length: 4", "body", ""},
		{"TE: chunked, gzip\r\nContent-Length: 4", "body", ""},
	} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.ok(h.target + " " + h.body()) })
		f.register(w, "a")
		client := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\n" + c.head + "\r\n\r\n" + c.sent + "GET /counters/next HTTP/1.1\r\nHost: p\r\n\r\n")
		_, body := client.whole("POST")
		require.Equal(t, "/counters/alice body", body, c.head)
		_, body = client.whole("GET")
		require.Equal(t, "/counters/next ", body, c.head)
		hits := w.seen()
		require.Len(t, hits, 2)
		require.Equal(t, c.framing, hits[0].header.Get("Transfer-Encoding"), c.head)
		if c.framing == "" {
			require.Equal(t, []string{"4"}, hits[0].header["Content-Length"], c.head)
		} else {
			require.NotContains(t, hits[0].header, "Content-Length", c.head)
		}
		require.Equal(t, "p", hits[0].header.Get("Host"))
		for _, name := range []string{"Connection", "Te", "Trailer"} {
			require.NotContains(t, hits[0].header, name, c.head)
		}
	}
}

// HTTP/1.0 knows no chunks, and keeps a connection only if asked to.
func TestOldClientsAreFramedByTheirLengthOrTheirEnd(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(h.target), h.target))
		h.body()
	})
	f.register(w, "a")
	got, err := f.ask("POST /counters/alice HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled).rest()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n"), got)
	require.True(t, strings.HasSuffix(got, "\r\n\r\n/counters/alice"), "no chunks, and the end: %s", got)
	require.NotContains(t, got, "Transfer-Encoding")
	require.Len(t, w.seen(), 1)
	require.NotContains(t, w.only().header, "Transfer-Encoding")
}

// Their server knows no chunks, whatever they say: a body would be the next request.
func TestAnOldClientsConnectionEndsWithItsAnswer(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	for _, target := range []string{"/counters/alice", "/counters/", "/healthz", "/registry/workers", "/a/../b"} {
		got, err := f.ask("POST " + target + " HTTP/1.0\r\nHost: p\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled).rest()
		require.NoError(t, err, target)
		require.Equal(t, 1, strings.Count(got, "HTTP/1."), got)
		require.Contains(t, got, "\r\nConnection: close\r\n", target)
	}
	require.NotContains(t, w.bytes(), "smuggled")
}

func TestPipelinedRequestsAreAnsweredInTheirOrder(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	first := make(chan struct{})
	w := newFake(t, func(h *hit) {
		body := h.body()
		if strings.HasSuffix(h.target, "/0") {
			<-first
		}
		h.ok(h.target + body)
	})
	f.register(w, "a")
	var all strings.Builder
	for i := range 20 {
		fmt.Fprintf(&all, "POST /counters/id-%d/%d HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n\r\n%02d", i%3, i, i)
	}
	c := f.ask(all.String())
	close(first)
	for i := range 20 {
		_, body := c.whole("POST")
		require.Equal(t, fmt.Sprintf("/counters/id-%d/%d%02d", i%3, i, i), body)
	}
}

// A client that leaves in the middle of an answer or of its body leaves nothing
// on a connection that another client's request goes over.
func TestAbortedRequestsSpoilNoConnection(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		body, err := h.bodyErr()
		if err != nil {
			h.last = true
			return
		}
		h.ok(h.target + body + strings.Repeat("x", 100_000))
	})
	f.register(w, "a")
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for j := range 25 {
				path := fmt.Sprintf("/counters/alice/%d-%d", i, j)
				switch i % 4 {
				case 0: // leaves in the middle of the answer
					c := f.ask("GET " + path + " HTTP/1.1\r\nHost: p\r\n\r\n")
					_, _ = c.r.ReadString('\n')
					_ = c.Close()
				case 1: // leaves in the middle of the body
					c := f.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\npart")
					_ = c.Close()
				default:
					resp, body := f.post(path, "mine")
					if resp.StatusCode != 200 || body != path+"mine"+strings.Repeat("x", 100_000) {
						t.Errorf("%s got %d %.40s", path, resp.StatusCode, body)
					}
				}
			}
		})
	}
	clients.Wait()
}

// An answer with two readings is nobody's answer.
func TestAnAnswerWhoseFramingIsInDoubtIsABadGateway(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	for _, answer := range []string{
		"200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"200 OK\r\nContent-Length: 1, 1\r\n\r\na",
		"200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"200 OK\r\nContent-Length : 5\r\nPinned-Refusal : x\r\nContent-Length: 0\r\n\r\n",
		"200 OK\r\nContent-Length: +1\r\n\r\na",
		"200 OK\r\nContent-Length: -1\r\n\r\na",
		"200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"200 OK\r\nTrailer: Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n",
		"200 OK\r\nX-A: a\rSet-Cookie: evil=1\r\nContent-Length: 0\r\n\r\n",
		"200 OK\r\nX-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
		"200 OK\r\nX(A): a\r\nContent-Length: 0\r\n\r\n",
		"200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
		"1000 OK\r\nContent-Length: 0\r\n\r\n",
		"-20 OK\r\nContent-Length: 0\r\n\r\n",
		"000 OK\r\nContent-Length: 0\r\n\r\n",
		"099 OK\r\nContent-Length: 0\r\n\r\n",
	} {
		f := newFront(t, func(s *setup) { s.opts.Logger = zap.New(core) })
		w := newFake(t, func(h *hit) { h.send("HTTP/1.1 " + answer); h.last = true })
		f.register(w, "a")
		for _, request := range []string{"GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n", upgradeRequest("/counters/alice")} {
			resp, body := f.ask(request).whole("GET")
			require.Equal(t, http.StatusBadGateway, resp.StatusCode, answer)
			errorOf(t, body)
			require.Len(t, logs.TakeAll(), 1, answer)
		}
	}
}

// What is odd but has one reading is framed anew for the client.
func TestAnAnswerIsFramedAnewForItsClient(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ answer, head, body string }{
		{"200 OK\r\nContent-Length: 1\r\n\r\nabc", "Content-Length: 1", "a"},
		{"200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n0\r\nX-A: 1\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
			"Trailer: X-A Transfer-Encoding: chunked", "0\r\nX-A: 1\r\n\r\n"},
		{"204 No Content\r\nContent-Length: 5\r\n\r\nhello", "", ""},
		{"204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "", ""},
		{"304 Not Modified\r\nContent-Length: 5\r\n\r\nhello", "", ""},
		{"200 OK\r\nConnection: Content-Type\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\n<html>", "Content-Length: 6", "<html>"},
		{"200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0", ""},
		{"200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "Content-Length: 0", ""},
	} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.send("HTTP/1.1 " + c.answer); h.gone() })
		f.register(w, "a")
		raw, err := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").rest()
		require.NoError(t, err)
		head, body, _ := strings.Cut(raw, "\r\n\r\n")
		var kept []string
		for i, line := range strings.Split(head, "\r\n") {
			if i > 0 && !strings.HasPrefix(line, "Date: ") && line != "Connection: close" {
				kept = append(kept, line)
			}
		}
		require.Equal(t, c.head, strings.Join(kept, " "), c.answer)
		require.Equal(t, c.body, body, c.answer)
	}
}

func TestA101HasNoBody(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.accept("Content-Length: 5", "Transfer-Encoding: chunked"); h.gone() })
	f.register(w, "a")
	resp := f.ask(upgradeRequest("/counters/alice")).answer("GET")
	require.Equal(t, 101, resp.StatusCode)
	require.Equal(t, http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"b"},
	}, resp.Header)
}

func TestAMethodThatIsNoWordIs400(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	for _, method := range []string{"GET /counters/bob HTTP/1.1", "G\r\nT", "GÉT", "G(T"} {
		r := httptest.NewRequest(http.MethodGet, "/counters/alice", http.NoBody)
		r.Method = method
		rec := httptest.NewRecorder()
		f.pb.ServeHTTP(rec, r)
		require.Equal(t, http.StatusBadRequest, rec.Code, method)
	}
	require.Empty(t, w.seen())
}

// A worker may send more than its answer: a body where none may be, or one
// longer than it said. The connection may be in the pool again before that is
// noticed.
func TestWhatAWorkerSendsBeyondAnAnswerIsNobodysAnswer(t *testing.T) {
	t.Parallel()
	const more = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	for _, c := range []struct{ method, answer string }{
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"},
		{"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 81\r\n\r\n"},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 81\r\n\r\n"},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 81\r\n\r\n"},
	} {
		inHoldBubble(t, withHold(0), func(t *testing.T, b *holdBubble) {
			b.misbehaving("a:80", c.answer+more)
			(&front{t: t, pb: b.pb, store: b.store}).register(&fake{addr: "a:80"}, "a")
			call := func(ctx context.Context, method, path, body string) *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
				rec := httptest.NewRecorder()
				b.pb.ServeHTTP(rec, r)
				return rec
			}
			// The transport takes a second (of virtual time) to look at the
			// connection once it has pooled it.
			slow := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{PutIdleConn: func(error) { time.Sleep(time.Second) }})
			first := make(chan struct{})
			go func() {
				defer close(first)
				call(slow, c.method, "/counters/alice/bad", "")
			}()
			time.Sleep(time.Second / 2)
			rec := call(t.Context(), "POST", "/counters/alice/good", "body")
			require.Equal(t, 200, rec.Code, c.answer)
			require.Equal(t, "good body", rec.Body.String(), c.answer)
			<-first
		})
	}
}

// misbehaving has a worker answer requests that end in /bad with these bytes.
func (b *holdBubble) misbehaving(addr, answer string) {
	listener := newPipeListener()
	b.t.Cleanup(func() { _ = listener.Close() })
	b.mu.Lock()
	b.machines[addr] = listener
	b.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveBytes(conn, answer)
		}
	}()
}

func serveBytes(conn net.Conn, answer string) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		text := answer
		if !strings.HasSuffix(r.URL.Path, "/bad") {
			text = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\ngood %s", len("good ")+len(body), body)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			return
		}
	}
}
