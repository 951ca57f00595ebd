package passport_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// No document makes Parse panic, and none that names no token lets anybody in.
func FuzzParse(f *testing.F) {
	f.Add([]byte(document))
	f.Add([]byte(claims(`{"pinboard": {"namespaces": ["a*"], "allowedBackendHosts": ["10.0.0.0/8", "*.svc", "::1"]}}`)))
	f.Add([]byte(`{"providers": [{"type": "jwt"}], "namespaces": {"/x": {"allow": "anonymous"}, "x": {}}}`))
	f.Add([]byte(jwtWith(`{"audience": ["a", "b"], "from": ["cookie:a", "query:b"], "forward": true, "allowHttp": true}`)))
	f.Add([]byte(`{"a": 1, "a": [{}], "": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := passport.Parse(text, environment)
		if err != nil {
			require.Nil(t, p)
			for line := range strings.Lines(err.Error()) {
				require.Contains(t, line, ": ")
			}
			require.NotContains(t, err.Error(), deployToken)
			return
		}
		for _, lines := range [][]string{nil, {"Bearer "}, {"Bearer not-in-any-document"}, {"Bearer " + deployToken, "Bearer " + deployToken}} {
			require.Nil(t, identify(t, p, lines...))
		}
		who := identify(t, p, "Bearer "+deployToken)
		if who != nil {
			require.NotEmpty(t, who.Provider)
			require.NotEmpty(t, who.Subject)
			// What the document says of backends is well formed.
			_, err := passport.ParseBackendRules(who.BackendHosts())
			require.NoError(t, err)
		}
		for _, namespace := range []string{"/counters", "/threads", "/x"} {
			// Whoever is admitted without a credential is admitted with one.
			if p.Admit(t.Context(), namespace, nil) == nil {
				require.NoError(t, p.Admit(t.Context(), namespace, &passport.Identity{}))
			}
		}
	})
}

func FuzzParseBackendRules(f *testing.F) {
	for _, rule := range []string{"*", "*.svc", "worker.example", "10.0.0.0/8", "::ffff:1.2.3.4/100", "fe80::1%a", "127.1"} {
		f.Add(rule, "worker.example")
		f.Add(rule, "10.0.0.1")
	}
	f.Fuzz(func(t *testing.T, rule, host string) {
		b, err := passport.ParseBackendRules([]string{rule})
		allowed := b.AllowsURLHost(host)
		if err != nil {
			require.False(t, allowed)
			return
		}
		if addr, err := netip.ParseAddr(host); err == nil {
			require.Equal(t, b.AllowsAddr(addr), allowed)
			require.Equal(t, b.AllowsAddr(addr.Unmap()), allowed)
			return
		}
		if !allowed {
			return
		}
		name, err := wire.HostName(host)
		require.NoError(t, err)
		suffix := strings.ToLower(strings.Trim(strings.TrimPrefix(rule, "*"), "."))
		require.True(t, rule == "*" || strings.HasSuffix(name, suffix))
	})
}
