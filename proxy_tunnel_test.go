package pinboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func upgradeRequest(path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: app.example\r\nOrigin: https://app.example\r\nConnection: keep-alive, Upgrade\r\n" +
		"Upgrade: WebSocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
}

// accept answers an upgrade.
func (h *hit) accept(headers ...string) {
	h.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: b\r\n" +
		lines(headers) + "\r\n")
}

// echo accepts and then sends everything back until the client's end.
func (h *hit) echo() {
	h.accept()
	_, _ = io.Copy(h.conn, h.r)
	h.last = true
}

func (c *client) expect(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(c.r, got)
	require.NoError(c.t, err)
	require.Equal(c.t, want, string(got))
}

func TestAWebSocketKeepsItsHostOriginProtocolsAndExtensions(t *testing.T) { // C26
	t.Parallel()
	bothWays(t, testAWebSocketKeepsItsHostOriginProtocolsAndExtensions)
}

func testAWebSocketKeepsItsHostOriginProtocolsAndExtensions(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, func(h *hit) { h.accept("pinned-x: 1", "Pinboard_Y: 2", "Keep-Alive: 3", "X-App: 4"); h.gone() })
	s := f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice/ws?a=1;b"))
	resp := c.answer("GET")
	require.Equal(t, 101, resp.StatusCode)
	require.Equal(t, http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Protocol": {"b"}, "X-App": {"4"},
	}, resp.Header)
	h := w.only()
	h.claims(s)
	require.Equal(t, "/counters/alice/ws?a=1;b", h.target)
	for name, value := range map[string]string{
		"Host": "app.example", "Origin": "https://app.example", "Connection": "Upgrade", "Upgrade": "WebSocket",
		"Sec-Websocket-Protocol": "a, b", "Sec-Websocket-Extensions": "permessage-deflate",
		"Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-Websocket-Version": "13",
	} {
		require.Equal(t, []string{value}, h.header[name])
	}
}

func TestOnlyWebSocketIsEverUpgraded(t *testing.T) { // C22
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.body(); h.ok("plain") })
	f.register(w, "a")
	for _, request := range []string{
		"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: foo\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket/13\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c, websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket,\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: \"websocket\"\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket;q=1\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: web socket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket2\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
		"GET / HTTP/1.1\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: \"Upgrade\"\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Up-grade\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nProxy-Connection: Upgrade\r\nUpgrade: websocket\r\n",
		"OPTIONS / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
		"get / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade:\r\n",
		"GET / HTTP/1.1\r\nConnection: close\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: notupgrade\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n",
		"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
		"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
	} {
		c := f.ask(strings.Replace(request, " / ", " /counters/alice ", 1) + "Host: p\r\n\r\nx")
		resp, body := c.whole("GET")
		require.Equal(t, http.StatusOK, resp.StatusCode, request)
		require.Equal(t, "plain", body)
	}
	for _, h := range w.seen() {
		for _, name := range []string{"Upgrade", "Http2-Settings", "Connection"} {
			require.NotContains(t, h.header, name, h.head)
		}
	}
}

func TestAnUpgradeIsSeenHoweverItIsWritten(t *testing.T) { // C26
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.accept(); h.gone() })
	f.register(w, "a")
	for i, headers := range []string{
		"Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
		"Connection:\r\nConnection: ,, UPGRADE ,\r\nUpgrade: WEBSOCKET\r\n",
		"connection:upgrade\r\nupgrade:websocket\r\n",
		"Upgrade: \t WebSocket \t\r\nConnection: \tX-Hop,\tUpgrade\r\nX-Hop: 1\r\n",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\nExpect: 100-continue\r\n",
	} {
		c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n" + headers + "\r\n")
		require.Equal(t, 101, c.answer("GET").StatusCode, headers)
		h := w.seen()[i]
		require.Equal(t, []string{"Upgrade"}, h.header["Connection"], headers)
		require.Len(t, h.header["Upgrade"], 1)
		require.True(t, strings.EqualFold("websocket", h.header.Get("Upgrade")), headers)
		for _, name := range []string{"X-Hop", "Content-Length", "Expect"} {
			require.NotContains(t, h.header, name, headers)
		}
		require.NoError(t, c.Close())
	}
}

func TestASwitchNobodyAskedForIsABadGateway(t *testing.T) {
	t.Parallel()
	bothWays(t, testASwitchNobodyAskedForIsABadGateway)
}

func testASwitchNobodyAskedForIsABadGateway(t *testing.T, way func(*setup)) {
	for _, answer := range []string{"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n", ""} {
		f := newFront(t, way)
		w := newFake(t, func(h *hit) { h.send("HTTP/1.1 101 Switching Protocols\r\n" + answer + "\r\nsmuggled"); h.gone() })
		f.register(w, "a")
		resp, body := f.get("/counters/alice")
		require.Equal(t, http.StatusBadGateway, resp.StatusCode)
		require.NotContains(t, body, "smuggled")
		if strings.Contains(answer, "websocket") {
			continue
		}
		resp, body = f.ask(upgradeRequest("/counters/alice")).whole("GET")
		require.Equal(t, http.StatusBadGateway, resp.StatusCode)
		require.NotContains(t, body, "smuggled")
	}
}

func TestARefusedUpgradePassesAsAPlainAnswer(t *testing.T) {
	t.Parallel()
	bothWays(t, testARefusedUpgradePassesAsAPlainAnswer)
}

func testARefusedUpgradePassesAsAPlainAnswer(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, func(h *hit) { h.reply(403, "") })
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	resp, _ := c.whole("GET")
	require.Equal(t, 403, resp.StatusCode)
	c.send("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
	resp, _ = c.whole("GET")
	require.Equal(t, 403, resp.StatusCode, "the connection still speaks HTTP")
}

func TestATunnelLosesNothingThatCameEarlyAndPassesTheEndOfEachSide(t *testing.T) {
	t.Parallel()
	bothWays(t, testATunnelLosesNothingThatCameEarlyAndPassesTheEndOfEachSide)
}

func testATunnelLosesNothingThatCameEarlyAndPassesTheEndOfEachSide(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	got := make(chan string, 1)
	w := newFake(t, func(h *hit) {
		h.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + "early word of the worker")
		all, _ := io.ReadAll(h.r)
		got <- string(all)
		h.send("last word of the worker") // after the client's end
		h.last = true
	})
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice") + "early word of the client")
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.expect("early word of the worker")
	long := strings.Repeat("long", 100_000)
	c.send(long)
	require.NoError(t, c.Conn.(*net.TCPConn).CloseWrite())
	require.Equal(t, "early word of the client"+long, <-got)
	rest, err := c.rest()
	require.NoError(t, err)
	require.Equal(t, "last word of the worker", rest)
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
}

func TestATunnelEndsWithTheWorkersProcess(t *testing.T) {
	t.Parallel()
	bothWays(t, testATunnelEndsWithTheWorkersProcess)
}

func testATunnelEndsWithTheWorkersProcess(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, (*hit).echo)
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.send("hello")
	c.expect("hello")
	w.stop()
	rest, _ := c.rest()
	require.Empty(t, rest)
	_ = c.Close()
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
}

func TestATunnelEndsWithTheClientsReset(t *testing.T) {
	t.Parallel()
	bothWays(t, testATunnelEndsWithTheClientsReset)
}

func testATunnelEndsWithTheClientsReset(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	ended := make(chan struct{})
	w := newFake(t, func(h *hit) { h.accept(); h.gone(); close(ended) })
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.reset()
	<-ended
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
}

// Close ends streams and sockets in good order, and http.Server.Shutdown then
// finds nothing to wait for (C24).
func TestClosingEndsStreamsAndSocketsAndKeepsTheDirectory(t *testing.T) {
	t.Parallel()
	bothWays(t, testClosingEndsStreamsAndSocketsAndKeepsTheDirectory)
}

func testClosingEndsStreamsAndSocketsAndKeepsTheDirectory(t *testing.T, way func(*setup)) {
	const count = 50
	const closing = "\x88\x82\x00\x00\x00\x00\x03\xf4" // the client's answer
	f := newFront(t, way)
	w := newFake(t, func(h *hit) {
		if h.header.Get("Upgrade") != "" {
			h.accept()
			_, _ = io.CopyN(h.conn, h.r, int64(len("\x81\x02hi")))
			_, _ = io.CopyN(io.Discard, h.r, int64(len(closing)))
			h.last = true
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: x\n\r\n")
		h.gone()
	})
	s := f.register(w, "a")
	s.place("alice")
	sockets, streams := make([]*client, count), make([]io.Reader, count)
	for i := range count {
		sockets[i] = f.ask(upgradeRequest("/counters/alice/ws"))
		require.Equal(t, 101, sockets[i].answer("GET").StatusCode)
		sockets[i].send("\x81\x02hi")
		sockets[i].expect("\x81\x02hi")
		streams[i] = f.ask("GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n").answer("GET").Body
	}
	require.NoError(t, f.pb.Close())
	for i := range count {
		sockets[i].expect("\x88\x02\x03\xf4") // 1012
		sockets[i].send(closing)
	}
	for i := range count {
		rest, err := sockets[i].rest()
		require.NoError(t, err)
		require.Empty(t, rest)
		body, err := io.ReadAll(streams[i])
		require.NoError(t, err)
		require.Equal(t, "data: x\n", string(body))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.server.Shutdown(ctx))
	require.NoError(t, f.pb.Shutdown(ctx))
	require.NoError(t, f.pb.Close())
	require.Equal(t, s.SessionID, f.owner("alice"))
	require.Equal(t, count, strings.Count(w.bytes(), closing), "the workers saw the clients go")
}

func TestASocketIsClosedAtAFrameBoundaryOnly(t *testing.T) {
	t.Parallel()
	bothWays(t, testASocketIsClosedAtAFrameBoundaryOnly)
}

func testASocketIsClosedAtAFrameBoundaryOnly(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	step := make(chan struct{})
	w := newFake(t, func(h *hit) {
		h.accept()
		h.send("\x81\x7e\x01\x00" + strings.Repeat("a", 100))
		<-step
		h.send(strings.Repeat("b", 156) + "\x81\x04next")
		h.gone()
	})
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.expect("\x81\x7e\x01\x00" + strings.Repeat("a", 100))
	require.NoError(t, f.pb.Close())
	step <- struct{}{}
	c.expect(strings.Repeat("b", 156) + "\x88\x02\x03\xf4")
	require.NoError(t, c.Close())
}

func TestASocketThatNeverReachesABoundaryIsCut(t *testing.T) {
	t.Parallel()
	bothWays(t, testASocketThatNeverReachesABoundaryIsCut)
}

func testASocketThatNeverReachesABoundaryIsCut(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, func(h *hit) { h.accept(); h.send("\x81\x04ab"); h.gone() })
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.expect("\x81\x04ab")
	require.NoError(t, f.pb.Close())
	rest, _ := c.rest()
	require.Empty(t, rest)
}

func TestASocketTheWorkerHasClosedIsNotClosedTwice(t *testing.T) {
	t.Parallel()
	bothWays(t, testASocketTheWorkerHasClosedIsNotClosedTwice)
}

func testASocketTheWorkerHasClosedIsNotClosedTwice(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	w := newFake(t, func(h *hit) { h.accept(); h.send("\x88\x02\x03\xe8"); h.gone() })
	f.register(w, "a")
	c := f.ask(upgradeRequest("/counters/alice"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.expect("\x88\x02\x03\xe8")
	require.NoError(t, f.pb.Close())
	rest, _ := c.rest()
	require.Empty(t, rest)
}

func TestAStreamThatBeginsAfterCloseEndsToo(t *testing.T) {
	t.Parallel()
	bothWays(t, testAStreamThatBeginsAfterCloseEndsToo)
}

func testAStreamThatBeginsAfterCloseEndsToo(t *testing.T, way func(*setup)) {
	f := newFront(t, way)
	step := make(chan struct{})
	w := newFake(t, func(h *hit) {
		<-step
		if h.header.Get("Upgrade") != "" {
			h.echo()
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		h.gone()
	})
	f.register(w, "a")
	stream := f.ask("GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n")
	socket := f.ask(upgradeRequest("/counters/alice"))
	require.Eventually(t, func() bool { return len(w.seen()) == 2 }, patience, time.Millisecond)
	require.NoError(t, f.pb.Close())
	close(step)
	_, body := stream.whole("GET")
	require.Empty(t, body)
	require.Equal(t, 101, socket.answer("GET").StatusCode)
	socket.expect("\x88\x02\x03\xf4")
	require.NoError(t, socket.Close())
}

func TestShutdownWaitsForPlainRequestsAndCutsThemInTheEnd(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	step := make(chan struct{})
	w := newFake(t, func(h *hit) {
		if h.target == "/counters/alice/slow" {
			<-step
			h.ok("slow")
			return
		}
		h.gone()
	})
	f.register(w, "a")
	slow := f.ask("GET /counters/alice/slow HTTP/1.1\r\nHost: p\r\n\r\n")
	stuck := f.ask("GET /counters/alice/stuck HTTP/1.1\r\nHost: p\r\n\r\n")
	require.Eventually(t, func() bool { return len(w.seen()) == 2 }, patience, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.pb.Shutdown(ctx) }()
	step <- struct{}{}
	_, body := slow.whole("GET")
	require.Equal(t, "slow", body)
	cancel()
	resp, _ := stuck.whole("GET")
	require.Equal(t, 502, resp.StatusCode)
	require.ErrorIs(t, <-ended, context.Canceled)

	resp, _ = f.get("/counters/alice/slow")
	require.Equal(t, 503, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
}

func TestWorkersBehindTLSAreServedTheSame(t *testing.T) {
	t.Parallel()
	bothWays(t, testWorkersBehindTLSAreServedTheSame)
}

func testWorkersBehindTLSAreServedTheSame(t *testing.T, way func(*setup)) {
	got := make(chan string, 1)
	w := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/counters/alice/ws":
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw)
			_ = conn.Close()
		case "/base/counters/alice/dies":
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
		default:
			body, _ := io.ReadAll(r.Body)
			got <- r.RequestURI + " " + string(body)
		}
	}))
	t.Cleanup(w.Close)
	f := newFront(t, way, func(s *setup) {
		s.opts.Transport = w.Client().Transport.(*http.Transport)
	})
	f.register(&fake{addr: "x"}, "a", func(r *store.Registration) { r.AdvertiseURL = w.URL + "/base" })
	resp, _ := f.post("/counters/alice/a%2Fb?;", "body")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "/base/counters/alice/a%2Fb?; body", <-got)

	c := f.ask("POST /counters/alice/dies HTTP/1.1\r\nHost: p\r\nContent-Length: 100000\r\n\r\n")
	require.Equal(t, http.StatusBadGateway, c.answer("POST").StatusCode)

	c = f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	c.send("\x81\x02hi")
	c.expect("\x81\x02hi")
	require.NoError(t, f.pb.Close())
	c.expect("\x88\x02\x03\xf4")
	require.NoError(t, c.Close())
}
