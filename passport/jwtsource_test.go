package passport

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const everywhere = `{"from": ["authorization", "cookie:session", "query:access_token"]}`

func as(sub string) map[string]any { return map[string]any{"sub": sub} }

func TestATokenIsFoundWhereTheDocumentSays(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	token, bad := s.token(), newSigner("ES256", "k").token()
	places := map[string]*http.Request{
		"authorization":      ask("/", "Authorization: Bearer "+token),
		"cookie:session":     ask("/", "Cookie: a=b; session="+token),
		"query:access_token": ask("/?a=%zz&access_token=" + token + "&b"),
	}
	for only := range places {
		p := parseJWT(t, jwtDocument(id.URL, `{"from": ["`+only+`"]}`))
		for place, r := range places {
			require.Equal(t, place == only, knows(t, p, r) != nil, "%s, from %s", place, only)
		}
	}
	byDefault := parseJWT(t, jwtDocument(id.URL))
	for place, r := range places {
		require.Equal(t, place == "authorization", knows(t, byDefault, r) != nil, place)
	}

	p := parseJWT(t, jwtDocument(id.URL, everywhere))
	for name, r := range map[string]*http.Request{
		"one cookie among others":      ask("/", "Cookie: session2=x; xsession=y; session="+token+"; a"),
		"a second line of cookies":     ask("/", "Cookie: a=b", "Cookie: session="+token),
		"white space around a cookie":  ask("/", "Cookie: a=b;  session = "+token+" ;c=d"),
		"a parameter's name escaped":   ask("/?access%5Ftoken=" + token),
		"a parameter's value escaped":  ask("/?access_token=" + strings.ReplaceAll(token, ".", "%2E")),
		"a WebSocket of a browser's":   ask("/?access_token="+token, "Connection: Upgrade", "Upgrade: websocket"),
		"a bad header, a good cookie":  ask("/", "Authorization: Bearer "+bad, "Cookie: session="+token),
		"a bad cookie, a good query":   ask("/?access_token="+token, "Cookie: session="+bad),
		"another scheme, a good query": ask("/?access_token="+token, "Authorization: Basic YTpi"),
		"two headers, a good cookie":   ask("/", "Authorization: Bearer "+bad, "Authorization: x", "Cookie: session="+token),
	} {
		require.NotNil(t, knows(t, p, r), name)
	}
	for name, r := range map[string]*http.Request{
		"two headers":                       ask("/", "Authorization: Bearer "+token, "Authorization: Bearer "+token),
		"two cookies":                       ask("/", "Cookie: session="+token+"; session="+token),
		"two cookies in two lines":          ask("/", "Cookie: session="+token, "Cookie: session=x"),
		"an empty cookie and a good one":    ask("/", "Cookie: session=; session="+token),
		"two parameters":                    ask("/?access_token=" + token + "&access_token=" + token),
		"a bare parameter and a good one":   ask("/?access_token&access_token=" + token),
		"a broken parameter and a good one": ask("/?access_token=%zz&access_token=" + token),
		"a cookie in capitals":              ask("/", "Cookie: SESSION="+token),
		"a quoted cookie":                   ask("/", `Cookie: session="`+token+`"`),
		"a parameter in capitals":           ask("/?ACCESS_TOKEN=" + token),
		"a parameter after ;":               ask("/?a;access_token=" + token),
		"a parameter of the path":           ask("/;access_token=" + token),
		"a bearer in a cookie":              ask("/", "Cookie: session=Bearer "+token),
		"no bearer":                         ask("/", "Authorization: "+token),
		"a proxy's header":                  ask("/", "Proxy-Authorization: Bearer "+token),
		"a subprotocol":                     ask("/", "Sec-WebSocket-Protocol: "+token),
		"nothing":                           ask("/"),
	} {
		require.Nil(t, knows(t, p, r), name)
	}
	withoutURL := ask("/", "Authorization: Bearer "+token)
	withoutURL.URL = nil
	require.NotNil(t, knows(t, p, withoutURL))
}

func TestOfSeveralGoodTokensTheFirstPlaceCounts(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	r := ask("/?access_token="+s.token(as("query")), "Authorization: Bearer "+s.token(as("header")), "Cookie: session="+s.token(as("cookie")))
	for _, c := range []struct{ from, want string }{
		{`["authorization", "cookie:session", "query:access_token"]`, "header"},
		{`["cookie:session", "query:access_token", "authorization"]`, "cookie"},
		{`["query:access_token", "authorization", "cookie:session"]`, "query"},
	} {
		who := knows(t, parseJWT(t, jwtDocument(id.URL, `{"from": `+c.from+`}`)), r)
		require.Equal(t, c.want, who.Subject)
		require.Equal(t, []string{"Authorization"}, who.HideHeaders, "it is good, and counts for nothing")
		require.Equal(t, []string{"session"}, who.HideCookies)
		require.Equal(t, []string{"access_token"}, who.HideQuery)
	}
}

func TestWhatCarriesCredentialsIsHiddenOnceTheCallerIsKnown(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	token := s.token()
	p := parseJWT(t, jwtDocument(id.URL, everywhere))
	who := knows(t, p, ask("/", "Authorization: Basic YTpi", "Cookie: session="+token))
	require.Empty(t, who.HideHeaders, "the application's own")
	require.Equal(t, []string{"session"}, who.HideCookies)
	require.Equal(t, []string{"access_token"}, who.HideQuery)

	p = parseJWT(t, jwtDocument(id.URL, everywhere, `{"forward": true}`))
	who = knows(t, p, ask("/?access_token="+token, "Authorization: Bearer "+token, "Cookie: session="+token))
	require.Empty(t, who.HideHeaders)
	require.Empty(t, who.HideCookies)
	require.Equal(t, []string{"access_token"}, who.HideQuery, "never in a worker's log")
}

// mixed is a document with static keys and two identity servers.
func mixed(first, second string, more string) string {
	return `{"providers": [
	  {"type": "jwt", "id": "users", "issuer": "` + issuer + `", "audience": "chat", "jwksUrl": "` + first + `", "algorithms": ["ES256"], "from": ["cookie:session"]},
	  {"type": "staticToken", "id": "bots", "keys": [{"name": "bot", "token": "bot-token"}]},
	  {"type": "jwt", "id": "staff", "issuer": "` + issuer + `", "audience": "chat", "jwksUrl": "` + second + `", "algorithms": ["ES256"],
	   "from": ["authorization", "query:t"]}], "namespaces": {` + more + `}}`
}

func TestGoodTokensOfAllProvidersAreHidden(t *testing.T) {
	t.Parallel()
	user, staff := newSigner("ES256", "user"), newSigner("ES256", "staff")
	users, staffs := newIDP(t, user.jwk()), newIDP(t, staff.jwk())
	p := parseJWT(t, mixed(users.URL, staffs.URL, ""))
	for name, c := range map[string]struct {
		r       *http.Request
		want    string
		headers []string
	}{
		"a cookie":                    {ask("/", "Cookie: session="+user.token()), "users", nil},
		"a key":                       {ask("/", "Authorization: Bearer bot-token"), "bots", []string{"Authorization"}},
		"a cookie and a key":          {ask("/", "Cookie: session="+user.token(), "Authorization: Bearer bot-token"), "users", []string{"Authorization"}},
		"a cookie and a token":        {ask("/", "Cookie: session="+user.token(), "Authorization: Bearer "+staff.token()), "users", []string{"Authorization"}},
		"a cookie and a bad token":    {ask("/", "Cookie: session="+user.token(), "Authorization: Bearer "+user.token()), "users", nil},
		"a bad cookie and a key":      {ask("/", "Cookie: session="+staff.token(), "Authorization: Bearer bot-token"), "bots", []string{"Authorization"}},
		"a parameter":                 {ask("/?t=" + staff.token()), "staff", nil},
		"a bad cookie, a good header": {ask("/", "Cookie: session=x", "Authorization: Bearer "+staff.token()), "staff", []string{"Authorization"}},
	} {
		who := knows(t, p, c.r)
		require.NotNil(t, who, name)
		require.Equal(t, c.want, who.Provider, name)
		require.Equal(t, c.headers, who.HideHeaders, name)
		require.Equal(t, []string{"session"}, who.HideCookies, name)
		require.Equal(t, []string{"t"}, who.HideQuery, name)
	}
}

func TestATokenThatCouldNotBeCheckedIsHiddenToo(t *testing.T) {
	t.Parallel()
	user, staff := newSigner("ES256", "user"), newSigner("ES256", "staff")
	users, staffs := newIDP(t, user.jwk()), newIDP(t)
	staffs.say(http.StatusInternalServerError, "")
	p := parseJWT(t, mixed(users.URL, staffs.URL, ""))
	who := knows(t, p, ask("/", "Cookie: session="+user.token(), "Authorization: Bearer "+staff.token()))
	require.Equal(t, "users", who.Provider)
	require.Equal(t, []string{"Authorization"}, who.HideHeaders)

	_, err := p.Identify(t.Context(), ask("/", "Authorization: Bearer "+staff.token()))
	require.ErrorContains(t, err, `provider "staff"`)
	require.Nil(t, knows(t, p, ask("/", "Authorization: Bearer opaque")), "that can't be a token of theirs")

	both := parseJWT(t, jwtDocument(staffs.URL, `{"from": ["authorization", "cookie:session"]}`))
	_, err = both.Identify(t.Context(), ask("/", "Authorization: Bearer "+staff.token(), "Cookie: session=x"))
	require.Error(t, err)
}

func TestAFailedCredentialIsNamedByItsProviderAlone(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "kid-planted")
	id := newIDP(t, s.jwk())
	p := parseJWT(t, jwtDocument(id.URL+"/?key=planted-in-url", everywhere))
	token := s.token(map[string]any{"exp": 1, "sub": "planted-subject", "aud": "planted-audience"})
	require.Nil(t, knows(t, p, ask("/?access_token="+token)), "without a logger too")
	seen, logs := observer.New(zapcore.DebugLevel)
	p.LogTo(zap.New(seen))
	require.Nil(t, knows(t, p, ask("/?access_token="+token, "Authorization: Bearer "+token, "Cookie: session="+token)))
	require.NotNil(t, knowsToken(t, p, s.token()))
	id.Close()
	fresh := parseJWT(t, jwtDocument(id.URL+"/?key=planted-in-url", everywhere))
	fresh.LogTo(zap.New(seen))
	_, err := fresh.Identify(t.Context(), ask("/?access_token="+s.token(as("planted-subject"))))
	require.Error(t, err)
	require.NotContains(t, err.Error(), "planted")
	said := logs.All()
	require.Len(t, said, 5)
	for _, entry := range said {
		text := fmt.Sprint(entry.Message, entry.ContextMap())
		require.NotContains(t, text, "planted")
		require.NotContains(t, text, token[:10])
		require.Contains(t, text, "users")
	}
	require.Equal(t, zapcore.WarnLevel, said[4].Level)
}
