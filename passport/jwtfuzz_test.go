package passport

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// fixedSigner is the same in every process, so that what a fuzzer has found can
// be run again.
func fixedSigner() signer {
	return signer{"EdDSA", "k", ed25519.NewKeyFromSeed([]byte(strings.Repeat("s", ed25519.SeedSize)))}
}

// No text makes the reader panic, and none but what was signed is known.
func FuzzToken(f *testing.F) {
	s := fixedSigner()
	good := s.token(forever, map[string]any{"scope": "a"})
	f.Add(good)
	f.Add(s.raw(s.header(`,"jwk":`+s.jwk()+`,"x5c":["AA=="]`), claimsWith(forever)))
	f.Add(b64(`{"alg":"none"}`) + "." + b64(claimsWith(forever)) + ".")
	f.Add(b64(`{"alg":"EdDSA","crit":["b64"],"b64":false}`) + ".e30.AA")
	f.Add("..")
	_, p := bubble(f, s.jwk())
	provider := jwtOf(p)
	require.NotNil(f, knowsToken(f, p, good))
	f.Fuzz(func(t *testing.T, token string) {
		who, err := provider.verify(t.Context(), token)
		if err != nil {
			require.Nil(t, who)
			require.IsType(t, refused(""), err)
			return
		}
		require.NotEmpty(t, who.Subject)
		require.Regexp(t, tokenForm, token)
		at := strings.LastIndexByte(token, '.')
		signature, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.EdDSA})
		require.NoError(t, err)
		require.True(t, ed25519.Verify(s.key.Public().(ed25519.PublicKey), []byte(token[:at]), signature.Signatures[0].Signature))
	})
}

// Whatever is signed, only claims that say who, for whom and until when are good.
func FuzzClaims(f *testing.F) {
	s := fixedSigner()
	f.Add(`,"typ":"JWT"`, claimsWith(forever))
	f.Add(``, `{"iss":"`+issuer+`","aud":["chat"],"exp":4102444800.5,"sub":"x","scope":"pinboard:worker","pinboard":{"namespaces":["*"]}}`)
	f.Add(`,"typ":"JWT"`, `{"iss":"`+issuer+`","aud":["chat"],"exp":1e999,"sub":"x","sub":"y"}`)
	_, p := bubble(f, s.jwk())
	f.Fuzz(func(t *testing.T, header, payload string) {
		who, err := jwtOf(p).verify(t.Context(), s.raw(s.header(header), payload))
		if err != nil {
			require.IsType(t, refused(""), err)
			return
		}
		require.Equal(t, issuer, who.Claims["iss"])
		audiences, _ := texts(who.Claims["aud"])
		require.Contains(t, audiences, audience)
		require.NotContains(t, who.Claims, "pinboard")
		for _, scope := range who.Scopes {
			require.False(t, strings.HasPrefix(scope, "pinboard:"))
		}
		require.False(t, who.AllowsNamespace("/a"))
	})
}

func FuzzKeySet(f *testing.F) {
	s := fixedSigner()
	f.Add(set(s.jwk(), newSigner("ES256", "e").jwk(), newSigner("RS256", "r").jwk(`"key_ops":["verify"]`)))
	f.Add(`{"keys":[{"kty":"oct","k":"AA"},{"kty":"RSA","n":"","e":"AQAB"},7]}`)
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := parseKeySet([]byte(text))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(keys), maxKeys)
		for _, key := range keys {
			require.True(t, key.IsPublic())
			for _, alg := range asymmetric {
				fits(key, alg)
			}
		}
	})
}
