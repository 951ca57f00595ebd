package passport

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"regexp"
	"strings"

	"github.com/pinboard-go/pinboard/internal/leak"
)

const headerAuthorization = "Authorization"

// staticTokens is the provider "staticToken": keys that are written down in the
// document. Only the hashes of the tokens are kept.
type staticTokens struct{ keys []staticKey }

type staticKey struct {
	sum [sha256.Size]byte
	who *Identity
}

// identify compares with every key, each in constant time, so that the time
// tells nothing about which key was nearly right.
func (p *staticTokens) identify(_ context.Context, r *http.Request) (*Identity, error) {
	token, ok := bearer(r.Header)
	if !ok {
		return nil, nil
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range p.keys {
		equal := subtle.ConstantTimeCompare(sum[:], p.keys[i].sum[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return nil, nil
	}
	return p.keys[found].who, nil
}

// bearer returns the token of "Authorization: Bearer <token>". A request with
// two such lines has none: somebody along the way could have read the other.
func bearer(h http.Header) (token string, ok bool) {
	lines := h[headerAuthorization]
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(lines[0], " ")
	token = strings.Trim(token, " ")
	leak.Secret(token)
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

func (s *scan) staticTokens(o object, id string, seen map[[sha256.Size]byte]string) *staticTokens {
	p := &staticTokens{}
	list, ok := s.need(o, "keys")
	if !ok {
		return p
	}
	items, ok := s.list(list)
	if ok && len(items) == 0 {
		s.fault(list, "must hold at least one key")
	}
	names := map[string]string{}
	for _, item := range items {
		key, ok := s.object(item, "name", "token", "scopes", "claims")
		if !ok {
			continue
		}
		who := &Identity{Provider: id, HideHeaders: []string{headerAuthorization}}
		who.Subject = s.needText(key, "name")
		who.Scopes = s.optionalTexts(key, "scopes")
		if claims, ok := key.fields["claims"]; ok {
			who.Claims = s.claims(claims)
		}
		if other := names[who.Subject]; other != "" {
			s.fault(key.fields["name"], "is the name of %s too", other)
		} else if who.Subject != "" {
			names[who.Subject] = item.place
		}
		if sum, ok := s.token(key, seen); ok {
			p.keys = append(p.keys, staticKey{sum: sum, who: who})
		}
	}
	return p
}

// token returns the hash of a key's token, and false if there is a fault.
func (s *scan) token(key object, seen map[[sha256.Size]byte]string) (sum [sha256.Size]byte, ok bool) {
	v, ok := s.need(key, "token")
	if !ok {
		return sum, false
	}
	text, ok := s.secret(v)
	if !ok {
		return sum, false
	}
	if !sendable.MatchString(text) {
		s.fault(v, "has white space or a character that no Authorization header can carry")
		return sum, false
	}
	leak.Secret(text)
	sum = sha256.Sum256([]byte(text))
	if other := seen[sum]; other != "" {
		s.fault(v, "is the same as %s", other)
		return sum, false
	}
	seen[sum] = v.place
	return sum, true
}

var (
	// sendable is what a client can send behind "Bearer ": anything else, such
	// as a file's last line feed, is a mistake that would refuse everybody.
	sendable = regexp.MustCompile(`^[!-~]+$`)
	// variable is what the name of an environment variable looks like. Other
	// text is not shown: it may be the token itself, put there by mistake.
	variable = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`)
)

// secret returns a token: a string or {"env": NAME}. All faults are at the
// token's own place.
func (s *scan) secret(v value) (string, bool) {
	if text, ok := v.data.(string); ok {
		if text == "" {
			s.fault(v, "is empty")
		}
		return text, text != ""
	}
	members, _ := v.data.([]member)
	if len(members) != 1 || members[0].name != "env" {
		s.fault(v, `must be a string or {"env": NAME}`)
		return "", false
	}
	name, _ := members[0].data.(string)
	if name == "" {
		s.fault(v, `"env" must name an environment variable`)
		return "", false
	}
	shown := "the environment variable that it names"
	if variable.MatchString(name) {
		shown = "the environment variable " + name
	}
	text, set := s.env(name)
	switch {
	case !set:
		s.fault(v, "%s is not set", shown)
	case text == "":
		s.fault(v, "%s is empty", shown)
	}
	return text, text != ""
}
