package passport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/internal/leak"
)

// Standard is the passport that a document describes: see Parse. It is safe for
// concurrent use and holds no token, only hashes of them; no fmt verb shows
// even those.
type Standard struct {
	providers []provider
	policies  policies
	log       *logger

	// hideCookies and hideQuery name where the providers look for tokens.
	hideCookies []string
	hideQuery   []string
}

var (
	_ Passport = (*Standard)(nil)
	_ Origins  = (*Standard)(nil)
)

// provider knows callers by one kind of credential.
type provider interface {
	// identify returns the caller's identity, or nil if the request has no
	// credential of this provider. An error means that it could not be found
	// out.
	identify(ctx context.Context, r *http.Request) (*Identity, error)
}

// Parse returns the standard passport that a JSON document describes
// (protocol §10). It does no network I/O:
//
//	{"providers": [
//	   {"type": "staticToken", "id": "pinboard",
//	    "keys": [{"name": "deployment", "token": {"env": "PINBOARD_TOKEN"},
//	              "scopes": ["pinboard:worker", "pinboard:operator"],
//	              "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}}]},
//	   {"type": "jwt", "id": "users", "issuer": "https://id.example.com", "audience": "chat",
//	    "jwksUrl": "https://id.example.com/jwks.json", "algorithms": ["RS256", "ES256"],
//	    "from": ["authorization", "cookie:session", "query:access_token"]}],
//	 "namespaces": {"/counters": {"allow": "anonymous"},
//	                "/rooms*":   {"allow": "authenticated", "providers": ["pinboard"], "scopes": ["play"]},
//	                "*":         {"allow": "authenticated"}}}
//
// A token is a string or names an environment variable, which env looks up; nil
// means os.LookupEnv. Required are "type" and "id" of a provider, "keys" of a
// static one, "name" and "token" of a key, and "allow" of a namespace. A key
// without scopes and claims proves who is calling and no more.
//
// A provider "jwt" takes tokens that an identity server signs with keys it
// publishes at "jwksUrl". "audience" is a string or a list of which a token
// needs one; "algorithms" are RS256 to PS512, ES256 to ES512 and EdDSA. All
// these are required. "from" says where tokens are looked for, the first place
// with a good one counts, default ["authorization"]. Three switches are off by
// default: "registry" lets tokens hold the powers of the registry, "forward"
// leaves a good token in the header or cookie that it came in, and "allowHttp"
// lets the keys be fetched without TLS, which otherwise only loopback
// addresses may.
//
// Namespace patterns are exact, "prefix*" or "*", with or without the leading
// slash; the most specific one rules alone. A namespace that no pattern
// matches is open to nobody. "allowedOrigins" lists the origins of pages that
// may use a namespace besides its own, such as "https://app.example.com".
//
// The error joins everything that is wrong with the document. Each fault names
// its place, as in "providers[0].keys[0].token: is empty", and holds neither
// tokens nor any other value.
func Parse(document []byte, env func(string) (string, bool)) (*Standard, error) {
	if env == nil {
		env = os.LookupEnv
	}
	std := &Standard{log: &logger{}}
	s := &scan{env: env, log: std.log}
	if v, ok := s.read(document); ok {
		if o, ok := s.object(v, "providers", "namespaces"); ok {
			ids := map[string]string{}
			if list, ok := o.fields["providers"]; ok {
				std.providers = s.providers(list, ids)
			}
			if namespaces, ok := o.fields["namespaces"]; ok {
				std.policies = s.policies(namespaces, ids)
			}
		}
	}
	if s.faults != nil {
		return nil, errors.Join(s.faults...)
	}
	for _, p := range std.providers {
		if p, ok := p.(*jwts); ok {
			std.hide(p)
		}
	}
	return std, nil
}

// hide notes which cookies and query parameters carry the provider's tokens.
func (p *Standard) hide(from *jwts) {
	for _, place := range from.from {
		switch {
		case place.kind == fromQuery:
			p.hideQuery = append(p.hideQuery, place.name)
		case place.kind == fromCookie && !from.forward:
			p.hideCookies = append(p.hideCookies, place.name)
		}
	}
}

// LogTo says where to log: that an identity server's keys could not be fetched,
// and, at debug level, of each token that was refused which provider did so and
// what kind of fault it has, never what is in it. Nothing is logged before.
func (p *Standard) LogTo(log *zap.Logger) { p.log.to.Store(leak.Logger(log)) }

// Close ends fetches of keys that are under way, waits for them and begins no
// new ones. It need not be called, since a fetch takes 5 s at most, and may be
// called twice. Callers whose keys are there are known all the same. The error
// is always nil.
func (p *Standard) Close() error {
	for _, p := range p.providers {
		if p, ok := p.(*jwts); ok {
			p.keys.close()
		}
	}
	return nil
}

// logger is a logger that may be set later. The zero logger is silent.
type logger struct{ to atomic.Pointer[zap.Logger] }

func (l *logger) debug(message string, fields ...zap.Field) { l.write(zap.DebugLevel, message, fields) }
func (l *logger) warn(message string, fields ...zap.Field)  { l.write(zap.WarnLevel, message, fields) }

func (l *logger) write(level zapcore.Level, message string, fields []zap.Field) {
	if log := l.to.Load(); log != nil {
		log.Log(level, message, fields...)
	}
}

// providers reads the list of providers and notes the place of each id.
func (s *scan) providers(list value, ids map[string]string) []provider {
	var out []provider
	tokens := map[[sha256.Size]byte]string{} // the place of each token, over all providers
	items, _ := s.list(list)
	for _, item := range items {
		kind := ""
		members, _ := item.data.([]member)
		for _, m := range members {
			if text, ok := m.data.(string); ok && m.name == "type" {
				kind = text
			}
		}
		switch kind {
		case "staticToken":
			if o, ok := s.object(item, "type", "id", "keys"); ok {
				out = append(out, s.staticTokens(o, s.providerID(o, ids), tokens))
			}
		case "jwt":
			if o, ok := s.object(item, "type", "id", "issuer", "audience", "jwksUrl", "algorithms",
				"from", "registry", "forward", "allowHttp"); ok {
				out = append(out, s.jwts(o, s.providerID(o, ids)))
			}
		default:
			s.unknownProvider(item, members, ids)
		}
	}
	return out
}

// providerID reads the id of a provider, which no other one may have.
func (s *scan) providerID(o object, ids map[string]string) string {
	id := s.needText(o, "id")
	if other := ids[id]; other != "" {
		s.fault(o.fields["id"], "is the id of %s too", other)
	} else if id != "" {
		ids[id] = o.place
	}
	return id
}

func (s *scan) unknownProvider(item value, members []member, ids map[string]string) {
	if _, ok := item.data.([]member); !ok {
		s.fault(item, "must be an object")
		return
	}
	// The fields are not known, but the id is, so that policies which name it
	// are not faults as well.
	fields := map[string]value{}
	for _, m := range members {
		fields[m.name] = m.value
	}
	o := object{value: item, fields: fields}
	s.providerID(o, ids)
	if v, ok := s.need(o, "type"); ok {
		s.fault(v, `is not a known type of provider: "staticToken" or "jwt"`)
	}
}

// Identify returns the identity of the first provider, in the document's order,
// that knows the caller.
//
// A token counts as "Authorization: Bearer <token>", the scheme in any case, in
// the one Authorization line of a request, and, for a jwt provider that says
// so, in the one cookie or query parameter of a name. Where there are several
// lines, cookies or parameters of that name, none is a credential, whatever
// they hold.
//
// The identity hides an Authorization header with any provider's good token,
// and all cookies and query parameters that providers look for tokens in. A
// client that is not known hides nothing: where the namespace admits anonymous
// clients, what it sent reaches the worker.
//
// Of the request it reads the header and the URL, never the body.
//
// The error means that the keys of an identity server, which could tell whether
// a token is good, are not to be had. Such a request waits for 3 s at most.
func (p *Standard) Identify(ctx context.Context, r *http.Request) (*Identity, error) {
	var found *Identity
	var headers []string
	var faults []error
	// All providers are asked, so that the time does not tell which one knows.
	for _, provider := range p.providers {
		who, err := provider.identify(ctx, r)
		switch {
		case err != nil:
			faults = append(faults, err)
			headers = []string{headerAuthorization} // it may be good
		case who != nil:
			if len(who.HideHeaders) > 0 {
				headers = who.HideHeaders
			}
			if found == nil {
				found = who
			}
		}
	}
	if found == nil {
		return nil, errors.Join(faults...)
	}
	if len(p.hideCookies) == 0 && len(p.hideQuery) == 0 && slices.Equal(headers, found.HideHeaders) &&
		len(found.HideCookies) == 0 && len(found.HideQuery) == 0 {
		return found, nil
	}
	who := *found
	who.HideHeaders, who.HideCookies, who.HideQuery = headers, p.hideCookies, p.hideQuery
	return &who, nil
}

// Admit implements Passport with the document's policies: ErrUnauthenticated
// for a client without a good credential, ErrForbidden for one whose credential
// is of a provider that does not count there, lacks a scope, or meets no policy.
func (p *Standard) Admit(_ context.Context, namespace string, who *Identity) error {
	return p.policies.admit(namespace, who)
}

// AllowsOrigin implements Origins with the "allowedOrigins" of the policy that
// rules the namespace.
func (p *Standard) AllowsOrigin(namespace, origin string) bool {
	found, _ := p.policies.find(namespace)
	return slices.Contains(found.origins, origin)
}

// Format prints the same for every verb: who is known to a passport is nobody
// else's business.
func (p Standard) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("passport.Standard")) }
