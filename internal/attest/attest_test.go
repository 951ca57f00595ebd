package attest_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"hash"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	session   = "session-1"
	secret    = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	rightHead = `{"alg":"HS256","typ":"pinboard+jwt"}`
	rightBody = `{"aud":"session-1","iat":1700000000,"exp":1700000030}`
)

var now = time.Unix(1700000000, 0)

func ours(audience string) bool { return audience == session }

func verify(token string, at time.Time) (attest.Claims, error) {
	return attest.Verify(token, wire.NewSecret(secret), ours, at)
}

func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

func decode(t *testing.T, part string) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(part)
	require.NoError(t, err)
	return string(text)
}

// forge signs any header and payload as a holder of the key could.
func forge(head, body, key string, algorithm func() hash.Hash) string {
	input := encode(head) + "." + encode(body)
	mac := hmac.New(algorithm, []byte(key))
	mac.Write([]byte(input))
	return input + "." + encode(string(mac.Sum(nil)))
}

func mint(t *testing.T, claims attest.Claims) string {
	t.Helper()
	token, err := attest.Mint(wire.NewSecret(secret), claims, now)
	require.NoError(t, err)
	return token
}

func TestAttestationIsExactlyAsTheContractSays(t *testing.T) {
	t.Parallel()
	alice := &attest.Account{Subject: "alice", Scopes: []string{"chat", "admin"}, Claims: map[string]any{"b": 1, "a": []any{nil, true}}}
	for want, claims := range map[string]attest.Claims{
		rightBody: {Audience: session},
		`{"aud":"session-1","iat":1700000000,"exp":1700000030,"caller":"/counters/bob","depth":3}`: {
			Audience: session, Caller: "/counters/bob", Depth: 3,
		},
		`{"aud":"session-1","iat":1700000000,"exp":1700000030,"caller":"/counters/bob","depth":0}`: {
			Audience: session, Caller: "/counters/bob", Account: alice, // a cluster call is the instance's, not an account's
		},
		`{"aud":"session-1","iat":1700000000,"exp":1700000030,"acct":{"sub":"alice","scopes":["chat","admin"],"claims":{"a":[null,true],"b":1}}}`: {
			Audience: session, Account: alice,
		},
		`{"aud":"session-1","iat":1700000000,"exp":1700000030,"acct":{"sub":"","scopes":[],"claims":{}}}`: {
			Audience: session, Account: &attest.Account{},
		},
	} {
		parts := strings.Split(mint(t, claims), ".")
		require.Len(t, parts, 3)
		require.Equal(t, rightHead, decode(t, parts[0]))
		require.Equal(t, want, decode(t, parts[1]))
		require.Equal(t, forge(rightHead, want, secret, sha256.New), strings.Join(parts, "."))
	}
}

func TestTimesAreWholeSeconds(t *testing.T) {
	t.Parallel()
	token, err := attest.Mint(wire.NewSecret(secret), attest.Claims{Audience: session}, now.Add(999*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, mint(t, attest.Claims{Audience: session}), token)
}

func TestMintRefusesWhatIsNoJSONAndAnEmptySecret(t *testing.T) {
	t.Parallel()
	for _, claim := range []any{math.NaN(), math.Inf(1), make(chan int), func() {}} {
		_, err := attest.Mint(wire.NewSecret(secret), attest.Claims{
			Account: &attest.Account{Subject: "a", Claims: map[string]any{"x": claim}},
		}, now)
		require.Error(t, err)
		require.NotContains(t, err.Error(), secret)
	}
	_, err := attest.Mint(wire.Secret{}, attest.Claims{Audience: session}, now)
	require.Error(t, err)
}

func TestVerifyReturnsWhatWasMinted(t *testing.T) {
	t.Parallel()
	for _, claims := range []attest.Claims{
		{Audience: session},
		{Audience: session, Caller: "/zähler/<bob>&", Depth: 50},
		{Audience: session, Account: &attest.Account{Subject: "users|1", Scopes: []string{"chat"}, Claims: map[string]any{
			"name": "A\u2028<>&\"", "nested": map[string]any{"list": []any{"x", nil, true}},
		}}},
	} {
		got, err := verify(mint(t, claims), now)
		require.NoError(t, err)
		require.Equal(t, claims, got)
	}
}

// As float64, these two would be one user.
func TestLargeNumbersInClaimsKeepTheirDigits(t *testing.T) {
	t.Parallel()
	for _, id := range []json.Number{"9007199254740993", "9007199254740992", "1e400", "12345678901234567890.5"} {
		got, err := verify(mint(t, attest.Claims{Audience: session, Account: &attest.Account{
			Subject: "a", Claims: map[string]any{"id": id, "list": []any{id}},
		}}), now)
		require.NoError(t, err)
		require.Equal(t, map[string]any{"id": id, "list": []any{id}}, got.Account.Claims)
	}
}

func TestAccountWithoutScopesAndClaimsIsTaken(t *testing.T) {
	t.Parallel()
	body := strings.TrimSuffix(rightBody, "}") + `,"acct":{"sub":"a","more":1},"zzz":null}`
	got, err := verify(forge(rightHead, body, secret, sha256.New), now)
	require.NoError(t, err)
	require.Equal(t, &attest.Account{Subject: "a"}, got.Account)
}

func TestClocksMayBeHalfAMinuteOff(t *testing.T) {
	t.Parallel()
	token := mint(t, attest.Claims{Audience: session})
	for _, d := range []time.Duration{-30 * time.Second, 0, 30 * time.Second, 60 * time.Second} {
		_, err := verify(token, now.Add(d))
		require.NoError(t, err, d)
	}
	for _, d := range []time.Duration{
		-30*time.Second - 1, -31 * time.Second, 60*time.Second + 1, 61 * time.Second, -10 * 365 * 24 * time.Hour, 1e6 * time.Hour,
	} {
		_, err := verify(token, now.Add(d))
		require.ErrorIs(t, err, attest.ErrInvalid, d)
	}
}

func TestOneBitFlippedAnywhereIsRefused(t *testing.T) {
	t.Parallel()
	token := []byte(mint(t, attest.Claims{Audience: session, Account: &attest.Account{Subject: "alice"}}))
	for i := range token {
		for bit := range 8 {
			token[i] ^= 1 << bit
			_, err := verify(string(token), now)
			require.ErrorIs(t, err, attest.ErrInvalid, "byte %d, bit %d", i, bit)
			token[i] ^= 1 << bit
		}
	}
	_, err := verify(string(token), now)
	require.NoError(t, err)
}

func TestTokenIsRefusedCutOrExtended(t *testing.T) {
	t.Parallel()
	token := mint(t, attest.Claims{Audience: session})
	for i := range token {
		for _, other := range []string{token[:i], token[i+1:], token[:i] + token[i+1:], token[:i] + "\n" + token[i:], token[:i] + "." + token[i:]} {
			_, err := verify(other, now)
			require.ErrorIs(t, err, attest.ErrInvalid, "%q", other)
		}
	}
	for _, other := range []string{token + "=", token + ".", token + "\n", " " + token, token + "." + token, "", ".", "..", "...", token + "A"} {
		_, err := verify(other, now)
		require.ErrorIs(t, err, attest.ErrInvalid, "%q", other)
	}
}

// C56: nothing the header says chooses how a token is verified.
func TestHeaderChoosesNothing(t *testing.T) {
	t.Parallel()
	for _, head := range []string{
		`{"alg":"none","typ":"pinboard+jwt"}`, `{"alg":"None","typ":"pinboard+jwt"}`, `{"alg":"hs256","typ":"pinboard+jwt"}`,
		`{"alg":"HS512","typ":"pinboard+jwt"}`, `{"alg":"HS256","typ":"JWT"}`, `{"alg":"HS256"}`, `{"typ":"pinboard+jwt"}`, `{}`, `null`, ``, `x`,
		`{"alg":"HS256","typ":"pinboard+jwt","kid":"1"}`, `{"alg":"HS256","typ":"pinboard+jwt","crit":["x"]}`, `[]`,
		`{"typ":"pinboard+jwt","alg":"HS256"}`, `{"alg": "HS256", "typ": "pinboard+jwt"}`, `{"alg":"HS256","typ":"pinboard+jwt","alg":"none"}`,
	} {
		for _, token := range []string{
			forge(head, rightBody, secret, sha256.New), forge(head, rightBody, secret, sha512.New), encode(head) + "." + encode(rightBody) + ".",
		} {
			_, err := verify(token, now)
			require.ErrorIs(t, err, attest.ErrInvalid, head)
		}
	}
	_, err := verify(forge(rightHead, rightBody, secret, sha256.New), now)
	require.NoError(t, err)
}

func TestSignatureOfAnotherKeyOrAlgorithmIsRefused(t *testing.T) {
	t.Parallel()
	raw := "\x01\x23\x45\x67\x89\xab\xcd\xef"
	for _, token := range []string{
		encode(rightHead) + "." + encode(rightBody) + ".",
		forge(rightHead, rightBody, secret, sha512.New),
		forge(rightHead, rightBody, "", sha256.New),
		forge(rightHead, rightBody, secret[1:], sha256.New),
		forge(rightHead, rightBody, strings.ToUpper(secret), sha256.New),
		forge(rightHead, rightBody, raw+raw+raw+raw, sha256.New), // the key is the text, not the bytes its hex stands for
	} {
		_, err := verify(token, now)
		require.ErrorIs(t, err, attest.ErrInvalid, token)
		require.NotContains(t, err.Error(), secret)
	}
	_, err := attest.Verify(forge(rightHead, rightBody, "", sha256.New), wire.Secret{}, ours, now)
	require.ErrorIs(t, err, attest.ErrInvalid, "anybody can sign with an empty secret")
}

// C56: a signed payload is still read strictly.
func TestMalformedClaimsAreRefused(t *testing.T) {
	t.Parallel()
	with := func(more string) string { return strings.TrimSuffix(rightBody, "}") + "," + more + "}" }
	times := func(iat, exp string) string { return `{"aud":"session-1","iat":` + iat + `,"exp":` + exp + `}` }
	for _, body := range []string{
		"", "null", "1", `"x"`, "[]", "{}", "{", rightBody + "x", rightBody + rightBody, `[` + rightBody + `]`,
		times(`1700000000`, `"1700000030"`), times(`1700000000`, `1700000030.0`), times(`1700000000`, `1700000030.5`), times(`1700000000`, `1.70000003e9`),
		times(`1700000000`, `true`), times(`1700000000`, `1e20`), times(`1700000000`, `100000000000000000000`), times(`1700000000`, `9223372036854775807`),
		times(`1700000000`, `null`), times(`1700000000`, `[1700000030]`), times(`"1700000000"`, `1700000030`), times(`1700000000.0`, `1700000030`),
		times(`true`, `1700000030`), times(`null`, `1700000030`), times(`-9223372036854775808`, `1700000030`), times(`-1e20`, `1700000030`),
		times(`1700000031`, `1700000061`), times(`1699999000`, `1699999969`), // 31 s ahead, 31 s ago
		`{"aud":"session-1","iat":1700000000}`, `{"aud":"session-1","exp":1700000030}`,
		`{"iat":1700000000,"exp":1700000030}`, `{"AUD":"session-1","iat":1700000000,"exp":1700000030}`,
		`{"aud":["session-1"],"iat":1700000000,"exp":1700000030}`, `{"aud":"session-2","iat":1700000000,"exp":1700000030}`,
		`{"aud":"","iat":1700000000,"exp":1700000030}`, `{"aud":null,"iat":1700000000,"exp":1700000030}`, `{"aud":1,"iat":1700000000,"exp":1700000030}`,
		`{"aud":"session-1","Iat":1700000000,"exp":1700000030}`, `{"aud":"session-1","iat":1700000000,"EXP":1700000030}`,
		with(`"caller":1`), with(`"caller":null`), with(`"caller":["/a/b"]`), with(`"caller":"/a/b","depth":"1"`), with(`"caller":"/a/b","depth":1.0`),
		with(`"caller":"/a/b","depth":true`), with(`"caller":"/a/b","depth":null`), with(`"caller":"/a/b","depth":-1`), with(`"depth":1e400`),
		with(`"acct":{}`), with(`"acct":{"scopes":[],"claims":{}}`), with(`"acct":null`), with(`"acct":[]`), with(`"acct":"alice"`), with(`"acct":{"sub":1}`),
		with(`"acct":{"sub":null}`), with(`"acct":{"SUB":"a"}`), with(`"acct":{"sub":"a","scopes":"chat"}`), with(`"acct":{"sub":"a","scopes":null}`),
		with(`"acct":{"sub":"a","scopes":[1]}`), with(`"acct":{"sub":"a","scopes":["x",null]}`), with(`"acct":{"sub":"a","scopes":{}}`),
		with(`"acct":{"sub":"a","claims":null}`), with(`"acct":{"sub":"a","claims":[]}`), with(`"acct":{"sub":"a","claims":"x"}`),
	} {
		_, err := verify(forge(rightHead, body, secret, sha256.New), now)
		require.ErrorIs(t, err, attest.ErrInvalid, body)
	}
}

func TestPayloadInAnotherBase64IsRefused(t *testing.T) {
	t.Parallel()
	sign := func(input string) string {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(input))
		return input + "." + encode(string(mac.Sum(nil)))
	}
	body := rightBody + strings.Repeat(" ", 1+len(rightBody)%3) // so that the encoding has padding to leave out
	for len(encode(body))%4 == 0 {
		body += " "
	}
	_, err := verify(sign(encode(rightHead)+"."+encode(body)), now)
	require.NoError(t, err)
	// The last character has bits that stand for nothing: they must be 0.
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	cut, last := encode(body)[:len(encode(body))-1], strings.Index(alphabet, encode(body)[len(encode(body))-1:])
	for _, payload := range []string{
		base64.URLEncoding.EncodeToString([]byte(body)), encode(body) + "=", encode(body) + "!", "", cut + alphabet[last+1:last+2],
	} {
		_, err := verify(sign(encode(rightHead)+"."+payload), now)
		require.ErrorIs(t, err, attest.ErrInvalid, payload)
	}
}
