package pinboard

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

const trusting = `{"allow": "authenticated", "providers": ["users"], "allowedOrigins": ["https://app.example"]}`

// crossing is what browsers say of a request for the host p, and whether that
// may be done by the user's cookie.
var crossing = []struct {
	headers string
	good    bool
}{
	{"X-No-Browser: 1", true},
	{"Sec-Fetch-Site: same-origin\r\nOrigin: https://p", true},
	{"Sec-Fetch-Site: none", true},
	{"Origin: https://p", true},
	{"Sec-Fetch-Site: cross-site\r\nOrigin: https://app.example", true},
	{"Sec-Fetch-Site: same-site\r\nOrigin: https://app.example", true},
	{"Origin: https://app.example", true},
	{"Sec-Fetch-Site: cross-site\r\nOrigin: https://evil.example", false},
	{"Sec-Fetch-Site: cross-site", false},
	{"Sec-Fetch-Site: same-site\r\nOrigin: https://sister.p", false},
	{"Sec-Fetch-Site: cross-site\r\nOrigin: https://p", false},
	{"Origin: https://evil.example", false},
	{"Origin: null", false},
	{"Origin: https://p.evil.example", false},
	{"Origin: https://p:8443", false},
	{"Origin: http://app.example", false},
	{"Origin: https://evil.example\r\nOrigin: https://app.example", false},
	{"Sec-Fetch-Site: cross-site\r\nOrigin: https://app.example\r\nOrigin: https://app.example", false},
}

func TestAForeignPageCannotActByTheUsersCookie(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	for _, policy := range []string{trusting, strings.Replace(trusting, `"authenticated", "providers": ["users"]`, `"anonymous"`, 1)} {
		f := newFront(t, withPassport(id.passport(policy)))
		w := newFake(t, func(h *hit) {
			if h.header.Get("Upgrade") != "" {
				h.accept()
				h.gone()
				return
			}
			h.body()
			h.ok("")
		})
		s := f.register(w, "a")
		token := id.token("")
		ask := func(method, path, headers string) int {
			raw := method + " " + path + " HTTP/1.1\r\nHost: p\r\nConnection: close\r\n" + headers + "\r\n\r\n"
			if method == "WebSocket" {
				raw = strings.Replace(upgradeRequest(path), "Origin: https://app.example\r\n", headers+"\r\n", 1)
				raw = strings.Replace(raw, "Host: app.example", "Host: p", 1)
			}
			return f.ask(raw).answer("GET").StatusCode
		}
		for _, c := range crossing {
			for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "x-mine", "WebSocket", "GET", "HEAD", "OPTIONS"} {
				good := map[string]int{"WebSocket": 101}[method]
				if good == 0 {
					good = 200
				}
				want := good
				safe := method == "GET" || method == "HEAD" || method == "OPTIONS"
				if !c.good && !safe {
					want = 403
				}
				before := len(w.seen())
				require.Equal(t, want, ask(method, "/counters/alice", c.headers+"\r\nCookie: session="+token), "%s %s", method, c.headers)
				require.Equal(t, want == good, len(w.seen()) > before)
				require.Equal(t, good, ask(method, "/counters/alice?access_token="+token, c.headers), "no browser adds that unasked")
				require.Equal(t, good, ask(method, "/counters/alice", c.headers+"\r\nAuthorization: Bearer "+token+"\r\nCookie: session="+token))
				require.Equal(t, "ann", w.seen()[len(w.seen())-1].claims(s).Account.Subject)
			}
		}
	}
}

func TestAPageLearnsWhyItWasRefusedIfItsOriginIsTrusted(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	f := newFront(t, withPassport(id.passport(trusting)))
	for _, c := range []struct {
		credential string
		status     int
	}{{"X-A: none", 401}, {"Authorization: Bearer bot-token", 403}, {"Authorization: Bearer " + id.token(""), 404}} {
		resp, _ := f.get("/counters/alice", c.credential, "Origin: https://app.example")
		require.Equal(t, c.status, resp.StatusCode)
		require.Equal(t, "https://app.example", resp.Header.Get("Access-Control-Allow-Origin"))
		require.Equal(t, "true", resp.Header.Get("Access-Control-Allow-Credentials"))
		require.Equal(t, "Retry-After, WWW-Authenticate", resp.Header.Get("Access-Control-Expose-Headers"))
		require.Equal(t, "Origin", resp.Header.Get("Vary"))
		resp, _ = f.get("/counters/alice", c.credential, "Origin: https://evil.example")
		require.Equal(t, c.status, resp.StatusCode)
		require.NotContains(t, resp.Header, "Access-Control-Allow-Origin")
	}
	w := newFake(t, func(h *hit) { h.ok("", "Access-Control-Allow-Origin: *") })
	f.register(w, "a")
	resp, _ := f.get("/counters/alice", "Authorization: Bearer "+id.token(""), "Origin: https://app.example")
	require.Equal(t, "*", resp.Header.Get("Access-Control-Allow-Origin"), "a worker's answer is its own")
	require.NotContains(t, resp.Header, "Vary")
	w.stop()
	resp, _ = f.get("/counters/alice", "Authorization: Bearer "+id.token(""), "Origin: https://app.example")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "https://app.example", resp.Header.Get("Access-Control-Allow-Origin"))
}

func TestAPreflightIsAnsweredForTrustedOriginsAndReachesNoWorker(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	preflight := func(f *front, origin string, more ...string) (*http.Response, string) {
		return f.ask("OPTIONS /counters/alice/x HTTP/1.1\r\nHost: p\r\nConnection: close\r\nOrigin: " + origin +
			"\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: authorization, x-a\r\n" + lines(more) + "\r\n").whole("OPTIONS")
	}
	closed := newFront(t, withPassport(id.passport(trusting)))
	w := newFake(t, nil)
	resp, _ := preflight(closed, "https://app.example")
	require.Equal(t, 204, resp.StatusCode, "whether or not there is such a namespace")
	closed.register(w, "a")
	resp, body := preflight(closed, "https://app.example")
	require.Equal(t, 204, resp.StatusCode)
	require.Empty(t, body)
	for name, value := range map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Access-Control-Allow-Credentials": "true",
		"Access-Control-Allow-Methods": "PUT", "Access-Control-Allow-Headers": "authorization, x-a", "Access-Control-Max-Age": "300",
	} {
		require.Equal(t, value, resp.Header.Get(name), name)
	}
	require.Equal(t, []string{"Origin", "Access-Control-Request-Method, Access-Control-Request-Headers"}, resp.Header["Vary"])
	for _, origin := range []string{"https://evil.example", "null", "https://app.example\r\nOrigin: https://app.example", ""} {
		resp, _ = preflight(closed, origin)
		require.Equal(t, 401, resp.StatusCode, origin)
		require.NotContains(t, resp.Header, "Access-Control-Allow-Origin", origin)
	}
	resp, _ = closed.ask("OPTIONS /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nOrigin: https://app.example\r\n\r\n").whole("OPTIONS")
	require.Equal(t, 401, resp.StatusCode, "no preflight")
	require.Empty(t, w.seen())
	rows, _, err := closed.store.Rows(t.Context(), counters_, "", 9)
	require.NoError(t, err)
	require.Empty(t, rows, "nobody places an id without a credential")

	resp, _ = preflight(closed, "https://app.example", "Authorization: Bearer "+id.token(""))
	require.Equal(t, 200, resp.StatusCode)
	require.Len(t, w.seen(), 1, "with a credential it is a request like any other")

	open := newFront(t, withPassport(id.passport(`{"allow": "anonymous"}`)))
	w = newFake(t, func(h *hit) { h.reply(204, "", "Access-Control-Allow-Origin: https://any.example") })
	open.register(w, "a")
	resp, _ = preflight(open, "https://any.example")
	require.Equal(t, 204, resp.StatusCode)
	require.Equal(t, "https://any.example", resp.Header.Get("Access-Control-Allow-Origin"), "the application's to say")
	require.Equal(t, "PUT", w.only().header.Get("Access-Control-Request-Method"))
}

// A host may have operators sign in with cookies.
func TestAForeignPageCannotOperateTheRegistryByACookie(t *testing.T) {
	t.Parallel()
	f := newFront(t, withPassport(passportFunc(func(context.Context, *http.Request) (*passport.Identity, error) {
		return &passport.Identity{
			Provider: "p", Subject: "s", Scopes: []string{passport.ScopeOperator}, Ambient: true,
			Claims: map[string]any{"pinboard": map[string]any{"namespaces": []any{"*"}}},
		}, nil
	})))
	f.register(newFake(t, nil), "a")
	body := `{"clientId":"a"}`
	resp, _ := f.post("/registry/drain", body, "Content-Type: text/plain", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site")
	require.Equal(t, 403, resp.StatusCode)
	resp, _ = f.post("/registry/drain", body, "Origin: https://p", "Sec-Fetch-Site: same-origin")
	require.Equal(t, 200, resp.StatusCode)
	resp, _ = f.get("/registry/workers", "Sec-Fetch-Site: cross-site")
	require.Equal(t, 200, resp.StatusCode)
}
