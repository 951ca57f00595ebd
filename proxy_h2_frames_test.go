package pinboard

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

func TestWhatHTTP2SplitsReachesTheWorkerInOnePiece(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, nil)
	f.register(w, "a")
	r := f.frames().send("", requestHead("GET", "/counters/alice", "cookie: a=b", "cookie: session=1; x=y", "cookie: c=d",
		"host: other.example", "te: trailers", "http2-settings: AA", "x-two: 1", "x-two: 2")...)
	require.Equal(t, "200", r.status)
	h := w.only()
	require.Equal(t, []string{"a=b; session=1; x=y; c=d"}, h.header["Cookie"], "RFC 9113, section 8.2.3")
	require.Equal(t, []string{"p"}, h.header["Host"], ":authority is the one that counts")
	require.Equal(t, []string{"p"}, h.header["X-Forwarded-Host"])
	require.Equal(t, []string{"trailers"}, h.header["Te"])
	require.Equal(t, []string{"1", "2"}, h.header["X-Two"])
	require.NotContains(t, h.header, "Http2-Settings")

	r = f.frames().send("", ":method: GET", ":scheme: https", ":path: /counters/alice", "host: other.example")
	require.Equal(t, "200", r.status)
	require.Equal(t, []string{"other.example"}, w.seen()[1].header["Host"])
	require.Equal(t, []string{"http"}, w.seen()[1].header["X-Forwarded-Proto"], "what the connection is, not what the client says")
}

func TestATargetOverHTTP2IsWhatTheClientSent(t *testing.T) { // C03, C05, C08, C09
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, nil)
	f.register(w, "a")
	for i, target := range []string{
		"/counters/alice/q?a=1;b=2&c=3", "/counters/alice/q?x=%zz&y=1", "/counters/alice/q?a=b|c", "/counters/alice/q?",
		"/counters/alice/q?&&=", "/counters/alice//x///", "/counters/alice/a%2Fb/%2F/c%2520d/%E2%82%AC?x=%2F",
		"/counters/alice/\"<>[]^`{|}'()*!$&,;=:@\xff", "/counters/alice/%7e~%41A?%7e~\"<>\\^`{}\xff",
	} {
		require.Equal(t, "200", f.frames().send("", requestHead("GET", target)...).status, target)
		require.Equal(t, target, w.seen()[i].target)
	}
	seen := len(w.seen())
	for _, target := range []string{
		"/counters/al%69ce", "/counters/a%2Fb", "/counters/a%00b", "/counters//v", "/counters/" + strings.Repeat("a", 257),
		"/counters/alice/../bob", "/counters/alice/%2e./x", "/counters/http://127.0.0.1:6379/", "/counters/alice/x#frag",
		"/counters/alice/a b", "/counters/alice?a b HTTP/1.1", "//counters/alice", "*", "http://169.254.169.254/counters/alice/v",
	} {
		require.Equal(t, "400", f.frames().send("", requestHead("GET", target)...).status, target)
	}
	for _, target := range []string{"", "counters/alice", "?x", "/counters/alice\r\nX-A: b", "/counters/alice\x00", "/counters/alice\x7f"} {
		require.NotEqual(t, "200", f.frames().send("", requestHead("GET", target)...).status, target)
	}
	require.Len(t, w.seen(), seen)
}

// What HTTP/1.1 cannot say must not look like the owner's fault, nor reach it
// mended.
func TestARequestOverHTTP2ThatHTTP1CannotSayIs400(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c, func(s *setup) { s.opts.PlacementHold = time.Minute })
	w := newFake(t, nil)
	f.register(w, "a")
	for _, method := range []string{"G ET", "GET/x", "G\xc9T", "GET\tx", "(GET)"} {
		r := f.frames().send("", requestHead(method, "/counters/alice")...)
		require.Equal(t, "400", r.status, method)
		require.Equal(t, "the method is malformed", errorOf(t, r.body))
	}
	for _, host := range []string{"a b", "a/b", "\u00e9.example", "a\tb", "a\\b", "a?b", "a#b", "<a>", "a%\"b"} {
		r := f.frames().send("", ":method: GET", ":scheme: http", ":authority: "+host, ":path: /counters/alice")
		require.Equal(t, "400", r.status, host)
		require.Equal(t, "the host is malformed", errorOf(t, r.body))
	}
	for _, field := range []string{
		"connection: close", "connection: x-hop", "upgrade: websocket", "keep-alive: 5", "proxy-connection: close",
		"transfer-encoding: chunked", "te: gzip",
	} {
		require.Equal(t, "400", f.frames().send("", requestHead("GET", "/counters/alice", field)...).status, field)
	}
	require.Empty(t, w.seen())
	rows, _, err := f.store.Rows(t.Context(), counters_, "", 9)
	require.NoError(t, err)
	require.Empty(t, rows)
}

func TestAnAnnouncementOfTrailersThatNamesNoneIsNotTheOwnersFault(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c, func(s *setup) { s.opts.PlacementHold = time.Minute })
	w := newFake(t, nil)
	f.register(w, "a")
	for i, names := range []string{"foo bar", "\u00e9", "a:b", "X-Up, (x)", "\"x\"", "pin\u0131board-x"} {
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nTrailer: " + names + "\r\n\r\n1\r\nx\r\n0\r\nX-Up: 1\r\n\r\n")
		resp, _ := c.whole("POST")
		require.Equal(t, 200, resp.StatusCode, names)
		require.Equal(t, "X-Up: 1\r\n", w.seen()[2*i].trailer)
		h := f.frames()
		h.open(false, requestHead("POST", "/counters/alice", "trailer: "+names)...)
		require.NoError(t, h.WriteData(h.stream, true, []byte("x")))
		require.Equal(t, "200", h.reply().status, names)
	}
}

func TestABodyOverHTTP2ThatIsNotAsLongAsItIsSaidToBeReachesNoWorkerWhole(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	var whole atomic.Int64
	w := newFake(t, func(h *hit) {
		_, err := h.bodyErr()
		if h.last = err != nil; !h.last {
			whole.Add(1)
		}
		h.ok("")
	})
	f.register(w, "a")
	for _, c := range []struct{ length, body string }{
		{"5", "abc"}, {"2", "abc"}, {"1000000", "abc"},
		{"3", ""}, {"+3", "abc"}, {"0x3", "abc"}, {"3, 3", "abc"}, {"-1", ""}, {"99999999999999999999", "abc"},
	} {
		r := f.frames().send(c.body, requestHead("POST", "/counters/alice", "content-length: "+c.length)...)
		require.NotEqual(t, "200", r.status, c)
	}
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
	for _, c := range []struct{ length, body string }{{"3", "abc"}, {"0", ""}, {"003", "abc"}, {"00", ""}} {
		r := f.frames().send(c.body, requestHead("POST", "/counters/alice", "content-length: "+c.length)...)
		require.Equal(t, "200", r.status, c)
	}
	require.EqualValues(t, 4, whole.Load())
}

// A client that ends a stream in the middle of its body has sent no request.
func TestAResetStreamReachesNoWorkerWhole(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	broken := make(chan error)
	w := newFake(t, func(h *hit) {
		_, err := h.bodyErr()
		h.last = true
		broken <- err
	})
	f.register(w, "a")
	h := f.frames()
	h.open(false, requestHead("POST", "/counters/alice")...)
	require.NoError(t, h.WriteData(h.stream, false, []byte("part")))
	require.Eventually(t, func() bool { return strings.HasSuffix(w.bytes(), "part\r\n") }, patience, time.Millisecond)
	require.NoError(t, h.WriteRSTStream(h.stream, http2.ErrCodeCancel))
	require.Error(t, <-broken)
}

func TestInformationalAnswersPassOverHTTP2(t *testing.T) { // C14
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nPinboard-X: 1\r\n\r\n")
		h.ok(h.body(), "X-App: 1")
	})
	f.register(w, "a")
	h := f.frames()
	h.open(false, requestHead("POST", "/counters/alice", "expect: 100-continue", "content-length: 4")...)
	head, ok := h.next().(*http2.MetaHeadersFrame)
	require.True(t, ok)
	first := head.PseudoValue("status")
	require.NoError(t, h.WriteData(h.stream, true, []byte("body")))
	r := h.reply()
	informed := append(r.informed, first)
	require.Contains(t, informed, "100", "the client may wait for it")
	require.Contains(t, informed, "103")
	require.Equal(t, "200", r.status)
	require.Equal(t, "body", r.body)
	require.Equal(t, "1", r.header.Get("X-App"))
	require.NotContains(t, r.header, "Link")
}

func TestAWebSocketIsNotOfferedOverHTTP2(t *testing.T) { // RFC 8441
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, func(h *hit) { h.echo() })
	f.register(w, "a")
	h := f.frames()
	r := h.send("", ":method: CONNECT", ":protocol: websocket", ":scheme: http", ":authority: p", ":path: /counters/alice")
	require.NotEqual(t, "200", r.status)
	require.NotContains(t, h.settings, http2.SettingEnableConnectProtocol, "so browsers open an HTTP/1.1 connection")
	require.NotEqual(t, "200", f.frames().send("", ":method: CONNECT", ":authority: 127.0.0.1:6379").status)
	require.Empty(t, w.seen())
	require.Equal(t, http.StatusSwitchingProtocols, f.ask(upgradeRequest("/counters/alice")).answer("GET").StatusCode)
}

func TestShutdownOverHTTP2SaysGoAway(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	f.server.RegisterOnShutdown(func() { _ = f.pb.Close() })
	w := newFake(t, func(h *hit) {
		h.chunked("Content-Type: text/event-stream")
		h.gone()
	})
	f.register(w, "a")
	h := f.frames()
	h.open(true, requestHead("GET", "/counters/alice")...)
	_, ok := h.next().(*http2.MetaHeadersFrame)
	require.True(t, ok)
	down := make(chan error, 1)
	go func() { down <- f.server.Shutdown(t.Context()) }()
	r := h.reply()
	require.True(t, r.whole)
	_, _ = io.Copy(io.Discard, goAway{h})
	require.True(t, h.goAway)
	require.NoError(t, <-down)
}

// goAway reads frames of the connection until its end.
type goAway struct{ *frames }

func (g goAway) Read([]byte) (int, error) {
	frame, err := g.ReadFrame()
	if frame, ok := frame.(*http2.GoAwayFrame); ok && frame.ErrCode == http2.ErrCodeNo {
		g.frames.goAway = true
	}
	return 0, err
}
