package passport

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

const (
	issuer   = "https://id.example.com"
	audience = "chat"
)

// signer is a key of an identity server: it makes tokens without the library
// that reads them.
type signer struct {
	alg, kid string
	key      crypto.Signer
}

// newSigner makes a key for an algorithm. RSA keys are the same in all tests,
// because they take long to make.
func newSigner(alg, kid string) signer {
	s := signer{alg: alg, kid: kid}
	var err error
	switch alg {
	case "ES256":
		s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		s.key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		s.key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "EdDSA":
		_, s.key, err = ed25519.GenerateKey(rand.Reader)
	default:
		s.key = rsaKey()
	}
	if err != nil {
		panic(err)
	}
	return s
}

var rsaKey = sync.OnceValue(func() crypto.Signer { return newRSA(2048) })

func newRSA(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		panic(err)
	}
	return key
}

func hashOf(alg string) crypto.Hash {
	return map[string]crypto.Hash{"256": crypto.SHA256, "384": crypto.SHA384, "512": crypto.SHA512}[alg[len(alg)-3:]]
}

// sign returns the signature over the text as a token has it.
func (s signer) sign(text string) []byte {
	if s.alg == "EdDSA" {
		return must(s.key.Sign(nil, []byte(text), crypto.Hash(0)))
	}
	hash := hashOf(s.alg)
	h := hash.New()
	h.Write([]byte(text))
	sum := h.Sum(nil)
	switch key := s.key.(type) {
	case *ecdsa.PrivateKey:
		r, v, err := ecdsa.Sign(rand.Reader, key, sum)
		if err != nil {
			panic(err)
		}
		size := (key.Curve.Params().BitSize + 7) / 8
		return append(r.FillBytes(make([]byte, size)), v.FillBytes(make([]byte, size))...)
	case *rsa.PrivateKey:
		if strings.HasPrefix(s.alg, "PS") {
			return must(rsa.SignPSS(rand.Reader, key, hash, sum, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}))
		}
		return must(rsa.SignPKCS1v15(nil, key, hash, sum))
	}
	panic("no key")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func b64(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// raw signs a header and a payload, whatever they are.
func (s signer) raw(header, payload string) string {
	text := b64(header) + "." + b64(payload)
	return text + "." + b64(string(s.sign(text)))
}

// header is the one of the server's own tokens, with more members.
func (s signer) header(more string) string {
	return fmt.Sprintf(`{"alg":%q,"kid":%q%s}`, s.alg, s.kid, more)
}

// token returns a good token with changes to its claims; nil takes one out.
func (s signer) token(changes ...map[string]any) string {
	return s.raw(s.header(`,"typ":"JWT"`), claimsWith(changes...))
}

func claimsWith(changes ...map[string]any) string {
	claims := map[string]any{"iss": issuer, "aud": audience, "sub": "ann", "exp": time.Now().Unix() + 3600}
	for _, change := range changes {
		maps.Copy(claims, change)
	}
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return string(must(json.Marshal(claims)))
}

// jwk returns the public key as the server publishes it, with more members.
func (s signer) jwk(more ...string) string {
	text := must(jose.JSONWebKey{Key: s.key.Public(), KeyID: s.kid, Use: "sig"}.MarshalJSON())
	if len(more) == 0 {
		return string(text)
	}
	return strings.TrimSuffix(string(text), "}") + "," + strings.Join(more, ",") + "}"
}

func set(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

// idp is an identity server. Its answer can be changed while it runs.
type idp struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	hits   int
}

func newIDP(t testing.TB, keys ...string) *idp {
	t.Helper()
	s := &idp{}
	s.publish(keys...)
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *idp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.hits++
	answer := s.answer
	s.mu.Unlock()
	answer(w, r)
}

// RoundTrip lets the server be asked within a bubble of virtual time, where no
// socket is. The answer is whole once the handler has returned.
func (s *idp) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

func (s *idp) serve(answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *idp) publish(keys ...string) { s.say(http.StatusOK, set(keys...)) }

func (s *idp) say(status int, body string) {
	s.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

func (s *idp) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hits
}

// jwtDocument returns a document with one provider; more fields replace its
// own. The policies are open to whoever is known.
func jwtDocument(url string, more ...string) string {
	fields := map[string]json.RawMessage{}
	text := fmt.Sprintf(`{"type": "jwt", "id": "users", "issuer": %q, "audience": %q, "jwksUrl": %q, "algorithms": ["RS256", "ES256", "EdDSA"]}`,
		issuer, audience, url)
	for _, text := range append([]string{text}, more...) {
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			panic(err)
		}
	}
	return `{"providers": [` + string(must(json.Marshal(fields))) + `], "namespaces": {"*": {"allow": "authenticated"}}}`
}

func parseJWT(t testing.TB, document string) *Standard {
	t.Helper()
	p, err := Parse([]byte(document), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// of returns the passport's first jwt provider.
func jwtOf(p *Standard) *jwts {
	for _, p := range p.providers {
		if p, ok := p.(*jwts); ok {
			return p
		}
	}
	panic("no jwt provider")
}

// ask returns a request with the headers, given as "Name: value".
func ask(target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func knows(t testing.TB, p *Standard, r *http.Request) *Identity {
	t.Helper()
	who, err := p.Identify(context.WithoutCancel(t.Context()), r)
	require.NoError(t, err)
	return who
}

func knowsToken(t testing.TB, p *Standard, token string) *Identity {
	t.Helper()
	return knows(t, p, ask("/", "Authorization: Bearer "+token))
}

// bubble returns a passport whose identity server is asked without a socket.
func bubble(t testing.TB, keys ...string) (*idp, *Standard) {
	t.Helper()
	id := &idp{}
	id.publish(keys...)
	p := parseJWT(t, jwtDocument("https://id.example.com/jwks.json"))
	jwtOf(p).keys.client.Transport = id
	return id, p
}
