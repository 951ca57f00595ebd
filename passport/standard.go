package passport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
)

// Standard is the passport that a document describes: see Parse. It is safe for
// concurrent use and holds no token, only hashes of them; no fmt verb shows
// even those.
type Standard struct {
	providers []provider
	policies  policies
}

var _ Passport = (*Standard)(nil)

// provider knows callers by one kind of credential.
type provider interface {
	// identify returns the caller's identity, or nil if the request has no
	// credential of this provider. An error means that it could not be found
	// out.
	identify(ctx context.Context, r *http.Request) (*Identity, error)
}

// Parse returns the standard passport that a JSON document describes
// (protocol §10):
//
//	{"providers": [
//	   {"type": "staticToken", "id": "pinboard",
//	    "keys": [{"name": "deployment", "token": {"env": "PINBOARD_TOKEN"},
//	              "scopes": ["pinboard:worker", "pinboard:operator"],
//	              "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["*"]}}}]}],
//	 "namespaces": {"/counters": {"allow": "anonymous"},
//	                "/rooms*":   {"allow": "authenticated", "providers": ["pinboard"], "scopes": ["play"]},
//	                "*":         {"allow": "authenticated"}}}
//
// A token is a string or names an environment variable, which env looks up; nil
// means os.LookupEnv. Required are "type", "id" and "keys" of a provider, "name"
// and "token" of a key, and "allow" of a namespace. A key without scopes and
// claims proves who is calling and no more.
//
// Namespace patterns are exact, "prefix*" or "*", with or without the leading
// slash; the most specific one rules alone. A namespace that no pattern
// matches is open to nobody.
//
// The error joins everything that is wrong with the document. Each fault names
// its place, as in "providers[0].keys[0].token: is empty", and holds neither
// tokens nor any other value.
func Parse(document []byte, env func(string) (string, bool)) (*Standard, error) {
	if env == nil {
		env = os.LookupEnv
	}
	s := &scan{env: env}
	std := &Standard{}
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
	return std, nil
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
		s.fault(v, `is not a known type of provider: "staticToken"`)
	}
}

// Identify returns the identity of the first provider that knows the caller.
//
// A static token counts as "Authorization: Bearer <token>", the scheme in any
// case, in the one Authorization line of a request. The identity is then
// (provider id, key name) and hides the header, so that the token never
// reaches a worker. A request with several Authorization lines has no
// credential, whatever they hold. No token in them has authenticated anything,
// so nothing is hidden: where the namespace admits anonymous clients, all
// lines reach the worker.
func (p *Standard) Identify(ctx context.Context, r *http.Request) (*Identity, error) {
	var found *Identity
	var faults []error
	// All providers are asked, so that the time does not tell which one knows.
	for _, provider := range p.providers {
		who, err := provider.identify(ctx, r)
		if err != nil {
			faults = append(faults, err)
		}
		if found == nil {
			found = who
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, errors.Join(faults...)
}

// Admit implements Passport with the document's policies: ErrUnauthenticated
// for a client without a good credential, ErrForbidden for one whose credential
// is of a provider that does not count there, lacks a scope, or meets no policy.
func (p *Standard) Admit(_ context.Context, namespace string, who *Identity) error {
	return p.policies.admit(namespace, who)
}

// Format prints the same for every verb: who is known to a passport is nobody
// else's business.
func (p Standard) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("passport.Standard")) }
