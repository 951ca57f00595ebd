package passport

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of docs/passport.md whole: what a namespace asks for, against who
// calls.
func TestPoliciesHoldForKeysAndTokensAlike(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	p := parseJWT(t, `{"providers": [
	  {"type": "staticToken", "id": "bots", "keys": [
	    {"name": "plain", "token": "plain-key"}, {"name": "chatty", "token": "chatty-key", "scopes": ["chat", "paid"]}]},
	  {"type": "jwt", "id": "users", "issuer": "`+issuer+`", "audience": "chat", "jwksUrl": "`+id.URL+`", "algorithms": ["ES256"],
	   "from": ["authorization", "cookie:session"]},
	  {"type": "jwt", "id": "staff", "issuer": "`+issuer+`", "audience": "desk", "jwksUrl": "`+id.URL+`", "algorithms": ["ES256"]}],
	 "namespaces": {
	  "/open": {"allow": "anonymous"},
	  "/known": {"allow": "authenticated"},
	  "/chat": {"allow": "authenticated", "scopes": ["chat"]},
	  "/both": {"allow": "authenticated", "scopes": ["chat", "paid"]},
	  "/users": {"allow": "authenticated", "providers": ["users"]},
	  "/bots": {"allow": "authenticated", "providers": ["bots"]},
	  "/userchat": {"allow": "authenticated", "providers": ["users"], "scopes": ["chat"]},
	  "/people": {"allow": "authenticated", "providers": ["users", "staff"]},
	  "/power": {"allow": "authenticated", "scopes": ["pinboard:operator"]},
	  "room*": {"allow": "authenticated", "providers": ["users"]},
	  "/room-open*": {"allow": "anonymous"}}}`)
	header := func(token string) *http.Request { return ask("/", "Authorization: Bearer "+token) }
	const ok, who, no = "200", "401", "403"
	callers := []struct {
		name string
		r    *http.Request
		// by namespace, in the order below
		want [13]string
	}{
		//                                                open known chat both users bots userchat people power room1 room-open1 room- none
		{"nobody", ask("/"), [13]string{ok, who, who, who, who, who, who, who, who, who, ok, who, who}},
		{"a bad key", header("no-key"), [13]string{ok, who, who, who, who, who, who, who, who, who, ok, who, who}},
		{"a key", header("plain-key"), [13]string{ok, ok, no, no, no, ok, no, no, no, no, ok, no, no}},
		{"a key with scopes", header("chatty-key"), [13]string{ok, ok, ok, ok, no, ok, no, no, no, no, ok, no, no}},
		{"a token", header(s.token()), [13]string{ok, ok, no, no, ok, no, no, ok, no, ok, ok, ok, no}},
		{"a token in a cookie", ask("/", "Cookie: session="+s.token()), [13]string{ok, ok, no, no, ok, no, no, ok, no, ok, ok, ok, no}},
		{"a token with a scope", header(s.token(map[string]any{"scope": "chat"})),
			[13]string{ok, ok, ok, no, ok, no, ok, ok, no, ok, ok, ok, no}},
		{"a token with scopes", header(s.token(map[string]any{"scope": "chat", "scp": []string{"paid", "more"}})),
			[13]string{ok, ok, ok, ok, ok, no, ok, ok, no, ok, ok, ok, no}},
		{"a token that grants itself power", header(s.token(map[string]any{"scope": "pinboard:operator"})),
			[13]string{ok, ok, no, no, ok, no, no, ok, no, ok, ok, ok, no}},
		{"a token of other people", header(s.token(map[string]any{"aud": "desk", "scope": "chat paid"})),
			[13]string{ok, ok, ok, ok, no, no, no, ok, no, no, ok, no, no}},
		{"an expired token", header(s.token(map[string]any{"exp": 1})),
			[13]string{ok, who, who, who, who, who, who, who, who, who, ok, who, who}},
		{"a forged token", header(newSigner("ES256", "k").token()),
			[13]string{ok, who, who, who, who, who, who, who, who, who, ok, who, who}},
		{"a token with another audience", header(s.token(map[string]any{"aud": "mail"})),
			[13]string{ok, who, who, who, who, who, who, who, who, who, ok, who, who}},
	}
	for _, c := range callers {
		caller := knows(t, p, c.r)
		for i, namespace := range []string{
			"/open", "/known", "/chat", "/both", "/users", "/bots", "/userchat", "/people", "/power", "/room1", "/room-open1", "/room-", "/none",
		} {
			err := p.Admit(t.Context(), namespace, caller)
			switch c.want[i] {
			case ok:
				require.NoError(t, err, "%s, %s", c.name, namespace)
			case who:
				require.ErrorIs(t, err, ErrUnauthenticated, "%s, %s", c.name, namespace)
			case no:
				require.ErrorIs(t, err, ErrForbidden, "%s, %s", c.name, namespace)
			}
		}
	}
}
