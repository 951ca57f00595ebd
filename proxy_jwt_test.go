package pinboard

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// identityServer signs tokens and publishes the key.
type identityServer struct {
	t      *testing.T
	signer jose.Signer
	url    string
}

func newIdentityServer(t *testing.T) *identityServer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	s := &identityServer{t: t}
	s.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	require.NoError(t, err)
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Use: "sig"}}})
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// token returns one for ann with these further claims.
func (s *identityServer) token(more string) string {
	s.t.Helper()
	signed, err := s.signer.Sign(fmt.Appendf(nil, `{"iss":"https://id.example.com","aud":"chat","sub":"ann","exp":%d%s}`,
		time.Now().Add(time.Hour).Unix(), more))
	require.NoError(s.t, err)
	token, err := signed.CompactSerialize()
	require.NoError(s.t, err)
	return token
}

// passport returns one with this server's provider and a static key.
func (s *identityServer) passport(policy string, more ...string) *passport.Standard {
	s.t.Helper()
	p, err := passport.Parse([]byte(`{"providers": [
	  {"type": "staticToken", "id": "bots", "keys": [{"name": "bot", "token": "bot-token"}]},
	  {"type": "jwt", "id": "users", "issuer": "https://id.example.com", "audience": "chat", "algorithms": ["ES256"],
	   "jwksUrl": "`+s.url+`", `+strings.Join(append(more, ""), ", ")+`"from": ["authorization", "cookie:session", "query:access_token"]}],
	 "namespaces": {"*": `+policy+`}}`), nil)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, p.Close()) })
	return p
}

const onlyUsers = `{"allow": "authenticated", "providers": ["users"], "scopes": ["chat"]}`

// credentials are ways to send a token, and what of them a worker gets.
func credentials(token string) []struct{ query, headers, gotQuery, gotCookie string } {
	return []struct{ query, headers, gotQuery, gotCookie string }{
		{"?a=1;b", "Authorization: Bearer " + token, "?a=1;b", ""},
		{"", "authorization: bearer  " + token + "\r\nCookie: a=b", "", "a=b"},
		{"?a=%zz", "Cookie: session=" + token, "?a=%zz", ""},
		{"", "Cookie: a=b; session=" + token + ";c=\"d e\" ; ", "", "a=b;c=\"d e\" ;"},
		{"", "Cookie: session=" + token + "; a=b", "", "a=b"},
		{"", "Cookie: SESSION=x; session =" + token + "; sessions=y", "", "SESSION=x; sessions=y"},
		{"?access_token=" + token, "X-A: b", "", ""},
		{"?a=%zz&access%5Ftoken=" + token + "&&b", "Cookie: a=b", "?a=%zz&&b", "a=b"},
		{"?access_token=" + token, "Cookie: session=" + token + "\r\nAuthorization: Bearer " + token, "", ""},
		{"?access_token=bad", "Cookie: session=bad; a=b\r\nAuthorization: Bearer " + token, "", "a=b"},
	}
}

func TestATokenIsAttestedAndNeverReachesAWorker(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	core, logs := observer.New(zap.DebugLevel)
	pass := id.passport(onlyUsers)
	pass.LogTo(zap.New(core))
	f := newFront(t, withPassport(pass), func(s *setup) { s.opts.Logger = zap.New(core) })
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
	token := id.token(`,"scope":"chat pinboard:operator","team":"x","n":9007199254740993,"pinboard":{"namespaces":["*"]}`)
	seen := 0
	for _, c := range credentials(token) {
		for _, kind := range []string{"GET", "POST", "WebSocket"} {
			path, name := "/counters/alice/x"+c.query, kind+" "+c.query+" "+c.headers
			switch kind {
			case "GET":
				resp, _ := f.get(path, c.headers)
				require.Equal(t, 200, resp.StatusCode, name)
			case "POST":
				resp, _ := f.post(path, "body", c.headers)
				require.Equal(t, 200, resp.StatusCode, name)
			default:
				upgrade := strings.Replace(upgradeRequest(path), "\r\n\r\n", "\r\n"+c.headers+"\r\n\r\n", 1)
				require.Equal(t, 101, f.ask(upgrade).answer("GET").StatusCode, name)
			}
			h := w.seen()[seen]
			seen++
			require.Equal(t, "/counters/alice/x"+c.gotQuery, h.target, name)
			require.Equal(t, c.gotCookie, strings.Join(h.header["Cookie"], "|"), name)
			require.NotContains(t, h.header, "Authorization", name)
			require.NotContains(t, h.head, token, name)
			account := h.claims(s).Account
			require.Equal(t, "ann", account.Subject)
			require.Equal(t, []string{"chat"}, account.Scopes, "no power over the registry")
			require.Equal(t, "x", account.Claims["team"])
			require.NotContains(t, account.Claims, "pinboard")
			attested, err := base64.RawURLEncoding.DecodeString(strings.Split(h.header.Get(wire.HeaderAttestation), ".")[1])
			require.NoError(t, err)
			require.Contains(t, string(attested), `"n":9007199254740993`, "with all its digits")
		}
	}
	for _, entry := range logs.All() {
		require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), token[strings.LastIndexByte(token, '.'):])
	}
}

func TestAForwardedTokenReachesTheWorkerButNotInTheQuery(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	f := newFront(t, withPassport(id.passport(onlyUsers, `"forward": true`)))
	w := newFake(t, nil)
	s := f.register(w, "a")
	token := id.token(`,"scope":"chat"`)
	f.get("/counters/alice?a&access_token="+token, "Authorization: Bearer "+token, "Cookie: a=b; session="+token)
	h := w.only()
	require.Equal(t, "/counters/alice?a", h.target)
	require.Equal(t, "Bearer "+token, h.header.Get("Authorization"))
	require.Equal(t, "a=b; session="+token, h.header.Get("Cookie"))
	require.Equal(t, "ann", h.claims(s).Account.Subject)
}

func TestABadTokenPassesUntouchedWhereAnybodyMay(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	open, closed := newFront(t, withPassport(id.passport(`{"allow": "anonymous"}`))), newFront(t, withPassport(id.passport(onlyUsers)))
	w, never := newFake(t, nil), newFake(t, nil)
	s := open.register(w, "a")
	closed.register(never, "a")
	bad := newIdentityServer(t).token(`,"scope":"chat"`)
	expired := id.token(`,"nbf":4102444800`)
	seen := 0
	for _, token := range []string{bad, expired, "opaque"} {
		for _, c := range credentials(token) {
			if strings.Contains(c.query, "=bad") {
				continue
			}
			resp, _ := open.get("/counters/alice"+c.query, strings.Split(c.headers, "\r\n")...)
			require.Equal(t, 200, resp.StatusCode)
			h := w.seen()[seen]
			seen++
			require.Nil(t, h.claims(s).Account)
			require.Equal(t, "/counters/alice"+c.query, h.target)
			for line := range strings.SplitSeq(c.headers, "\r\n") {
				name, value, _ := strings.Cut(line, ":")
				require.Equal(t, strings.TrimSpace(value), h.header.Get(name))
			}
			resp, body := closed.get("/counters/alice"+c.query, c.headers)
			require.Equal(t, 401, resp.StatusCode)
			require.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"))
			require.Equal(t, "authentication required", errorOf(t, body))
		}
	}
	require.Empty(t, never.seen())
	resp, _ := open.get("/counters/alice", "Cookie: session="+id.token(""))
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "ann", w.seen()[seen].claims(s).Account.Subject, "who is known is attested here too")
}

func TestAGoodTokenThatIsNotEnoughIs403(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	f := newFront(t, withPassport(id.passport(onlyUsers)))
	w := newFake(t, nil)
	f.register(w, "a")
	for _, header := range []string{"Authorization: Bearer " + id.token(""), "Cookie: session=" + id.token(`,"scope":"chats"`), "Authorization: Bearer bot-token"} {
		resp, _ := f.get("/counters/alice", header)
		require.Equal(t, 403, resp.StatusCode)
	}
	require.Empty(t, w.seen())
}

func TestATokenThatCannotBeCheckedIs503AndReachesNobody(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	token := id.token(`,"scope":"chat"`)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	id.url = gone.URL
	for _, policy := range []string{onlyUsers, `{"allow": "anonymous"}`} {
		f := newFront(t, withPassport(id.passport(policy)))
		w := newFake(t, nil)
		f.register(w, "a")
		for _, c := range credentials(token) {
			resp, body := f.get("/counters/alice"+c.query, c.headers)
			require.Equal(t, 503, resp.StatusCode)
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			require.Equal(t, "the credential could not be checked", errorOf(t, body))
		}
		require.Empty(t, w.seen())
		resp, _ := f.get("/counters/alice", "Authorization: Bearer opaque")
		require.NotEqual(t, 503, resp.StatusCode, "that is no token of an identity server's")
	}
}

func TestATokenIsHiddenOnAClusterCallToo(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	f := newFront(t, withPassport(id.passport(onlyUsers)))
	w := newFake(t, nil)
	s := f.register(w, "a")
	s.place("caller")
	token := id.token("")
	resp, _ := f.get("/counters/callee?access_token="+token,
		caller("/counters/caller", s, "Authorization: Bearer "+token, "Cookie: session="+token)...)
	require.Equal(t, 200, resp.StatusCode)
	h := w.only()
	require.NotContains(t, h.head, token)
	require.Equal(t, attest.Claims{Audience: s.SessionID, Caller: "/counters/caller", Depth: 1}, h.claims(s))
}

func TestTheRegistryIsClosedToTokensUnlessTheDocumentOpensIt(t *testing.T) {
	t.Parallel()
	id := newIdentityServer(t)
	token := id.token(`,"scope":"pinboard:operator pinboard:worker","pinboard":{"namespaces":["*"]}`)
	f := newFront(t, withPassport(id.passport(onlyUsers)))
	for _, c := range credentials(token) {
		resp, body := f.get("/registry/workers"+c.query, c.headers)
		require.Equal(t, 403, resp.StatusCode)
		require.Equal(t, "the credential lacks the scope pinboard:operator", errorOf(t, body))
	}
	document := `{"providers": [{"type": "jwt", "id": "staff", "issuer": "https://id.example.com", "audience": "chat", "algorithms": ["ES256"],
	  "jwksUrl": "` + id.url + `", "registry": true}]}`
	pass, err := passport.Parse([]byte(document), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pass.Close()) })
	f = newFront(t, withPassport(pass))
	f.register(newFake(t, nil), "a")
	resp, body := f.get("/registry/workers", "Authorization: Bearer "+token)
	require.Equal(t, 200, resp.StatusCode)
	require.Contains(t, body, `"clientId":"a"`)
	resp, _ = f.get("/registry/workers", "Cookie: session="+token)
	require.Equal(t, 401, resp.StatusCode)
}

func TestOnlyTheNamedCookiesAreTakenOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ lines, want []string }{
		{nil, nil},
		{[]string{"a=b"}, []string{"a=b"}},
		{[]string{"a=b; s=1", "s=2", "s=3; c=d"}, []string{"a=b", "c=d"}},
		{[]string{"s=1; s=2;s"}, nil},
		{[]string{" s = 1 ;x=s=1; ss=1; S=1;; u=2"}, []string{"x=s=1; ss=1; S=1;"}},
		{[]string{"", "a"}, []string{"a"}},
	} {
		kept := slices.Clone(c.lines)
		left := withoutCookies(c.lines, []string{"s", "u"})
		require.Len(t, left, len(c.want))
		require.ElementsMatch(t, c.want, left)
		require.Equal(t, kept, c.lines, "the client's request is not changed")
	}
}
