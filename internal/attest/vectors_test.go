package attest_test

import (
	_ "embed"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// vectors were exchanged with the Python client, pinned 0.16.0: see
// testdata/vectors.py.
//
//go:embed testdata/vectors.json
var vectors []byte

type vectorFile struct {
	Secret string
	Now    int64
	// Minted are tokens of the client's mint_attestation.
	Minted map[string]struct {
		Token, Aud, Caller string
		Depth              int
	}
	// Verified are tokens of ours with what the client's verify_attestation
	// returned for them.
	Verified map[string]struct {
		Token  string
		Claims json.RawMessage
	}
}

func readVectors(t *testing.T) vectorFile {
	t.Helper()
	var v vectorFile
	require.NoError(t, json.Unmarshal(vectors, &v))
	require.NotEmpty(t, v.Minted)
	return v
}

func TestTokensOfThePythonClientAreTaken(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for name, minted := range v.Minted {
		accept := func(audience string) bool { return audience == minted.Aud }
		at := time.Unix(v.Now, 0)
		got, err := attest.Verify(minted.Token, wire.NewSecret(v.Secret), accept, at)
		require.NoError(t, err, name)
		require.Equal(t, attest.Claims{Audience: minted.Aud, Caller: minted.Caller, Depth: minted.Depth}, got, name)
		for _, other := range []func() (attest.Claims, error){
			func() (attest.Claims, error) {
				return attest.Verify(minted.Token, wire.NewSecret(v.Secret+"0"), accept, at)
			},
			func() (attest.Claims, error) {
				return attest.Verify(minted.Token, wire.NewSecret(v.Secret), ours, at.Add(time.Minute+time.Second))
			},
		} {
			_, err := other()
			require.ErrorIs(t, err, attest.ErrInvalid, name)
		}
	}
}

// Where both can say the same, they say it in the same bytes.
func TestOurTokensAreThePythonClients(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, name := range []string{"anonymous", "cluster", "cluster at depth 0"} {
		want := v.Minted[name]
		got, err := attest.Mint(wire.NewSecret(v.Secret),
			attest.Claims{Audience: want.Aud, Caller: want.Caller, Depth: want.Depth}, time.Unix(v.Now, 0))
		require.NoError(t, err)
		require.Equal(t, want.Token, got, name)
	}
}

func verifiedClaims() map[string]attest.Claims {
	return map[string]attest.Claims{
		"anonymous": {Audience: session},
		"cluster":   {Audience: session, Caller: "/zähler/<bob>&", Depth: 50},
		"bare account": {
			Audience: session, Account: &attest.Account{Subject: "deployment"},
		},
		"full account": {Audience: session, Account: &attest.Account{
			Subject: "users|<alice>&\u2028\U0001F600", Scopes: []string{"chat", "pinboard:worker"},
			Claims: map[string]any{
				"pinboard": map[string]any{"namespaces": []string{"*"}}, "id": json.Number("9007199254740993"),
				"half": 0.5, "none": nil, "yes": true, "é": "\u00a0",
			},
		}},
	}
}

func TestOurTokensAreTakenByThePythonClient(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	all := verifiedClaims()
	require.Len(t, v.Verified, len(all))
	for name, claims := range all {
		token, err := attest.Mint(wire.NewSecret(v.Secret), claims, time.Unix(v.Now, 0))
		require.NoError(t, err)
		require.Equal(t, v.Verified[name].Token, token, "%s: the client has not seen this token", name)
		payload := decode(t, strings.Split(token, ".")[1])
		require.JSONEq(t, payload, string(v.Verified[name].Claims), "%s: the client refused it or read something else", name)
	}
}
