package passport

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// asymmetric are the algorithms a provider may list. "none" and the symmetric
// ones are not among them: what verifies a token must not be able to make one.
var asymmetric = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// jwts reads a provider "jwt".
func (s *scan) jwts(o object, id string) *jwts {
	p := &jwts{id: id, log: s.log}
	p.rules.issuer = s.needText(o, "issuer")
	if v, ok := s.need(o, "audience"); ok {
		p.rules.audiences = s.oneOrMore(v)
	}
	if v, ok := s.need(o, "algorithms"); ok {
		p.rules.algorithms = s.algorithms(v)
	}
	p.from = []source{{kind: fromAuthorization}}
	if v, ok := o.fields["from"]; ok {
		p.from = s.sources(v)
	}
	p.registry, p.forward = s.flag(o, "registry"), s.flag(o, "forward")
	if p.registry && slices.ContainsFunc(p.from, func(from source) bool { return from.kind != fromAuthorization }) {
		s.fault(o.fields["registry"], `needs "from" to be "authorization" alone: browsers send cookies along with what other sites ask for`)
	}
	allowHTTP := s.flag(o, "allowHttp")
	p.keys = newKeySet(s.keySetURL(o, allowHTTP), id, s.log)
	return p
}

// flag returns an optional boolean, false if it is left out.
func (s *scan) flag(o object, name string) bool {
	v, ok := o.fields[name]
	if !ok {
		return false
	}
	flag, ok := v.data.(bool)
	if !ok {
		s.fault(v, "must be true or false")
	}
	return flag
}

// oneOrMore returns a string, or the strings of a list that is not empty.
func (s *scan) oneOrMore(v value) []string {
	if _, ok := v.data.([]value); !ok {
		if text, ok := v.data.(string); !ok {
			s.fault(v, "must be a string or a list of strings")
			return nil
		} else if text == "" {
			s.fault(v, "is empty")
		}
		return []string{v.data.(string)}
	}
	return s.someTexts(v)
}

// someTexts returns the strings of a list, each there once; at least one.
func (s *scan) someTexts(v value) []string {
	items, ok := s.list(v)
	if ok && len(items) == 0 {
		s.fault(v, "is empty")
	}
	var texts []string
	for _, item := range items {
		text := s.text(item)
		if text != "" && slices.Contains(texts, text) {
			s.fault(item, "is there twice")
		}
		texts = append(texts, text)
	}
	return texts
}

func (s *scan) algorithms(v value) []jose.SignatureAlgorithm {
	var out []jose.SignatureAlgorithm
	for i, text := range s.someTexts(v) {
		alg := jose.SignatureAlgorithm(text)
		if text != "" && !slices.Contains(asymmetric, alg) {
			s.fault(v.data.([]value)[i], "is not one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA")
		}
		out = append(out, alg)
	}
	return out
}

var (
	// cookieName is a token of RFC 9110, section 5.6.2.
	cookieName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	// parameterName needs no escapes, so that it has one spelling.
	parameterName = regexp.MustCompile(`^[0-9A-Za-z._~-]+$`)
)

// sources reads "from".
func (s *scan) sources(v value) []source {
	var out []source
	for i, text := range s.someTexts(v) {
		kind, name, named := strings.Cut(text, ":")
		good := false
		switch kind {
		case fromAuthorization:
			good = !named
		case fromCookie:
			good = cookieName.MatchString(name)
		case fromQuery:
			good = parameterName.MatchString(name)
		}
		if !good && text != "" {
			s.fault(v.data.([]value)[i], `must be "authorization", "cookie:NAME" or "query:NAME"`)
		}
		out = append(out, source{kind, name})
	}
	return out
}

// keySetURL reads "jwksUrl". Keys fetched without TLS could be anybody's.
func (s *scan) keySetURL(o object, allowHTTP bool) string {
	text := s.needText(o, "jwksUrl")
	if text == "" {
		return ""
	}
	v := o.fields["jwksUrl"]
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		s.fault(v, "must be a URL such as https://id.example.com/jwks.json")
	case u.User != nil:
		s.fault(v, "must not hold a user or password")
	case u.Fragment != "":
		s.fault(v, "must not have a fragment")
	case u.Scheme == "http" && !allowHTTP && !loopback(u.Hostname()):
		s.fault(v, `must be https, unless the host is a loopback address or "allowHttp" is true`)
	}
	return text
}

// loopback reports whether a URL's host can only be this machine.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
