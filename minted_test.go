package pinboard

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func mintingLease(id string) *lease {
	return &lease{Session: store.Session{ID: id, Secret: wire.NewSecret("secret of " + id)}}
}

func TestAnAttestationIsMintedOnceASecondForTheSameClient(t *testing.T) {
	t.Parallel()
	s := mintingLease("s")
	now := time.Unix(1_800_000_000, 999_999_999)
	token := func(claims attest.Claims, at time.Time) string {
		text, err := s.attestation(claims, at)
		require.NoError(t, err)
		got, err := attest.Verify(text, s.Secret, func(aud string) bool { return aud == "s" }, at)
		require.NoError(t, err)
		claims.Audience = "s"
		if claims.Account != nil && claims.Account.Claims == nil {
			claims.Account = &attest.Account{Subject: claims.Account.Subject, Scopes: claims.Account.Scopes, Claims: map[string]any{}}
		}
		require.Equal(t, claims, got)
		return text
	}
	scopes, claims := []string{"a", "b"}, map[string]any{"role": "x"}
	account := func() *attest.Account { return &attest.Account{Subject: "u", Scopes: scopes, Claims: claims} }
	all := []attest.Claims{
		{},
		{Caller: "/a/b", Depth: 1},
		{Caller: "/a/b", Depth: 2},
		{Caller: "/a/c", Depth: 1},
		{Account: account()},
		{Account: &attest.Account{Subject: "v", Scopes: scopes, Claims: claims}},
		{Account: &attest.Account{Subject: "u", Scopes: scopes[:1], Claims: claims}},
		{Account: &attest.Account{Subject: "u", Scopes: []string{"a", "c"}, Claims: claims}},
		{Account: &attest.Account{Subject: "u", Scopes: scopes, Claims: map[string]any{"role": "y"}}},
		{Account: &attest.Account{Subject: "u", Scopes: scopes}},
	}
	seen := map[string]bool{}
	for _, c := range all {
		text := token(c, now)
		require.False(t, seen[text], "%+v has another's", c)
		seen[text] = true
		require.Equal(t, text, token(c, now))
	}
	require.Equal(t, token(attest.Claims{Account: account()}, now), token(attest.Claims{Account: account()}, now), "a copy is the same client")
	require.NotEqual(t, token(attest.Claims{}, now), token(attest.Claims{}, now.Add(time.Nanosecond)), "the second is over")
	require.NotEqual(t, token(attest.Claims{}, now), func() string {
		text, err := mintingLease("other").attestation(attest.Claims{}, now)
		require.NoError(t, err)
		return text
	}())
}

func TestAttestationsAreKeptInBounds(t *testing.T) {
	t.Parallel()
	s := mintingLease("s")
	now := time.Unix(1_800_000_000, 0)
	for i := range 3 * maxMinted {
		_, err := s.attestation(attest.Claims{Caller: fmt.Sprint("/a/", i), Depth: 1}, now)
		require.NoError(t, err)
		require.LessOrEqual(t, len(s.minted.tokens), maxMinted)
	}
	_, err := s.attestation(attest.Claims{}, now.Add(time.Second))
	require.NoError(t, err)
	require.Len(t, s.minted.tokens, 1)
	_, err = (&lease{}).attestation(attest.Claims{}, now)
	require.Error(t, err, "an empty secret")
}

// A request's account is part of it, and with it go its body and its connection.
func TestAnAttestationKeepsNoRequest(t *testing.T) {
	t.Parallel()
	s, e := mintingLease("s"), &exchange{}
	e.call.account = attest.Account{Subject: "ann", Scopes: []string{"chat"}, Claims: map[string]any{"a": "b"}}
	_, err := s.attestation(attest.Claims{Account: &e.call.account}, time.Now())
	require.NoError(t, err)
	left := weak.Make(e)
	require.NotNil(t, left.Value())
	runtime.KeepAlive(e)
	runtime.GC()
	require.Nil(t, left.Value())
	require.Len(t, s.minted.tokens, 1)
}
