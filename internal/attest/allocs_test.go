//go:build !race && !leakcheck

package attest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Not parallel: it counts what the whole process allocates.
func TestAllocationsOfAttestations(t *testing.T) {
	key := wire.NewSecret(secret)
	for name, want := range map[string]struct{ mint, seen, fresh float64 }{
		"anonymous": {17, 0, 6},
		"caller":    {17, 0, 6},
		"account":   {23, 0, 24},
	} {
		claims := onBehalfOf[name]
		token := mint(t, claims)
		require.InDelta(t, want.mint, allocs.PerCall(t, func() { _, _ = attest.Mint(key, claims, now) }), 0, "mint, %s", name)
		v := attest.NewVerifier(key)
		verify := func() { _, _ = v.VerifyAt(token, session, now) }
		verify()
		require.InDelta(t, want.seen, allocs.PerCall(t, verify), 0, "seen, %s", name)
		require.InDelta(t, want.fresh, allocs.PerCall(t, func() {
			v.Forget()
			verify()
		}), 0, "not seen, %s", name)
	}
}
