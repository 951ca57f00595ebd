package attest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// onBehalfOf are the three kinds of claims.
var onBehalfOf = map[string]attest.Claims{
	"anonymous": {Audience: session},
	"caller":    {Audience: session, Caller: "/counters/bob", Depth: 1},
	"account": {Audience: session, Account: &attest.Account{
		Subject: "users|4711", Scopes: []string{"chat", "admin"}, Claims: map[string]any{"tenant": "a", "level": 3},
	}},
}

func BenchmarkMint(b *testing.B) {
	for name, claims := range onBehalfOf {
		b.Run(name, func(b *testing.B) {
			key := wire.NewSecret(secret)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := attest.Mint(key, claims, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkVerify verifies tokens that a verifier has seen, and ones that it has
// not.
func BenchmarkVerify(b *testing.B) {
	for name, claims := range onBehalfOf {
		token, err := attest.Mint(wire.NewSecret(secret), claims, now)
		require.NoError(b, err)
		b.Run(name+"/seen", func(b *testing.B) {
			v := attest.NewVerifier(wire.NewSecret(secret))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.VerifyAt(token, session, now); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/new", func(b *testing.B) {
			v := attest.NewVerifier(wire.NewSecret(secret))
			b.ReportAllocs()
			for b.Loop() {
				v.Forget()
				if _, err := v.VerifyAt(token, session, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
