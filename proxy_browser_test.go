package pinboard

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/browsertest"
)

// handshake accepts an upgrade as a browser wants it, and sends a word.
func (h *hit) handshake() {
	sum := sha1.Sum([]byte(h.header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	h.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n\x81\x04word")
	h.gone()
}

// What pages do, each a promise of a text. PB is where pinboard is.
const (
	pagePosts     = `fetch("PB/counters/alice/post", {method: "POST", credentials: "include", mode: "no-cors", body: "x"}).then(r => "sent")`
	pageOpens     = `new Promise(done => { const s = new WebSocket("PB/counters/alice/ws".replace("http", "ws")); s.onmessage = e => done(e.data); s.onerror = () => done("refused") })`
	pageOpensBy   = `new Promise(done => { const s = new WebSocket("PB/counters/alice/ws?access_token=TOKEN".replace("http", "ws")); s.onmessage = e => done(e.data); s.onerror = () => done("refused") })`
	pageListens   = `new Promise(done => { const s = new EventSource("PB/counters/alice/sse", {withCredentials: true}); s.onmessage = e => { s.close(); done(e.data) }; s.onerror = () => { s.close(); done("refused") } })`
	pagePuts      = `fetch("PB/counters/alice/put", {method: "PUT", headers: {authorization: "Bearer TOKEN", "x-a": "b"}, body: "x"}).then(r => r.text(), () => "refused")`
	pageReads401  = `fetch("PB/counters/alice/get", {credentials: "omit"}).then(r => r.status + " " + r.headers.get("www-authenticate"), () => "refused")`
	pageReadsThis = `fetch("PB/counters/alice/get", {credentials: "include"}).then(r => r.text(), () => "refused")`
)

// A real browser decides what it sends along: this is what it comes to for pages
// of pinboard's own origin, of one that the policy trusts, and of a stranger's
// on the same site, to which even SameSite=Strict cookies go.
func TestPagesOfABrowserMayDoWhatTheirOriginAllows(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!DOCTYPE html><title>a page</title>"))
	})
	trusted, stranger := httptest.NewServer(page), httptest.NewServer(page)
	defer trusted.Close()
	defer stranger.Close()
	id := newIdentityServer(t)
	f := newFront(t, withPassport(id.passport(`{"allow": "authenticated", "providers": ["users"], "allowedOrigins": ["`+trusted.URL+`"]}`)),
		func(s *setup) {
			s.handler = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/page" {
						page(w, r)
						return
					}
					h.ServeHTTP(w, r)
				})
			}
		})
	w := newFake(t, func(h *hit) {
		allow := []string{"Access-Control-Allow-Origin: " + h.header.Get("Origin"), "Access-Control-Allow-Credentials: true"}
		switch h.target {
		case "/counters/alice/sse":
			h.chunked(append(allow, "Content-Type: text/event-stream")...)
			h.chunk("data: word\n\n")
			h.gone()
		default:
			if strings.HasPrefix(h.target, "/counters/alice/ws") {
				h.handshake()
				return
			}
			h.body()
			h.ok("seen", allow...)
		}
	})
	s := f.register(w, "a")
	token := id.token("")
	own, elsewhere := f.url(""), strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)
	browser := browsertest.New(t, patience)
	ask := func(origin, script string) string {
		t.Helper()
		url := origin
		if origin == own {
			url += "/page"
		}
		ctx, cancel := context.WithTimeout(browser, patience)
		defer cancel()
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)))
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](strings.NewReplacer("PB", own, "TOKEN", token).Replace(script), chromedp.EvalAwaitPromise))
		require.NoError(t, err)
		return text
	}
	ask(own, `Promise.resolve(document.cookie = "session=TOKEN; SameSite=Strict; path=/")`)

	seen := 0
	for _, c := range []struct {
		name, origin, script, want string
		reached                    int
	}{
		{"own, post", own, pagePosts, "sent", 1},
		{"own, WebSocket", own, pageOpens, "word", 1},
		{"own, event source", own, pageListens, "word", 1},
		{"own, put", own, pagePuts, "seen", 1},
		{"own, without a credential", own, pageReads401, "401 Bearer", 0},
		{"trusted, post", trusted.URL, pagePosts, "sent", 1},
		{"trusted, WebSocket", trusted.URL, pageOpens, "word", 1},
		{"trusted, event source", trusted.URL, pageListens, "word", 1},
		{"trusted, put after a preflight", trusted.URL, pagePuts, "seen", 1},
		{"trusted, without a credential", trusted.URL, pageReads401, "401 Bearer", 0},
		{"stranger, post", stranger.URL, pagePosts, "sent", 0},
		{"stranger, WebSocket", stranger.URL, pageOpens, "refused", 0},
		{"stranger, WebSocket with a token besides the cookie, which counts", stranger.URL, pageOpensBy, "refused", 0},
		{"other site, WebSocket without the cookie", elsewhere, pageOpens, "refused", 0},
		{"other site, WebSocket with a token", elsewhere, pageOpensBy, "word", 1},
		{"stranger, put", stranger.URL, pagePuts, "refused", 0},
		{"stranger, without a credential", stranger.URL, pageReads401, "refused", 0},
		{"stranger, what the worker lets it read", stranger.URL, pageReadsThis, "seen", 1},
	} {
		require.Equal(t, c.want, ask(c.origin, c.script), c.name)
		hits := w.seen()
		require.Len(t, hits, seen+c.reached, c.name)
		for _, h := range hits[seen:] {
			require.Equal(t, "ann", h.claims(s).Account.Subject, c.name)
			require.NotContains(t, h.head, token, c.name)
		}
		seen = len(hits)
	}
}
