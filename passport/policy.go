package passport

import (
	"cmp"
	"regexp"
	"slices"
)

// policy says who may reach the instances of a namespace.
type policy struct {
	anonymous bool
	providers []string // those that count; nil for all
	scopes    []string // all of them are needed
	origins   []string // of pages that may call besides the namespace's own
}

// policies are the policies of a document. The zero value admits nobody.
type policies struct {
	exact    map[string]policy
	prefixes []prefixPolicy // the longest prefix first
}

type prefixPolicy struct {
	pattern
	policy
}

// find returns the most specific policy for a namespace.
func (p policies) find(namespace string) (policy, bool) {
	if exact, ok := p.exact[namespace]; ok {
		return exact, true
	}
	for _, candidate := range p.prefixes {
		if candidate.matches(namespace) {
			return candidate.policy, true
		}
	}
	return policy{}, false
}

func (p policies) admit(namespace string, who *Identity) error {
	found, ok := p.find(namespace)
	switch {
	case ok && found.anonymous:
		return nil
	case who == nil:
		return ErrUnauthenticated
	case !ok || found.providers != nil && !slices.Contains(found.providers, who.Provider):
		return ErrForbidden
	}
	for _, scope := range found.scopes {
		if !who.HasScope(scope) {
			return ErrForbidden
		}
	}
	return nil
}

// policies reads the field "namespaces". ids are the providers' ids.
func (s *scan) policies(v value, ids map[string]string) policies {
	out := policies{exact: map[string]policy{}}
	members, ok := v.data.([]member)
	if !ok {
		s.fault(v, "must be an object")
		return out
	}
	seen := map[pattern]member{}
	for _, m := range members {
		rule := s.policy(m.value, ids)
		p, err := parsePattern(m.name)
		if err != nil {
			s.fault(m.value, "malformed pattern: %v", err)
			continue
		}
		// A name that is there twice is a fault already.
		if other, ok := seen[p]; ok && other.name != m.name {
			s.fault(m.value, "means the same as %s", other.place)
			continue
		}
		seen[p] = m
		if p.prefix {
			out.prefixes = append(out.prefixes, prefixPolicy{p, rule})
		} else {
			out.exact[p.text] = rule
		}
	}
	slices.SortFunc(out.prefixes, func(a, b prefixPolicy) int { return cmp.Compare(len(b.text), len(a.text)) })
	return out
}

func (s *scan) policy(v value, ids map[string]string) policy {
	o, ok := s.object(v, "allow", "providers", "scopes", "allowedOrigins")
	if !ok {
		return policy{}
	}
	var p policy
	if allow, ok := s.need(o, "allow"); ok {
		switch allow.data {
		case "anonymous":
			p.anonymous = true
		case "authenticated":
		default:
			s.fault(allow, `must be "anonymous" or "authenticated"`)
		}
	}
	p.providers, p.scopes = s.optionalTexts(o, "providers"), s.optionalTexts(o, "scopes")
	if list, ok := o.fields["providers"]; ok {
		items, isList := list.data.([]value)
		if isList && len(items) == 0 {
			s.fault(list, "is empty: nobody could be admitted")
		}
		for _, item := range items {
			if id, ok := item.data.(string); ok && id != "" && ids[id] == "" {
				s.fault(item, "is not the id of a provider")
			}
		}
	}
	if list, ok := o.fields["allowedOrigins"]; ok {
		p.origins = s.origins(list)
	}
	if p.anonymous && len(p.providers)+len(p.scopes) > 0 {
		s.fault(v, `"anonymous" admits everyone: providers and scopes need "authenticated"`)
	}
	return p
}

// origin is as browsers write it (RFC 6454, section 6.2).
var origin = regexp.MustCompile(`^([a-z][a-z0-9+.-]*)://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?$`)

// origins reads "allowedOrigins". What no browser would write would not match
// what it looks like.
func (s *scan) origins(list value) []string {
	var out []string
	items, _ := s.list(list)
	for _, item := range items {
		text := s.text(item)
		parts := origin.FindStringSubmatch(text)
		switch {
		case text == "":
		case parts == nil:
			s.fault(item, "must be an origin such as https://app.example.com: in lower case, without a path")
		case parts[1] == "https" && parts[2] == "443", parts[1] == "http" && parts[2] == "80":
			s.fault(item, "must not name the port that goes without saying")
		}
		out = append(out, text)
	}
	return out
}
