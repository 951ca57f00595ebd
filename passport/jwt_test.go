package passport

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestATokenOfEachAlgorithmIsKnown(t *testing.T) {
	t.Parallel()
	for _, alg := range asymmetric {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			s := newSigner(string(alg), "k1")
			id := newIDP(t, s.jwk())
			p := parseJWT(t, jwtDocument(id.URL, `{"algorithms": ["`+string(alg)+`"]}`))
			token := s.token(map[string]any{"scope": "chat read", "n": json.Number("9007199254740993"), "team": []string{"a"}, "exp": 4102444800})
			who := knowsToken(t, p, token)
			require.Equal(t, &Identity{
				Provider: "users", Subject: "ann", Scopes: []string{"chat", "read"},
				Claims: map[string]any{
					"iss": issuer, "aud": audience, "sub": "ann", "exp": json.Number("4102444800"), "scope": "chat read",
					"n": json.Number("9007199254740993"), "team": []any{"a"},
				},
				HideHeaders: []string{"Authorization"},
			}, who)
			require.Equal(t, 1, id.asked())
			for _, other := range asymmetric {
				if other == alg {
					continue
				}
				narrow := parseJWT(t, jwtDocument(id.URL, `{"algorithms": ["`+string(other)+`"]}`))
				require.Nil(t, knowsToken(t, narrow, token), "only %s is listed", other)
			}
		})
	}
}

func TestALeewayOf30SecondsIsGranted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSigner("ES256", "k")
		_, p := bubble(t, s.jwk())
		now := time.Now().Unix()
		for _, c := range []struct {
			claims map[string]any
			reason error
		}{
			{map[string]any{"exp": now - 29}, nil},
			{map[string]any{"exp": float64(now) - 29.5}, nil},
			{map[string]any{"exp": float64(now) - 30.5}, refusedExpired},
			{map[string]any{"exp": now - 30}, refusedExpired},
			{map[string]any{"nbf": now + 30}, nil},
			{map[string]any{"nbf": float64(now) + 30.5}, refusedNotYet},
			{map[string]any{"nbf": now + 31}, refusedNotYet},
			{map[string]any{"nbf": now, "exp": lastTime}, nil},
			{map[string]any{"exp": lastTime + 1}, refusedClaims},
		} {
			_, err := jwtOf(p).verify(t.Context(), s.token(c.claims))
			require.Equal(t, c.reason, err, c.claims)
		}
		token := s.token(map[string]any{"exp": now + 100})
		require.NotNil(t, knowsToken(t, p, token))
		time.Sleep(129 * time.Second)
		require.NotNil(t, knowsToken(t, p, token))
		time.Sleep(time.Second)
		require.Nil(t, knowsToken(t, p, token))
	})
}

func TestGoodTokensOfEveryShapeAreKnown(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k1")
	evil := newIDP(t)
	id := newIDP(t, s.jwk())
	p := parseJWT(t, jwtDocument(id.URL, `{"audience": ["chat", "threads"]}`))
	for name, token := range map[string]string{
		"one of several audiences": s.token(map[string]any{"aud": []string{"mail", "threads"}}),
		"the other audience":       s.token(map[string]any{"aud": "threads"}),
		"exp with a fraction":      s.token(map[string]any{"exp": json.Number("4102444800.25")}),
		"exp with an exponent":     s.token(map[string]any{"exp": json.Number("4.1024448e9")}),
		"no typ":                   s.raw(s.header(""), claimsWith()),
		"an access token":          s.raw(s.header(`,"typ":"at+jwt"`), claimsWith()),
		"a media type":             s.raw(s.header(`,"typ":"application/AT+JWT"`), claimsWith()),
		"no kid, and one key":      s.raw(`{"alg":"ES256"}`, claimsWith()),
		"an empty kid":             s.raw(`{"alg":"ES256","kid":""}`, claimsWith()),
		"addresses of other keys":  s.raw(s.header(`,"jku":"`+evil.URL+`","x5u":"`+evil.URL+`"`), claimsWith()),
		"another key within":       s.raw(s.header(`,"jwk":`+newSigner("ES256", "evil").jwk()), claimsWith()),
		"a subject beyond ASCII":   s.token(map[string]any{"sub": "Åsa\n\u0000"}),
		"scopes of another kind":   s.token(map[string]any{"scopes": map[string]any{"chat": true}, "scp": 7}),
	} {
		who := knowsToken(t, p, token)
		require.NotNil(t, who, name)
		require.Empty(t, who.Scopes, name)
	}
	require.Zero(t, evil.asked())
	require.Equal(t, 1, id.asked())
}

func TestScopesComeFromTheClaimsInUse(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	p := parseJWT(t, jwtDocument(newIDP(t, s.jwk()).URL))
	for _, c := range []struct {
		claims map[string]any
		want   []string
	}{
		{map[string]any{"scope": "a b"}, []string{"a", "b"}},
		{map[string]any{"scope": "  a   b "}, []string{"a", "b"}},
		{map[string]any{"scope": ""}, nil},
		{map[string]any{"scope": []string{"a", "b c", ""}}, []string{"a", "b c"}},
		{map[string]any{"scp": "a b"}, []string{"a", "b"}},
		{map[string]any{"scp": []string{"a"}, "scope": "b a", "scopes": []string{"c", "b"}}, []string{"b", "a", "c"}},
		{map[string]any{"scopes": []any{"a", 1}, "scp": map[string]any{"a": "b"}}, nil},
		{map[string]any{"Scope": "a", "roles": []string{"b"}}, nil},
	} {
		require.Equal(t, c.want, knowsToken(t, p, s.token(c.claims)).Scopes, c.claims)
	}
}

func TestATokenGrantsNoPowerOverTheRegistryUnlessTheDocumentSaysSo(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	token := s.token(map[string]any{
		"scope": "pinboard:worker chat pinboard: pinboard:later", "scp": []string{"pinboard:operator"},
		"pinboard": map[string]any{"namespaces": []string{"*"}, "allowedBackendHosts": []string{"10.0.0.0/8"}},
	})
	who := knowsToken(t, parseJWT(t, jwtDocument(id.URL)), token)
	require.Equal(t, []string{"chat"}, who.Scopes)
	require.NotContains(t, who.Claims, "pinboard", "a worker might believe it")
	require.False(t, who.AllowsNamespace("/a"))
	require.Empty(t, who.BackendHosts())

	who = knowsToken(t, parseJWT(t, jwtDocument(id.URL, `{"registry": true}`)), token)
	require.Equal(t, []string{"pinboard:worker", "chat", "pinboard:", "pinboard:later", "pinboard:operator"}, who.Scopes)
	require.True(t, who.AllowsNamespace("/a"))
	require.Equal(t, []string{"10.0.0.0/8"}, who.BackendHosts())
	require.NotNil(t, knowsToken(t, parseJWT(t, jwtDocument(id.URL, `{"registry": true}`)), s.token(map[string]any{"pinboard": 1})))
}
