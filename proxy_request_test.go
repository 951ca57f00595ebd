package pinboard

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAClientCannotNameOurHeadersInConnectionNorForgeThem(t *testing.T) { // C01
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	s := f.register(w, "a")
	epoch := s.place("alice")

	resp, _ := f.ask("GET /counters/alice/value HTTP/1.1\r\nHost: p\r\nConnection:\r\n" +
		"Connection: close, Pinboard-Attestation, Pinboard-Epoch, X-Forwarded-For, X-Hop\r\nX-Hop: 1\r\n" +
		"Pinboard-Attestation: forged\r\nPinboard-Epoch: 99999\r\nPinboard-Proxy-Secret: s\r\n" +
		"pinboard_session: x\r\nPinboard.From: /counters/bob\r\nPinned-Refusal: x\r\nPINNED_x: y\r\n" +
		"Pinboard-Subrequest-Depth: 0\r\nKeep-Alive: 5\r\nX-Kept: 1\r\n\r\n").whole("GET")
	require.Equal(t, http.StatusOK, resp.StatusCode)

	h := w.only()
	claims := h.claims(s)
	require.Nil(t, claims.Account)
	require.Empty(t, claims.Caller)
	require.Equal(t, epoch, h.epoch())
	require.Equal(t, []string{"127.0.0.1"}, h.header["X-Forwarded-For"])
	require.Equal(t, "1", h.header.Get("X-Kept"))
	for _, name := range []string{"Connection", "X-Hop", "Keep-Alive"} {
		require.NotContains(t, h.header, name)
	}
	ours := 0
	for name := range h.header {
		if wire.Reserved(name) {
			ours++
		}
	}
	require.Equal(t, 2, ours, "%s", h.head)
}

// The same with a made-up session: it is a cluster call then, which must prove itself.
func TestAForgedSessionAmongForgedHeadersReachesNobody(t *testing.T) { // C01
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a").place("alice")
	resp, body := f.ask("GET /counters/alice/value HTTP/1.1\r\nHost: p\r\nConnection:\r\n" +
		"Connection: close, Pinboard-Attestation, Pinboard-Epoch, X-Forwarded-For, X-Hop\r\nX-Hop: 1\r\n" +
		"Pinboard-Attestation: forged\r\nPinboard-Epoch: 99999\r\nPinboard-Proxy-Secret: s\r\nPinboard-Session: x\r\n" +
		"Pinboard-Session-Secret: y\r\nPinboard-From: /counters/bob\r\nPinboard-Subrequest-Depth: 0\r\n\r\n").whole("GET")
	require.Equal(t, http.StatusForbidden, resp.StatusCode)
	require.Equal(t, "invalid session secret", errorOf(t, body))
	require.Empty(t, w.seen())
}

func TestNothingIsAddedToARequestButWhatTheProtocolSays(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/counters/alice/x")
	h := w.only()
	names := map[string]bool{}
	for name := range h.header {
		names[name] = true
	}
	require.Equal(t, map[string]bool{
		"Host": true, "X-Forwarded-For": true, "X-Forwarded-Proto": true, "X-Forwarded-Host": true,
		wire.HeaderAttestation: true, wire.HeaderEpoch: true,
	}, names)
	require.Equal(t, "p", h.header.Get("Host"))
	require.Equal(t, "http", h.header.Get("X-Forwarded-Proto"))
	require.Equal(t, "p", h.header.Get("X-Forwarded-Host"))
}

// The worker's own address is nobody's to know: an application redirects to what it
// takes for its host.
func TestARequestWithoutAHostNamesNone(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	w := newFake(t, nil)
	f.register(w, "a")
	for _, raw := range []string{
		"GET /counters/alice HTTP/1.0\r\n\r\n",
		"GET /counters/alice HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n",
	} {
		resp, _ := f.ask(raw).whole("GET")
		require.Equal(t, http.StatusOK, resp.StatusCode, raw)
	}
	require.Equal(t, "200", f.frames().send("", ":method: GET", ":scheme: http", ":path: /counters/alice").status)
	hits := w.seen()
	require.Len(t, hits, 3)
	for _, h := range hits {
		require.Equal(t, []string{""}, h.header["Host"])
		require.NotContains(t, h.header, headerForwardedHost)
		require.NotContains(t, h.head, w.addr)
	}
}

func TestPathAndQueryReachTheWorkerByteForByte(t *testing.T) { // C03, C05
	t.Parallel()
	// What the host makes of the query is its own business.
	parsing := func(s *setup) {
		s.opts.Affinity.Key = func(r *http.Request, _ Client) (string, bool) {
			_ = r.ParseForm()
			return r.URL.Query().Get("a") + r.Form.Get("x"), true
		}
	}
	for _, base := range []string{"", "/base", "/b%2Fc", "/b%2fc/%7e;d=1/%2525"} {
		f := newFront(t, parsing)
		w := newFake(t, nil)
		f.register(w, "a", func(r *store.Registration) { r.AdvertiseURL += base })
		targets := []string{
			"/counters/alice/q?a=1;b=2&c=3", "/counters/alice/q?x=%zz&y=1", "/counters/alice/q?a=b|c",
			"/counters/alice/q?", "/counters/alice/q?&&=", "/counters/alice/q??", "/counters/alice", "/counters/alice/",
			"/counters/alice?", "/counters/alice//x///", "/counters/alice/a%2Fb/%2F/c%2520d/%E2%82%AC?x=%2F",
			"/counters/alice/\"<>[]^`{|}'()*!$&,;=:@\xff", "/counters/alice/%7e~%41A?%7e~\"<>\\^`{}\xff",
			"/counters/alice/" + strings.Repeat("p", 8000) + "?" + strings.Repeat("q", 8000),
		}
		for i, target := range targets {
			resp, _ := f.get(target)
			require.Equal(t, http.StatusOK, resp.StatusCode, target)
			require.Equal(t, base+target, w.seen()[i].target)
		}
	}
}

func TestABasePathWithASlashAtItsEndAddsOneSlash(t *testing.T) { // C05
	t.Parallel()
	for _, base := range []string{"/base", "/b%2Fc", "/b%2F"} {
		f := newFront(t)
		w := newFake(t, nil)
		f.register(w, "a", func(r *store.Registration) { r.AdvertiseURL += base + "/" })
		const target = "/counters/alice/a%2Fb/%2F/c%2520d/%E2%82%AC?x=%2F"
		f.get(target)
		require.Equal(t, base+target, w.only().target)
	}
}

func TestWhatPinboardIsMountedBelowIsNotForwarded(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler { return http.StripPrefix("/front", h) }
	})
	w := newFake(t, nil)
	f.register(w, "a")
	f.get("/front/counters/alice/a%2Fb?x=%2F;")
	require.Equal(t, "/counters/alice/a%2Fb?x=%2F;", w.only().target)
}

func TestAnIDIsReadRawAndInvalidOnesReachNobody(t *testing.T) { // C08
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	for _, id := range []string{
		"al%69ce", "a%2Fb", "a%5Cb", "a%00b", "a%3Fb", "a%23b", "a%3Bb", "a%20b", "", strings.Repeat("a", 257), "%C3%A9",
		".", "..", "%2e%2e", "a;b", "a:b", "é",
		// Encoded twice, too long, half, or otherwise than by octets; and what
		// others trim, fold or take for a separator.
		"al%2569ce", "%61lice", "%C0%AE", "%C1%A1lice", "%EF%BC%A1", "\xc0\xae", "alice%20",
		"%09alice", "alice%0d%0aX:y", "alice%7F", "alice%2e", "%2E", "a+b", "a,b", "a'b", "a\"b", "a*b", "a=b", "a&b", "a@b", "a|b", "a\\b",
		"[alice]", "{alice}", "(alice)", "$alice", "!alice", "^", "`",
	} {
		resp, body := f.get("/counters/" + id + "/v")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, id)
		errorOf(t, body)
	}
	for _, path := range []string{"/counters", "/counters/", "/counters//v", "/counters?x", "/counters/alice/../bob", "/counters/alice/%2e./x",
		"/counters/alice%/v", "/counters/al%6/v", "/counters/%zz/v", "/counters/%u0061lice/v",
	} {
		resp, _ := f.get(path)
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, path)
	}
	require.Empty(t, w.seen())
	rows, _, err := f.store.Rows(t.Context(), counters_, "", 100)
	require.NoError(t, err)
	require.Empty(t, rows)

	resp, _ := f.get("/counters/" + strings.Repeat("a", 256) + "/v")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	resp, _ = f.get("/co%75nters/alice/v")
	require.Equal(t, http.StatusOK, resp.StatusCode, "the namespace is decoded once")
	require.Equal(t, "/co%75nters/alice/v", w.seen()[1].target)
}

func TestARequestTargetCannotSteerTheProxy(t *testing.T) { // C09
	t.Parallel()
	var mu sync.Mutex
	dialled := map[string]int{}
	f := newFront(t, func(s *setup) {
		s.opts.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			mu.Lock()
			dialled[addr]++
			mu.Unlock()
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}}
	})
	w := newFake(t, nil)
	f.register(w, "a")
	status := func(raw string) int {
		c := f.ask(raw)
		return c.answer("GET").StatusCode
	}
	require.Equal(t, http.StatusOK, status("GET http://169.254.169.254/counters/alice/value HTTP/1.1\r\nHost: p\r\n\r\n"))
	require.Equal(t, "/counters/alice/value", w.only().target)
	require.GreaterOrEqual(t, status("CONNECT 127.0.0.1:6379 HTTP/1.1\r\nHost: p\r\n\r\n"), 400)
	require.Equal(t, http.StatusNotImplemented, status("CONNECT /counters/alice/x HTTP/1.1\r\nHost: p\r\n\r\n"))
	require.Equal(t, http.StatusBadRequest, status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	require.Less(t, status("OPTIONS * HTTP/1.1\r\nHost: p\r\n\r\n"), 500)
	require.Equal(t, http.StatusBadRequest, status("GET /counters/http://127.0.0.1:6379/ HTTP/1.1\r\nHost: p\r\n\r\n"))
	require.Equal(t, http.StatusBadRequest, status("GET /counters/alice/x#frag HTTP/1.1\r\nHost: p\r\n\r\n"))
	require.Len(t, w.seen(), 1)

	// The absolute form names its own host (RFC 9112, section 3.2.2), which
	// chooses no worker.
	for i, absolute := range []string{"https://169.254.169.254:8080", "HTTP://169.254.169.254:8080"} {
		require.Equal(t, http.StatusOK, status("GET "+absolute+"/counters/alice/value?x=1 HTTP/1.1\r\nHost: p\r\n\r\n"), absolute)
		h := w.seen()[1+i]
		require.Equal(t, "/counters/alice/value?x=1", h.target)
		require.Equal(t, "169.254.169.254:8080", h.header.Get("Host"))
	}
	for _, target := range []string{
		"http://169.254.169.254", "http://169.254.169.254?/counters/alice", "http:/counters/alice", "http:counters/alice", "http:///counters/alice",
		"ftp://p/counters/alice", "http://user:secret@p/counters/alice", "http://evil@p/counters/alice", "//169.254.169.254/counters/alice",
		"/counters/@169.254.169.254/x", "/counters/alice@169.254.169.254/x", "/counters/169.254.169.254:80/x", "counters/alice", "*", "?/counters/alice",
	} {
		require.Equal(t, http.StatusBadRequest, status("GET "+target+" HTTP/1.1\r\nHost: p\r\n\r\n"), target)
	}
	require.Len(t, w.seen(), 3)
	require.Len(t, dialled, 1)
	require.Contains(t, dialled, w.addr)
}

func TestEveryMethodIsForwarded(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	f.register(w, "a")
	for i, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "x-mine"} {
		c := f.ask(method + " /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
		resp, _ := c.whole(method)
		require.Equal(t, http.StatusOK, resp.StatusCode, method)
		require.Equal(t, method, w.seen()[i].method)
	}
}

func TestManyLargeHeadersPassBothWays(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{HeaderBytes: mib, HeaderLines: 210, AnswerHeaderBytes: mib}
	})
	headers := make([]string, 200)
	for i := range headers {
		headers[i] = "X-Large-" + strconv.Itoa(i) + ": " + strings.Repeat("v", 3000)
	}
	w := newFake(t, func(h *hit) { h.ok("", headers...) })
	f.register(w, "a")
	resp, _ := f.get("/counters/alice", headers...)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	for i := range headers {
		name := "X-Large-" + strconv.Itoa(i)
		require.Len(t, w.only().header.Get(name), 3000)
		require.Len(t, resp.Header.Get(name), 3000)
	}
}

func TestAnAnswerWithTooLargeAHeaderIsABadGateway(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.ok("", "X-Large: "+strings.Repeat("v", 64*kib+1))
		h.gone()
	})
	f.register(w, "a")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, http.StatusBadGateway, resp.StatusCode)
}
