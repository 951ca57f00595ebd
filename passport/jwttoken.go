package passport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// maxToken is the longest token that is looked into, in bytes.
	maxToken = 8 << 10
	// leeway is how far the clocks of identity server and pinboard may differ.
	leeway = 30 * time.Second
	// lastTime is the end of the year 9999: a later time is a mistake, such as
	// milliseconds in place of seconds.
	lastTime = 253402300799
	// minRSA is the shortest RSA key in bits (RFC 7518, section 3.3).
	minRSA = 2048
)

// refused is why a token is not good: a class that tells nothing of the token.
type refused string

func (r refused) Error() string { return "token refused: " + string(r) }

const (
	refusedLength    refused = "too long"
	refusedForm      refused = "not a signed token"
	refusedHeader    refused = "header or algorithm"
	refusedClaims    refused = "malformed claims"
	refusedIssuer    refused = "another issuer"
	refusedAudience  refused = "another audience"
	refusedExpired   refused = "expired"
	refusedNotYet    refused = "not valid yet"
	refusedKey       refused = "no key for it"
	refusedSignature refused = "wrong signature"
)

// tokenRules say which tokens are good.
type tokenRules struct {
	issuer     string
	audiences  []string // one of them is needed
	algorithms []jose.SignatureAlgorithm
}

// signed is a token whose signature has not been verified yet. Its claims
// are good, if it is what it says.
type signed struct {
	jws     *jose.JSONWebSignature
	alg     jose.SignatureAlgorithm
	kid     string
	payload []byte
	subject string
	claims  map[string]any
}

var tokenForm = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

// parse reads a compact JWS and checks everything but the signature, so that
// no key is looked for on behalf of a token that would be refused anyway.
func (rules tokenRules) parse(token string) (*signed, error) {
	if len(token) > maxToken {
		return nil, refusedLength
	}
	if !tokenForm.MatchString(token) {
		return nil, refusedForm
	}
	var parts [3][]byte
	for i, part := range strings.Split(token, ".") {
		var err error
		if parts[i], err = base64.RawURLEncoding.Strict().DecodeString(part); err != nil {
			return nil, refusedForm
		}
	}
	jws, err := jose.ParseSignedCompact(token, rules.algorithms)
	if err != nil || !goodHeader(parts[0]) {
		return nil, refusedHeader
	}
	t := &signed{jws: jws, payload: parts[1]}
	header := jws.Signatures[0].Protected
	t.alg, t.kid = jose.SignatureAlgorithm(header.Algorithm), header.KeyID
	dec := json.NewDecoder(bytes.NewReader(t.payload))
	dec.UseNumber() // claims reach workers with all their digits
	if dec.Decode(&t.claims) != nil {
		return nil, refusedClaims
	}
	if err := rules.check(t.claims, time.Now()); err != nil {
		return nil, err
	}
	if t.subject, _ = t.claims["sub"].(string); t.subject == "" {
		return nil, refusedClaims
	}
	return t, nil
}

// goodHeader refuses what the signature is not over, extensions that must be
// understood, nested tokens, and tokens that say they are for something else
// than access (RFC 8725, section 3.11).
func goodHeader(text []byte) bool {
	var header map[string]any
	if json.Unmarshal(text, &header) != nil {
		return false
	}
	for _, name := range []string{"crit", "b64", "cty"} {
		if _, ok := header[name]; ok {
			return false
		}
	}
	typ, ok := header["typ"]
	if !ok {
		return true
	}
	kind, _ := typ.(string)
	switch strings.TrimPrefix(strings.ToLower(kind), "application/") {
	case "jwt", "at+jwt":
		return true
	}
	return false
}

// check checks the registered claims (RFC 7519, section 4.1).
func (rules tokenRules) check(claims map[string]any, now time.Time) error {
	if claims["iss"] != any(rules.issuer) {
		return refusedIssuer
	}
	if audiences, ok := texts(claims["aud"]); !ok {
		return refusedClaims
	} else if !slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(rules.audiences, a) }) {
		return refusedAudience
	}
	at := float64(now.UnixMilli()) / 1e3
	exp, ok := seconds(claims["exp"])
	if !ok {
		return refusedClaims
	}
	if at >= exp+leeway.Seconds() {
		return refusedExpired
	}
	nbf, has := claims["nbf"]
	if !has {
		return nil
	}
	from, ok := seconds(nbf)
	if !ok {
		return refusedClaims
	}
	if at+leeway.Seconds() < from {
		return refusedNotYet
	}
	return nil
}

// seconds returns a NumericDate, which may have a fraction.
func seconds(v any) (float64, bool) {
	number, _ := v.(json.Number)
	at, err := number.Float64()
	return at, err == nil && at >= 0 && at <= lastTime
}

// texts returns a string, or a list of nothing but strings.
func texts(v any) ([]string, bool) {
	switch v := v.(type) {
	case string:
		return []string{v}, true
	case []any:
		list := make([]string, len(v))
		for i, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, false
			}
			list[i] = text
		}
		return list, true
	}
	return nil, false
}

// choose returns the keys of a set that the token may be signed with. Without a
// key id that is the only key that fits, if it is the only one.
func (t *signed) choose(keys []jose.JSONWebKey) []jose.JSONWebKey {
	var chosen []jose.JSONWebKey
	for _, key := range keys {
		if fits(key, t.alg) && (t.kid == "" || t.kid == key.KeyID) {
			chosen = append(chosen, key)
		}
	}
	if t.kid == "" && len(chosen) > 1 {
		return nil
	}
	return chosen
}

// fits reports whether the key is one for the algorithm (RFC 7518, section 3.1).
func fits(key jose.JSONWebKey, alg jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(alg) {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		return public.N.BitLen() >= minRSA && (strings.HasPrefix(string(alg), "RS") || strings.HasPrefix(string(alg), "PS"))
	case *ecdsa.PublicKey:
		switch alg {
		case jose.ES256:
			return public.Curve == elliptic.P256()
		case jose.ES384:
			return public.Curve == elliptic.P384()
		case jose.ES512:
			return public.Curve == elliptic.P521()
		}
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// verify verifies the signature with one of the keys.
func (t *signed) verify(keys []jose.JSONWebKey) error {
	if len(keys) == 0 {
		return refusedKey
	}
	for _, key := range keys {
		if _, err := t.jws.Verify(key.Key); err != nil {
			continue
		}
		// Only now, because it takes longer: two readers of one text must
		// not see different claims in it.
		s := &scan{}
		if _, ok := s.read(t.payload); !ok || s.faults != nil {
			return refusedClaims
		}
		return nil
	}
	return refusedSignature
}

// scopes returns the scopes of all claims that are in use for them: "scope",
// "scp" and "scopes", each a string with spaces or a list. What is neither
// grants nothing.
func (t *signed) scopes() []string {
	var all []string
	seen := map[string]bool{}
	for _, claim := range []string{"scope", "scp", "scopes"} {
		value := t.claims[claim]
		list, _ := texts(value)
		if text, ok := value.(string); ok {
			list = strings.Fields(text)
		}
		for _, scope := range list {
			if scope != "" && !seen[scope] {
				seen[scope] = true
				all = append(all, scope)
			}
		}
	}
	return all
}
