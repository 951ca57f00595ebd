package pinboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// chunked starts an answer of unknown length.
func (h *hit) chunked(headers ...string) {
	h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + lines(headers) + "\r\n")
}

// chunk sends a piece of it, and reports whether anybody takes it.
func (h *hit) chunk(text string) bool {
	_, err := fmt.Fprintf(h.conn, "%x\r\n%s\r\n", len(text), text)
	return err == nil
}

func TestHTTP2CarriesTheWholeDataPlane(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		w := newFake(t, func(h *hit) {
			switch h.method {
			case "HEAD":
				h.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-App: 1\r\n\r\n")
			case "PUT":
				body := h.body()
				h.chunked("Trailer: X-Sum, Pinned-Z")
				h.chunk(body)
				h.send("0\r\nX-Sum: 1\r\nX-Late: 2\r\nPinned-Z: 3\r\nPinboard_Y: 4\r\n\r\n")
			default:
				h.body()
				h.ok("", "Connection: X-Hop", "X-Hop: 1", "Keep-Alive: 5", "Pinboard-X: 2", "pinned.y: 3", "X-App: 1")
			}
		})
		s := f.register(w, "a")
		resp, _ := ask.whole(t, "GET", "/counters/alice/a%2Fb?x=1;y&%zz", nil, "X-Kept: 1")
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "1", resp.Header.Get("X-App"))
		for _, name := range []string{"Connection", "X-Hop", "Keep-Alive", "Pinboard-X", "Pinned.y"} {
			require.NotContains(t, resp.Header, name)
		}
		h := w.seen()[0]
		h.claims(s)
		require.Equal(t, "/counters/alice/a%2Fb?x=1;y&%zz", h.target)
		require.Equal(t, f.addr, h.header.Get("Host"))
		require.Equal(t, f.addr, h.header.Get("X-Forwarded-Host"))
		require.Equal(t, map[bool]string{true: "https", false: "http"}[resp.TLS != nil], h.header.Get("X-Forwarded-Proto"))

		resp, body := ask.whole(t, "HEAD", "/counters/alice", nil)
		require.Empty(t, body)
		require.Equal(t, "7", resp.Header.Get("Content-Length"))

		resp, body = ask.whole(t, "PUT", "/counters/alice", strings.NewReader("the body"), "Trailer: X-Up", "Trailer: Pinboard-Epoch")
		require.Equal(t, "the body", body)
		require.Equal(t, http.Header{"X-Sum": {"1"}, "X-Late": {"2"}}, resp.Trailer)
		require.NotContains(t, w.seen()[2].trailer, "Pinboard")
	})
}

func TestHTTP2StreamsBothWaysAtOnce(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		w := newFake(t, func(h *hit) {
			h.chunked()
			for {
				var n int
				line, _ := h.r.ReadString('\n')
				if _, err := fmt.Sscanf(line, "%x\r\n", &n); err != nil || n == 0 {
					break
				}
				part := make([]byte, n+2)
				_, _ = io.ReadFull(h.r, part)
				h.chunk("echo " + string(part[:n]))
			}
			h.send("0\r\n\r\n")
		})
		f.register(w, "a")
		body, up := io.Pipe()
		resp, err := ask(t.Context(), "POST", "/counters/alice", body)
		require.NoError(t, err, "before a byte of the body was sent")
		for i := range 5 {
			text := fmt.Sprint("part ", i)
			_, err := io.WriteString(up, text)
			require.NoError(t, err)
			got := make([]byte, len("echo ")+len(text))
			_, err = io.ReadFull(resp.Body, got)
			require.NoError(t, err)
			require.Equal(t, "echo "+text, string(got))
		}
		require.NoError(t, up.Close())
		rest, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Empty(t, rest)
	})
}

// One connection carries many streams: what befalls one is nothing to the
// others.
func TestACancelledStreamEndsItsRequestAndNoOther(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		step, gone := make(chan struct{}), make(chan string, 9)
		w := newFake(t, func(h *hit) {
			if strings.HasSuffix(h.target, "cancelled") {
				if h.method == "GET" {
					h.chunked("Content-Type: text/event-stream")
				}
				h.gone()
				gone <- h.method
				return
			}
			h.chunked("Content-Type: text/event-stream")
			for range 2 {
				<-step
				h.chunk("data: x\n")
			}
			h.send("0\r\n\r\n")
		})
		f.register(w, "a")
		kept, err := ask(t.Context(), "GET", "/counters/alice/kept", nil)
		require.NoError(t, err)
		event := func() {
			t.Helper()
			step <- struct{}{}
			got := make([]byte, 8)
			_, err := io.ReadFull(kept.Body, got)
			require.NoError(t, err)
			require.Equal(t, "data: x\n", string(got), "flushed as it comes")
		}
		event()
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := ask(ctx, "GET", "/counters/alice/cancelled", nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close()) // cancels the stream
		require.Equal(t, "GET", <-gone)
		failed := make(chan error, 2)
		body, up := io.Pipe()
		defer func() { _ = up.Close() }()
		for method, body := range map[string]io.Reader{"DELETE": nil, "POST": body} {
			go func() {
				_, err := ask(ctx, method, "/counters/alice/cancelled", body)
				failed <- err
			}()
		}
		require.Eventually(t, func() bool { return len(w.seen()) == 4 }, patience, time.Millisecond)
		cancel() // before there is an answer
		require.ElementsMatch(t, []string{"DELETE", "POST"}, []string{<-gone, <-gone})
		require.ErrorIs(t, <-failed, context.Canceled)
		require.ErrorIs(t, <-failed, context.Canceled)
		event()
		rest, err := io.ReadAll(kept.Body)
		require.NoError(t, err)
		require.Empty(t, rest)
	})
}

func TestAnAnswerOverHTTP2ThatIsCutDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		w := newFake(t, func(h *hit) {
			switch h.target {
			case "/counters/alice/sse":
				h.chunked("Content-Type: text/event-stream")
			case "/counters/alice/chunked":
				h.chunked()
				h.chunk("part")
			case "/counters/alice/length":
				h.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart")
			case "/counters/alice/broken":
				h.chunked()
				h.chunk("part")
				h.last = true
				return
			}
			h.gone()
		})
		s := f.register(w, "a")
		s.place("alice")
		open := map[string]*http.Response{}
		for _, kind := range []string{"sse", "chunked", "length", "broken"} {
			resp, err := ask(t.Context(), "GET", "/counters/alice/"+kind, nil)
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
			open[kind] = resp
		}
		_, err := io.ReadAll(open["broken"].Body)
		require.ErrorAs(t, err, new(http2.StreamError))
		delete(open, "broken")
		require.NoError(t, f.store.Deregister(t.Context(), s.SessionID))
		for kind, resp := range open {
			_, err := io.ReadAll(resp.Body)
			require.ErrorAs(t, err, new(http2.StreamError), kind)
		}
	})
}

// forever is a body without an end, which counts what was read of it.
type forever struct{ read atomic.Int64 }

func (f *forever) Read(p []byte) (int, error) {
	f.read.Add(int64(len(p)))
	return len(p), nil
}

func TestNothingIsPiledUpForASlowSideOverHTTP2(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		stuck, done := make(chan error, 1), make(chan struct{})
		w := newFake(t, func(h *hit) {
			h.last = true
			if h.method == "POST" {
				<-done // it reads nothing
				return
			}
			h.chunked()
			part := strings.Repeat("x", 64<<10)
			var err error
			for n := 0; err == nil && n < 256<<20; n += len(part) {
				_ = h.conn.SetWriteDeadline(time.Now().Add(time.Second))
				_, err = fmt.Fprintf(h.conn, "%x\r\n%s\r\n", len(part), part)
			}
			stuck <- err
		})
		defer close(done)
		f.register(w, "a")
		resp, err := ask(t.Context(), "GET", "/counters/alice", nil)
		require.NoError(t, err)
		require.ErrorIs(t, <-stuck, os.ErrDeadlineExceeded, "the worker has to wait for the client")
		require.NoError(t, resp.Body.Close())

		ctx, cancel := context.WithCancel(t.Context())
		body, ended := &forever{}, make(chan error, 1)
		go func() {
			_, err := ask(ctx, "POST", "/counters/alice", body)
			ended <- err
		}()
		last, still := int64(0), 0
		require.Eventually(t, func() bool {
			before := last
			if last = body.read.Load(); last == 0 || last != before {
				still = 0
			}
			still++
			return still > 5
		}, patience, 100*time.Millisecond, "the client has to wait for the worker")
		require.Less(t, last, int64(64<<20), "sockets and windows hold less")
		cancel()
		require.Error(t, <-ended)
	})
}

func TestLargeBodiesPassWholeOverHTTP2(t *testing.T) {
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		w := newFake(t, func(h *hit) { h.ok(h.body()) })
		f.register(w, "a")
		want := strings.Repeat("0123456789abcdef", 3<<20/16)
		for _, reader := range []io.Reader{strings.NewReader(want), struct{ io.Reader }{strings.NewReader(want)}} {
			_, got := ask.whole(t, "POST", "/counters/alice", reader)
			require.True(t, want == got)
		}
	})
}

// C16 of HTTP/2: each stream has its own deadlines.
func TestStreamsOverHTTP2OutliveTheHostsLimits(t *testing.T) {
	t.Parallel()
	const limit = time.Second // also for the handshake, on a busy machine
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		w := newFake(t, func(h *hit) {
			if strings.HasSuffix(h.target, "sse") {
				h.chunked("Content-Type: text/event-stream")
			} else {
				h.chunked()
			}
			tick := time.NewTicker(limit / 10)
			defer tick.Stop()
			for range 20 {
				<-tick.C
				h.chunk("x")
			}
			h.send("0\r\n\r\n")
		})
		f.register(w, "a")
		_, body := ask.whole(t, "GET", "/counters/alice/sse", nil)
		require.Len(t, body, 20)
		resp, err := ask(t.Context(), "GET", "/counters/alice/plain", nil)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err, "a killed answer does not look whole")
	}, func(s *setup) { s.server.ReadTimeout, s.server.WriteTimeout = limit, limit })
}

func TestShutdownOverHTTP2EndsStreamsInOrderAndLetsRequestsEnd(t *testing.T) { // C24
	t.Parallel()
	overHTTP2(t, func(t *testing.T, f *front, ask asker) {
		f.server.RegisterOnShutdown(func() { _ = f.pb.Close() })
		step := make(chan struct{})
		w := newFake(t, func(h *hit) {
			if strings.HasSuffix(h.target, "sse") {
				h.chunked("Content-Type: text/event-stream")
				h.chunk("data: x\n")
				h.gone()
				return
			}
			<-step
			h.ok("late")
		})
		f.register(w, "a").place("alice")
		stream, err := ask(t.Context(), "GET", "/counters/alice/sse", nil)
		require.NoError(t, err)
		late := make(chan error, 1)
		go func() {
			resp, err := ask(t.Context(), "GET", "/counters/alice/late", nil)
			if err == nil {
				var body []byte
				if body, err = io.ReadAll(resp.Body); err == nil && string(body) != "late" {
					err = errors.New(string(body))
				}
			}
			late <- err
		}()
		require.Eventually(t, func() bool { return len(w.seen()) == 2 }, patience, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		down := make(chan error, 1)
		go func() { down <- errors.Join(f.server.Shutdown(ctx), f.pb.Shutdown(ctx)) }()
		body, err := io.ReadAll(stream.Body)
		require.NoError(t, err, "it ends as if the worker had ended it")
		require.Equal(t, "data: x\n", string(body))
		close(step)
		require.NoError(t, <-late)
		require.NoError(t, <-down)
		rows, _, err := f.store.Rows(t.Context(), counters_, "", 9)
		require.NoError(t, err)
		require.Len(t, rows, 1, "the directory keeps every row")
	})
}
