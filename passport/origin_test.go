package passport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOriginsAreTrustedByTheNamespacesOwnPolicyToTheLetter(t *testing.T) {
	t.Parallel()
	p, err := Parse([]byte(`{"namespaces": {
	  "/a": {"allow": "anonymous", "allowedOrigins": ["https://app.example.com", "http://localhost:3000", "capacitor://localhost", "http://[::1]:8080"]},
	  "/b": {"allow": "authenticated"},
	  "b*": {"allow": "authenticated", "allowedOrigins": ["https://b.example"]}}}`), nil)
	require.NoError(t, err)
	for _, origin := range []string{"https://app.example.com", "http://localhost:3000", "capacitor://localhost", "http://[::1]:8080"} {
		require.True(t, p.AllowsOrigin("/a", origin), origin)
		require.False(t, p.AllowsOrigin("/b", origin), origin)
	}
	for _, origin := range []string{
		"", "null", "*", "http://app.example.com", "https://app.example.com:8443", "https://app.example.com/", "https://APP.example.com",
		"https://app.example.com.evil.example", "https://x.app.example.com", "http://localhost", "https://b.example",
	} {
		require.False(t, p.AllowsOrigin("/a", origin), origin)
	}
	require.True(t, p.AllowsOrigin("/bb", "https://b.example"))
	require.False(t, p.AllowsOrigin("/b", "https://b.example"), "the most specific policy rules alone")
	require.False(t, p.AllowsOrigin("/none", "https://b.example"))
}

// What a browser sends unasked is the cookie, and only if it is what counts.
func TestOnlyACookieIsAmbient(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	token := s.token()
	p := parseJWT(t, jwtDocument(id.URL, everywhere))
	require.True(t, knows(t, p, ask("/", "Cookie: session="+token)).Ambient)
	require.True(t, knows(t, p, ask("/?access_token="+token, "Authorization: Bearer x", "Cookie: session="+token)).Ambient)
	require.False(t, knows(t, p, ask("/", "Cookie: session="+token, "Authorization: Bearer "+token)).Ambient)
	require.False(t, knows(t, p, ask("/?access_token="+token)).Ambient)
	require.False(t, knows(t, p, ask("/?access_token="+token, "Cookie: session=x")).Ambient)
}
