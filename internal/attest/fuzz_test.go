package attest_test

import (
	"crypto/sha256"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Unsigned text is never taken; signed text only if it says what it must.
func FuzzVerify(f *testing.F) {
	f.Add(rightHead, rightBody)
	f.Add(rightHead, `{"aud":"session-1","iat":1700000000,"exp":1700000030,"caller":"/a/b","depth":1}`)
	f.Add(rightHead, `{"aud":"session-1","iat":1700000000,"exp":1700000030,"acct":{"sub":"a","scopes":["x"],"claims":{"n":1e400}}}`)
	f.Add(`{"alg":"none"}`, rightBody)
	f.Add(rightHead, `{"AUD":"session-1","iat":1.7e9,"exp":true}`)
	f.Fuzz(func(t *testing.T, head, body string) {
		for _, token := range []string{head, body, head + "." + body, encode(head) + "." + encode(body) + "." + head} {
			_, err := verify(token, now)
			require.ErrorIs(t, err, attest.ErrInvalid)
		}
		got, err := verify(forge(head, body, secret, sha256.New), now)
		if err != nil {
			require.ErrorIs(t, err, attest.ErrInvalid)
			require.Zero(t, got)
			return
		}
		require.Equal(t, rightHead, head)
		var claims map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(body), &claims))
		var iat, exp int64
		require.NoError(t, json.Unmarshal(claims["iat"], &iat))
		require.NoError(t, json.Unmarshal(claims["exp"], &exp))
		require.True(t, iat <= 1700000030 && exp >= 1699999970)
		if got.Account != nil {
			require.Contains(t, claims, "acct")
		}
		// What was read can be minted and read again.
		require.Equal(t, session, got.Audience)
		again, err := attest.Mint(wire.NewSecret(secret), got, now)
		require.NoError(t, err)
		same, err := verify(again, now)
		require.NoError(t, err)
		if got.Caller == "" {
			require.Equal(t, got.Account == nil, same.Account == nil)
		} else {
			require.Equal(t, [2]any{got.Caller, got.Depth}, [2]any{same.Caller, same.Depth})
		}
	})
}

// What is read quickly is what is read in any case.
func FuzzReadQuickly(f *testing.F) {
	for _, payload := range payloads {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) { requireReadAlike(t, payload) })
}
