package passport

import (
	"cmp"
	"slices"
)

// policy says who may reach the instances of a namespace.
type policy struct {
	anonymous bool
	providers []string // those that count; nil for all
	scopes    []string // all of them are needed
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
	o, ok := s.object(v, "allow", "providers", "scopes")
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
	if p.anonymous && len(p.providers)+len(p.scopes) > 0 {
		s.fault(v, `"anonymous" admits everyone: providers and scopes need "authenticated"`)
	}
	return p
}
