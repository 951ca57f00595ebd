package pinboard

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEarlyHintsPassAndDoNotLeakIntoTheAnswer(t *testing.T) { // C14
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Host", "1") // something of the host's own
				h.ServeHTTP(w, r)
			})
		}
	})
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\npinned-x: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n" +
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
		if h.target == "/counters/alice/dies" {
			h.last = true
			return
		}
		h.ok("done")
	})
	f.register(w, "a")
	const hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
	var clients sync.WaitGroup
	for range 200 {
		c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
		clients.Go(func() {
			got, err := c.rest()
			answer, ok := strings.CutPrefix(got, hints+"HTTP/1.1 200 OK\r\n")
			assert.NoError(t, err)
			assert.True(t, ok, got)
			assert.Contains(t, answer, "X-Host: 1")
			assert.NotContains(t, answer, "Link")
			assert.True(t, strings.HasSuffix(answer, "\r\n\r\ndone"), got)
		})
	}
	clients.Wait()
	got, err := f.ask("GET /counters/alice/dies HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").rest()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(got, hints+"HTTP/1.1 502 Bad Gateway\r\n"), got)
}

func TestOldClientsGetNoInformationalAnswer(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.send("HTTP/1.1 103 Early Hints\r\n\r\n"); h.ok("done") })
	f.register(w, "a")
	got, err := f.ask("GET /counters/alice HTTP/1.0\r\nHost: p\r\n\r\n").rest()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(got, "HTTP/1.0 200 OK\r\n"), got)
	require.True(t, strings.HasSuffix(got, "\r\n\r\ndone"), got)
}

func TestAStreamIsFlushedAsItComes(t *testing.T) { // C15
	t.Parallel()
	bothWays(t, testAStreamIsFlushedAsItComes)
}

func testAStreamIsFlushedAsItComes(t *testing.T, way func(*setup)) {
	for _, kind := range []string{
		"text/event-stream", "text/event-stream;charset=utf-8", "Text/Event-Stream", "application/x-ndjson", "",
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/1.0"} {
			f := newFront(t, way)
			step := make(chan struct{})
			w := newFake(t, func(h *hit) {
				h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
				if kind != "" {
					h.send("Content-Type: " + kind + "\r\n")
				}
				h.send("\r\n")
				for range 3 {
					<-step
					h.send("8\r\ndata: x\n\r\n")
				}
				<-step
				h.send("0\r\n\r\n")
			})
			f.register(w, "a")
			c := f.ask("GET /counters/alice " + proto + "\r\nHost: p\r\n\r\n")
			resp := c.answer("GET") // before the first event
			require.Equal(t, kind, resp.Header.Get("Content-Type"))
			for range 3 {
				step <- struct{}{}
				event := make([]byte, 8)
				_, err := io.ReadFull(resp.Body, event)
				require.NoError(t, err)
				require.Equal(t, "data: x\n", string(event))
			}
			step <- struct{}{}
			_, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
		}
	}
}

func TestTheHeadOfALongAnswerDoesNotWaitForItsBody(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	step := make(chan struct{})
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
		<-step
		h.send("ab")
		<-step
		h.send("cd")
	})
	f.register(w, "a")
	c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	resp := c.answer("GET")
	require.EqualValues(t, 4, resp.ContentLength)
	for _, want := range []string{"ab", "cd"} {
		step <- struct{}{}
		got := make([]byte, 2)
		_, err := io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

// unwrapping is a middleware as hosts have them.
type unwrapping struct{ http.ResponseWriter }

func (u unwrapping) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func TestStreamsAndTunnelsOutliveTheHostsLimitsAndPlainAnswersDoNot(t *testing.T) { // C16
	t.Parallel()
	bothWays(t, testStreamsAndTunnelsOutliveTheHostsLimitsAndPlainAnswersDoNot)
}

func testStreamsAndTunnelsOutliveTheHostsLimitsAndPlainAnswersDoNot(t *testing.T, way func(*setup)) {
	const limit = time.Second // in which a busy machine, too, gets to the answer
	f := newFront(t, way, func(s *setup) {
		s.server.ReadTimeout, s.server.WriteTimeout = limit, limit
		s.handler = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapping{w}, r) })
		}
	})
	// The worker speaks for twice the limit.
	speak := func(h *hit, word string) {
		tick := time.NewTicker(limit / 10)
		defer tick.Stop()
		for range 20 {
			<-tick.C
			h.send(word)
		}
	}
	w := newFake(t, func(h *hit) {
		switch h.target {
		case "/counters/alice/sse":
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
			speak(h, "2\r\n:\n\r\n")
			h.send("0\r\n\r\n")
		case "/counters/alice/ws":
			h.accept()
			speak(h, "\x81\x01x")
			h.last = true
		case "/counters/alice/plain":
			h.send("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n")
			speak(h, "x")
		}
	})
	f.register(w, "a")

	resp, body := f.get("/counters/alice/sse")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, strings.Repeat(":\n", 20), body)

	c := f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	got, err := c.rest()
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("\x81\x01x", 20), got)

	c = f.ask("GET /counters/alice/plain HTTP/1.1\r\nHost: p\r\n\r\n")
	_, err = io.ReadAll(c.answer("GET").Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a killed answer does not look whole")
}

func TestTrailersPassBothWays(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.body()
		h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Pinned-Z, X-Never\r\nX-Never: header\r\n\r\n" +
			"2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\nPinboard-Y: 3\r\nPinned-Z: 4\r\nContent-Length: 5\r\n\r\n")
	})
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTE: gzip, trailers;q=1\r\nTrailer: X-Up, Pinboard-A, Authorization\r\n" +
		"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Up: 1\r\nX-Up-Late: 2\r\nPinboard-A: 3\r\npinned_b: 4\r\nContent-Length: 9\r\n" +
		"Authorization: Bearer x\r\nX-Forwarded-For: 6.6.6.6\r\nCookie: a=b\r\n\r\n")
	resp := c.answer("POST")
	require.Contains(t, resp.Trailer, "X-Sum")
	require.NotContains(t, resp.Trailer, "Pinned-Z")
	require.Equal(t, "header", resp.Header.Get("X-Never"))
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, "ok", string(body))
	require.Equal(t, "1", resp.Trailer.Get("X-Sum"))
	require.Equal(t, "2", resp.Trailer.Get("X-Late"))
	require.Empty(t, resp.Trailer.Get("X-Never"))
	for _, name := range []string{"Pinboard-Y", "Pinned-Z", "Content-Length"} {
		require.NotContains(t, resp.Trailer, name)
	}

	h := w.only()
	require.Equal(t, "X-Up", h.header.Get("Trailer"))
	require.Equal(t, "trailers", h.header.Get("Te"))
	require.ElementsMatch(t, []string{"X-Up: 1", "X-Up-Late: 2"}, strings.Split(strings.TrimSpace(h.trailer), "\r\n"))
}

func TestAnAnswerPassesAsItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, answer, head, body string }{
		{"GET", "200 OK\r\nContent-Length: 3\r\n\r\nabc", "Content-Length: 3", "abc"},
		{"GET", "200 OK\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0", ""},
		{"GET", "404 No\r\nContent-Length: 1\r\nX-A: 1\r\nX-A: 2\r\n\r\n!", "Content-Length: 1 X-A: 1 X-A: 2", "!"},
		{"GET", "302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0 Location: http://169.254.169.254/", ""},
		{"GET", "200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", "Content-Encoding: gzip Content-Length: 2", "\x1f\x8b"},
		{"GET", "204 No Content\r\nX-A: 1\r\n\r\n", "X-A: 1", ""},
		{"GET", "304 Not Modified\r\nEtag: x\r\n\r\n", "Etag: x", ""},
		{"HEAD", "200 OK\r\nContent-Length: 12345\r\n\r\n", "Content-Length: 12345", ""},
		{"HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "", ""},
		{"GET", "299 Odd\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0 Set-Cookie: a Set-Cookie: b", ""},
		{"GET", "200 OK\r\nKeep-Alive: 5\r\nPinned-Refusal: x\r\nPINBOARD_x: y\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n", "Content-Length: 0", ""},
	} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.send("HTTP/1.1 " + c.answer) })
		f.register(w, "a")
		raw, err := f.ask(c.method + " /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").rest()
		require.NoError(t, err)
		head, body, _ := strings.Cut(raw, "\r\n\r\n")
		require.Equal(t, c.body, body)
		var kept []string
		for i, line := range strings.Split(head, "\r\n") {
			if i > 0 && !strings.HasPrefix(line, "Date: ") && line != "Connection: close" {
				kept = append(kept, line)
			}
		}
		require.Equal(t, c.head, strings.Join(kept, " "), c.answer)
		require.Empty(t, w.only().header.Get("Accept-Encoding"))
	}
}

func TestAnAnswerThatEndsWithItsConnectionIsWhole(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.send("HTTP/1.0 200 OK\r\n\r\nall of it"); h.last = true })
	f.register(w, "a")
	_, body := f.get("/counters/alice")
	require.Equal(t, "all of it", body)
}

func TestALongAnswerAndALongBodyPassWhole(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	_, body := f.post("/counters/alice", big)
	require.True(t, body == big)
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range 100 { // echo, chunk by chunk
			size, _ := h.r.ReadString('\n')
			data, err := h.r.ReadString('\n')
			if err != nil || size != "2\r\n" {
				h.t.Errorf("got %q %q", size, data)
				break
			}
			h.send(size + data)
		}
		h.send("0\r\n\r\n")
		h.body()
	})
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n")
	resp := c.answer("POST")
	for i := range 100 {
		word := fmt.Sprintf("%02d", i)
		c.send("2\r\n" + word + "\r\n")
		got := make([]byte, 2)
		_, err := io.ReadFull(resp.Body, got)
		require.NoError(t, err)
		require.Equal(t, word, string(got))
	}
	c.send("0\r\n\r\n")
	_, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
}

func TestASlowBodyOfKnownLengthIsNotHeldBack(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	got := make(chan byte)
	w := newFake(t, func(h *hit) {
		for range 3 {
			b, _ := h.r.ReadByte()
			got <- b
		}
		h.ok("")
	})
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 3\r\n\r\n")
	for _, b := range []byte("abc") {
		c.send(string(b))
		require.Equal(t, b, <-got)
	}
	require.Equal(t, 200, c.answer("POST").StatusCode)
}

func TestAnEarlyAnswerToALongUploadIsSeenAndTheConnectionNotReused(t *testing.T) {
	t.Parallel()
	for _, framing := range []string{"Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.reply(413, "too much"); h.gone() })
		f.register(w, "a")
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\n" + framing + "\r\n\r\n")
		if strings.HasPrefix(framing, "T") {
			c.send("64\r\n")
		}
		c.send(strings.Repeat("b", 100))
		resp, body := c.whole("POST")
		require.Equal(t, 413, resp.StatusCode)
		require.Equal(t, "too much", body)
		require.True(t, resp.Close)
		// What follows is still the body, not another request.
		_, _ = io.WriteString(c.Conn, "GET /counters/smuggled HTTP/1.1\r\nHost: p\r\n\r\n")
		rest, _ := c.rest()
		require.Empty(t, rest)
		for _, h := range w.seen() {
			require.NotContains(t, h.target, "smuggled")
		}
	}
}

func TestAConnectionIsKeptWhenItsBodyWasRead(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	c := f.dial()
	for range 20 {
		c.send("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody")
		_, body := c.whole("POST")
		require.Equal(t, "body", body)
		c.send("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
		_, body = c.whole("POST")
		require.Equal(t, "body", body)
	}
	// It is put back a moment after the client has its answer, and closed if the
	// transport has not heard within 50 ms that the request was written.
	require.Less(t, w.connections(), 20, "and so is the worker's, of 40 requests")
}

func TestAGETWithAChunkedBodyPasses(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	for _, body := range []string{"", "1\r\nx\r\n"} {
		c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n" + body + "0\r\n\r\n")
		_, got := c.whole("GET")
		require.Equal(t, strings.Trim(body, "1\r\n"), got)
	}
	require.Equal(t, "chunked", w.seen()[0].header.Get("Transfer-Encoding"))
}

func TestHTTP2ClientsAreServed(t *testing.T) {
	t.Parallel()
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	f := newFront(t, func(s *setup) {
		s.server.Protocols = &http.Protocols{}
		s.server.Protocols.SetHTTP1(true)
		s.server.Protocols.SetUnencryptedHTTP2(true)
	})
	w := newFake(t, func(h *hit) {
		body := h.body()
		h.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
		h.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\n\r\n", len(body), body))
	})
	f.register(w, "a")
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url("/counters/alice/a%2Fb?x=1;y"), strings.NewReader("the body"))
	require.NoError(t, err)
	req.Trailer = http.Header{"X-Up": {"1"}}
	req.Header.Set("Pinboard-Epoch", "1")
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 2, resp.ProtoMajor)
	require.Equal(t, "the body", string(body))
	require.Equal(t, "1", resp.Trailer.Get("X-Sum"))
	require.Equal(t, "2", resp.Trailer.Get("X-Late"))
	h := w.only()
	require.Equal(t, "/counters/alice/a%2Fb?x=1;y", h.target)
	require.Equal(t, "X-Up: 1\r\n", h.trailer)

	req.URL.Opaque = "/counters/alice/a b" // would be two words of a request line
	req.Body = http.NoBody
	resp, err = transport.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}

func TestAConnectionThatWasClosedWhileIdleDoesNotFailAGET(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.ok(""); h.last = true }) // closes without saying so
	f.register(w, "a")
	for range 200 {
		resp, _ := f.get("/counters/alice")
		require.Equal(t, 200, resp.StatusCode)
	}
}
