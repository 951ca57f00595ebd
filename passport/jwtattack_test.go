package passport

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// hs256 signs with a shared secret.
func hs256(header string, secret []byte) string {
	text := b64(header) + "." + b64(claimsWith())
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// attack is a token that must be refused, for the reason it is made for: one
// that falls to another check would prove nothing.
type attack struct {
	name, token string
	reason      refused
}

func TestForgedAndUnfitTokensAreRefused(t *testing.T) {
	t.Parallel()
	ec, rs, ed := newSigner("ES256", "ec"), newSigner("RS256", "rs"), newSigner("EdDSA", "ed")
	enc, op := newSigner("ES256", "enc"), newSigner("ES256", "op")
	pinned := newSigner("RS256", "pinned")
	evil := newIDP(t, newSigner("ES256", "evil").jwk())
	id := newIDP(t, ec.jwk(), rs.jwk(), ed.jwk(), strings.Replace(enc.jwk(), `"sig"`, `"enc"`, 1), op.jwk(`"key_ops":["sign"]`), pinned.jwk(`"alg":"RS256"`),
		newSigner("ES384", "p384").jwk())
	p := parseJWT(t, jwtDocument(id.URL, `{"algorithms": ["RS256", "PS256", "ES256", "EdDSA"]}`))
	seen, logs := observer.New(zapcore.DebugLevel)
	p.LogTo(zap.New(seen))

	require.NotNil(t, knowsToken(t, p, pinned.token()), "the keys themselves are good")
	require.NotNil(t, knowsToken(t, p, rs.token()))
	attacks := headerAttacks(ec, rs, evil.URL)
	attacks = append(attacks, keyAttacks(ec, rs, ed, enc, op, pinned)...)
	attacks = append(attacks, claimAttacks(ec)...)
	attacks = append(attacks, formAttacks(ec)...)
	names := map[string]bool{}
	for _, a := range attacks {
		require.False(t, names[a.name], "%s is there twice", a.name)
		names[a.name] = true
		logs.TakeAll()
		require.Nil(t, knowsToken(t, p, a.token), a.name)
		_, err := jwtOf(p).verify(t.Context(), a.token)
		require.Equal(t, a.reason, err, a.name)
		said := logs.All()
		require.Len(t, said, 1, a.name)
		require.Equal(t, zapcore.DebugLevel, said[0].Level)
		require.Equal(t, map[string]any{"provider": "users", "from": "authorization", "reason": string(a.reason)}, said[0].ContextMap(), a.name)
	}
	require.Zero(t, evil.asked())
	require.LessOrEqual(t, id.asked(), 2)
}

func headerAttacks(ec, rs signer, evil string) []attack {
	der, err := x509.MarshalPKIXPublicKey(rs.key.Public())
	if err != nil {
		panic(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	other := newSigner("ES256", "evil")
	attacks := []attack{
		{"HS256 keyed with the PEM", hs256(`{"alg":"HS256","kid":"rs"}`, public), refusedHeader},
		{"HS256 keyed with the DER", hs256(`{"alg":"HS256","kid":"rs"}`, der), refusedHeader},
		{"HS256 keyed with the JWK", hs256(`{"alg":"HS256","kid":"rs"}`, []byte(rs.jwk())), refusedHeader},
		{"HS256 keyed with the modulus", hs256(`{"alg":"HS256","kid":"rs"}`, rs.key.Public().(*rsa.PublicKey).N.Bytes()), refusedHeader},
		{"HS256 keyed with nothing", hs256(`{"alg":"HS256","kid":""}`, nil), refusedHeader},
		{"HS256 below RS256", hs256(`{"alg":"RS256","kid":"rs"}`, public), refusedSignature},
		{"none without a signature", b64(`{"alg":"none"}`) + "." + b64(claimsWith()) + ".", refusedForm},
		{"no signature", b64(`{"alg":"ES256","kid":"ec"}`) + "." + b64(claimsWith()) + ".", refusedForm},
		{"an algorithm that is not listed", signer{"RS384", "rs", rs.key}.token(), refusedHeader},
		{"an attacker's jwk", other.raw(`{"alg":"ES256","kid":"ec","jwk":`+other.jwk()+`}`, claimsWith()), refusedSignature},
		{"an attacker's jwk with its kid", other.raw(other.header(`,"jwk":`+other.jwk()), claimsWith()), refusedKey},
		{"an attacker's jku", other.raw(other.header(`,"jku":"`+evil+`"`), claimsWith()), refusedKey},
		{"an attacker's x5u", other.raw(other.header(`,"x5u":"`+evil+`"`), claimsWith()), refusedKey},
		{"a malformed jwk", ec.raw(ec.header(`,"jwk":{"kty":"EC"}`), claimsWith()), refusedHeader},
		{"a private jwk", ec.raw(ec.header(`,"jwk":{"kty":"oct","k":"AAAA"}`), claimsWith()), refusedHeader},
		{"an unknown crit", ec.raw(ec.header(`,"crit":["exp"],"exp":1`), claimsWith()), refusedHeader},
		{"crit b64", ec.raw(ec.header(`,"crit":["b64"],"b64":true`), claimsWith()), refusedHeader},
		{"crit null", ec.raw(ec.header(`,"crit":null`), claimsWith()), refusedHeader},
		{"an empty crit", ec.raw(ec.header(`,"crit":[]`), claimsWith()), refusedHeader},
		{"b64 alone", ec.raw(ec.header(`,"b64":false`), claimsWith()), refusedHeader},
		{"a nested token", ec.raw(ec.header(`,"cty":"JWT"`), ec.token()), refusedHeader},
		{"a nested token without cty", ec.raw(ec.header(``), ec.token()), refusedClaims},
		{"two algorithms", ec.raw(`{"alg":"none","alg":"ES256","kid":"ec"}`, claimsWith()), refusedHeader},
		{"two kids", ec.raw(`{"alg":"ES256","kid":"rs","kid":"ec"}`, claimsWith()), refusedHeader},
		{"a header that is a list", ec.raw(`["ES256"]`, claimsWith()), refusedHeader},
		{"a header that is null", ec.raw(`null`, claimsWith()), refusedHeader},
		{"a header with a tail", ec.raw(ec.header("")+"{}", claimsWith()), refusedHeader},
		{"no algorithm", ec.raw(`{"kid":"ec"}`, claimsWith()), refusedHeader},
		{"an algorithm that is a list", ec.raw(`{"alg":["ES256"],"kid":"ec"}`, claimsWith()), refusedHeader},
		{"ALG in capitals", ec.raw(`{"ALG":"ES256","kid":"ec"}`, claimsWith()), refusedHeader},
	}
	for _, alg := range []string{"none", "None", "NONE", "nOnE", "", "HS384", "HS512", "es256", "ES256 ", "ES256K", "dir", "RSA-OAEP"} {
		attacks = append(attacks, attack{"alg " + alg, ec.raw(`{"alg":"`+alg+`","kid":"ec"}`, claimsWith()), refusedHeader})
	}
	for _, typ := range []string{`"logout+jwt"`, `"dpop+jwt"`, `"secevent+jwt"`, `"pinboard+jwt"`, `"JWE"`, `""`, `7`, `null`, `["JWT"]`} {
		attacks = append(attacks, attack{"typ " + typ, ec.raw(ec.header(`,"typ":`+typ), claimsWith()), refusedHeader})
	}
	return attacks
}

func keyAttacks(ec, rs, ed, enc, op, pinned signer) []attack {
	stranger := newSigner("ES256", "ec")
	text := b64(ec.header("")) + "." + b64(claimsWith())
	sum := sha256.Sum256([]byte(text))
	der, err := ecdsa.SignASN1(rand.Reader, ec.key.(*ecdsa.PrivateKey), sum[:])
	if err != nil {
		panic(err)
	}
	good := ec.sign(text)
	with := func(signature []byte) string { return text + "." + base64.RawURLEncoding.EncodeToString(signature) }
	attacks := []attack{
		{"a stranger's signature", stranger.token(), refusedSignature},
		{"a signature over another text", text + "." + strings.Split(ec.token(map[string]any{"sub": "bob"}), ".")[2], refusedSignature},
		{"a signature in DER", with(der), refusedSignature},
		{"a signature of zeros", with(make([]byte, 64)), refusedSignature},
		{"half a signature", with(good[:32]), refusedSignature},
		{"a signature with a tail", with(append(good[:64:64], 0)), refusedSignature},
		{"a signature of ones", with([]byte(strings.Repeat("\x00", 31) + "\x01" + strings.Repeat("\x00", 31) + "\x01")), refusedSignature},
		{"the RSA key under an EC algorithm", signer{"ES256", "rs", ec.key}.token(), refusedKey},
		{"the EC key under RS256", signer{"RS256", "ec", rs.key}.token(), refusedKey},
		{"the EC key under EdDSA", signer{"EdDSA", "ec", ed.key}.token(), refusedKey},
		{"the EdDSA key under an EC algorithm", signer{"ES256", "ed", ec.key}.token(), refusedKey},
		{"another curve's key", signer{"ES256", "p384", ec.key}.token(), refusedKey},
		{"a key for encryption", enc.token(), refusedKey},
		{"a key that may not verify", op.token(), refusedKey},
		{"PS256 with a key for RS256", signer{"PS256", "pinned", pinned.key}.token(), refusedKey},
		{"PS256 that is RS256", signer{"RS256", "rs", rs.key}.raw(`{"alg":"PS256","kid":"rs"}`, claimsWith()), refusedSignature},
		{"no kid, and two keys fit", rs.raw(`{"alg":"RS256"}`, claimsWith()), refusedKey},
		{"a kid that is a number", ec.raw(`{"alg":"ES256","kid":1}`, claimsWith()), refusedHeader},
		{"a kid that is a list", ec.raw(`{"alg":"ES256","kid":["ec"]}`, claimsWith()), refusedHeader},
	}
	for _, kid := range []string{"EC", "ec ", "../ec", "/dev/null", "ec' OR '1'='1", "ec|whoami", "http://127.0.0.1/", "e"} {
		attacks = append(attacks, attack{"kid " + kid, ec.raw(fmt.Sprintf(`{"alg":"ES256","kid":%q}`, kid), claimsWith()), refusedKey})
	}
	return attacks
}

func claimAttacks(ec signer) []attack {
	body := func(payload string) string { return ec.raw(ec.header(""), payload) }
	now := time.Now().Unix()
	twice := `{"iss":"` + issuer + `","aud":"chat","exp":4102444800,"sub":"ann",`
	attacks := []attack{
		{"sub is there twice", body(twice + `"sub":"ann"}`), refusedClaims},
		{"sub is there twice, once escaped", body(twice + `"s\u0075b":"ann"}`), refusedClaims},
		{"a member within is there twice", body(twice + `"a":[{"b":1,"b":1}]}`), refusedClaims},
		{"text that is not UTF-8", body(twice + `"a":"` + "\xff" + `"}`), refusedClaims},
		{"claims with a tail", body(twice + `"a":1}{}`), refusedClaims},
		{"claims that are a list", body(`[]`), refusedClaims},
		{"claims that are null", body(`null`), refusedIssuer},
		{"claims that are no JSON", body(`{`), refusedClaims},
		{"ISS in capitals", body(`{"ISS":"` + issuer + `","aud":"chat","exp":4102444800,"sub":"ann"}`), refusedIssuer},
		{"ages ago", ec.token(map[string]any{"exp": now - 86400}), refusedExpired},
		{"expired a minute ago", ec.token(map[string]any{"exp": now - 60}), refusedExpired},
		{"expired with a fraction", ec.token(map[string]any{"exp": float64(now) - 60.5}), refusedExpired},
		{"expired at the epoch", ec.token(map[string]any{"exp": 0}), refusedExpired},
		{"not yet", ec.token(map[string]any{"nbf": now + 3600}), refusedNotYet},
	}
	for _, exp := range []any{nil, "4102444800", true, []int{4102444800}, -1, 1e300, now * 1000} {
		attacks = append(attacks, attack{fmt.Sprint("exp ", exp), ec.token(map[string]any{"exp": exp}), refusedClaims})
	}
	attacks = append(attacks,
		attack{"exp null", body(`{"iss":"` + issuer + `","aud":"chat","exp":null,"sub":"ann"}`), refusedClaims},
		attack{"exp beyond floats", body(`{"iss":"` + issuer + `","aud":"chat","exp":1e999,"sub":"ann"}`), refusedClaims},
		attack{"nbf null", body(twice + `"nbf":null}`), refusedClaims},
		attack{"nbf as text", ec.token(map[string]any{"nbf": "0"}), refusedClaims},
		attack{"nbf beyond time", ec.token(map[string]any{"nbf": 1e18}), refusedClaims},
	)
	for _, iss := range []any{nil, "", issuer + "/", strings.ToUpper(issuer), []string{issuer}, 1, "https://id.example.com.evil"} {
		attacks = append(attacks, attack{fmt.Sprint("iss ", iss), ec.token(map[string]any{"iss": iss}), refusedIssuer})
	}
	for _, aud := range []any{"", "chats", "cha", "Chat", []string{}, []string{"a", "b"}, "a chat", "a,chat"} {
		attacks = append(attacks, attack{fmt.Sprintf("aud %q", aud), ec.token(map[string]any{"aud": aud}), refusedAudience})
	}
	for _, aud := range []any{nil, 1, []any{"chat", 1}, []any{[]string{"chat"}}, map[string]any{"chat": 1}} {
		attacks = append(attacks, attack{fmt.Sprint("aud ", aud), ec.token(map[string]any{"aud": aud}), refusedClaims})
	}
	for _, sub := range []any{nil, "", 7, []string{"ann"}, map[string]any{"ann": 1}, false} {
		attacks = append(attacks, attack{fmt.Sprint("sub ", sub), ec.token(map[string]any{"sub": sub}), refusedClaims})
	}
	return attacks
}

func formAttacks(ec signer) []attack {
	good := ec.token()
	parts := strings.Split(good, ".")
	return []attack{
		{"four parts", good + "." + parts[2], refusedForm},
		{"five parts", good + ".." + parts[2], refusedForm},
		{"two parts", parts[0] + "." + parts[1], refusedForm},
		{"an empty header", "." + parts[1] + "." + parts[2], refusedForm},
		{"detached claims", parts[0] + ".." + parts[2], refusedForm},
		{"as JSON", `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, refusedForm},
		{"with padding", parts[0] + "." + parts[1] + "." + parts[2] + "==", refusedForm},
		{"in the other alphabet", parts[0] + "." + parts[1] + "." + parts[2][:80] + "+/" + parts[2][82:], refusedForm},
		{"with a space in it", parts[0] + ". " + parts[1] + "." + parts[2], refusedForm},
		{"with a line feed", parts[0] + "." + parts[1] + "\n." + parts[2], refusedForm},
		{"one character short of a byte", parts[0] + "." + parts[1] + "." + parts[2][:85], refusedForm},
		{"no token at all", "opaque", refusedForm},
		{"too long", ec.token(map[string]any{"pad": strings.Repeat("x", maxToken)}), refusedLength},
		{"too long and good for nothing", strings.Repeat("x", 1<<20), refusedLength},
	}
}

// Whatever character of a token is changed, also in the last of a part, whose
// lowest bits base64 does not need: the token is another one.
func TestNoCharacterOfATokenCanBeChanged(t *testing.T) {
	t.Parallel()
	ec := newSigner("ES256", "k")
	p := parseJWT(t, jwtDocument(newIDP(t, ec.jwk()).URL))
	for _, pad := range []string{"", "x", "xx"} { // each length modulo 3
		token := ec.token(map[string]any{"pad": pad})
		require.NotNil(t, knowsToken(t, p, token))
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		for i := range token {
			at := strings.IndexByte(alphabet, token[i])
			if at < 0 {
				continue
			}
			for _, bit := range []int{1, 2, 4, 8, 16, 32} {
				changed := token[:i] + string(alphabet[at^bit]) + token[i+1:]
				_, err := jwtOf(p).verify(t.Context(), changed)
				require.IsType(t, refused(""), err, "%d: %s", i, changed)
			}
		}
	}
}

func TestAWeakOrForeignKeyOfTheSetIsNotUsed(t *testing.T) {
	t.Parallel()
	weak := signer{"RS256", "weak", newRSA(1024)}
	secret := `{"kty":"oct","kid":"secret","k":"` + b64(strings.Repeat("k", 32)) + `"}`
	private := `{"kty":"OKP","crv":"Ed25519","kid":"private","x":"` + b64(strings.Repeat("x", 32)) + `","d":"` + b64(strings.Repeat("d", 32)) + `"}`
	off := strings.NewReplacer(`"x":"`, `"x":"A`).Replace(newSigner("ES256", "off").jwk())
	good := newSigner("ES256", "good")
	id := newIDP(t, weak.jwk(), secret, private, off, `{"kty":"unheard-of","kid":"u"}`, `7`, `null`, `{"kid":"good"}`, good.jwk(),
		newSigner("EdDSA", "ops").jwk(`"key_ops":"verify"`))
	p := parseJWT(t, jwtDocument(id.URL))
	require.NotNil(t, knowsToken(t, p, good.token()), "the others don't make the set worthless")
	require.Nil(t, knowsToken(t, p, weak.token()))
	require.Nil(t, knowsToken(t, p, hs256(`{"alg":"HS256","kid":"secret"}`, []byte(strings.Repeat("k", 32)))))
	// Of the other kinds none is left that fits, so this one needs no kid.
	require.NotNil(t, knowsToken(t, p, good.raw(`{"alg":"ES256"}`, claimsWith())))
}

func TestKeysThatShareAKidAreAllTried(t *testing.T) {
	t.Parallel()
	a, b, c := newSigner("ES256", "k"), newSigner("ES256", "k"), newSigner("EdDSA", "k")
	p := parseJWT(t, jwtDocument(newIDP(t, a.jwk(), b.jwk(), c.jwk()).URL))
	for _, s := range []signer{a, b, c} {
		require.NotNil(t, knowsToken(t, p, s.token()))
	}
	require.Nil(t, knowsToken(t, p, newSigner("ES256", "k").token()))
}
