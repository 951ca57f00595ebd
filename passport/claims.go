package passport

// claimPinboard is the claim that pinboard itself obeys. Its fields are lists
// of strings; what is missing or malformed allows nothing.
const (
	claimPinboard     = "pinboard"
	claimNamespaces   = "namespaces"
	claimBackendHosts = "allowedBackendHosts"
)

// AllowsNamespace reports whether a worker with this identity may register the
// namespace, which starts with a slash, and an operator see it: whether a
// pattern in claims.pinboard.namespaces matches (protocol §10). Patterns are
// those of the standard passport's policies. A nil identity, a missing or
// malformed claim and a list with one malformed pattern allow nothing.
func (i *Identity) AllowsNamespace(namespace string) bool {
	allowed := false
	for _, text := range i.pinboardClaim(claimNamespaces) {
		p, err := parsePattern(text)
		if err != nil {
			return false
		}
		allowed = allowed || p.matches(namespace)
	}
	return allowed
}

// BackendHosts returns claims.pinboard.allowedBackendHosts, to be read by
// ParseBackendRules: the hosts that the advertise URLs of workers with this
// identity may name (protocol §10). It is nil for a nil identity and for a
// missing or malformed claim.
func (i *Identity) BackendHosts() []string { return i.pinboardClaim(claimBackendHosts) }

// pinboardClaim returns a copy of one list of the claim, nil if there is none
// or if any of it is of another type. Besides what encoding/json decodes, a
// passport of the host's own may build a []string.
func (i *Identity) pinboardClaim(field string) []string {
	if i == nil {
		return nil
	}
	claim, _ := i.Claims[claimPinboard].(map[string]any)
	switch list := claim[field].(type) {
	case []string:
		return append([]string(nil), list...)
	case []any:
		texts := make([]string, len(list))
		for n, item := range list {
			text, ok := item.(string)
			if !ok {
				return nil
			}
			texts[n] = text
		}
		return texts
	}
	return nil
}

// claims returns the claims of a static key, of which "pinboard" must be well
// formed: a misspelt claim would lock a worker out with no hint why.
func (s *scan) claims(v value) map[string]any {
	members, ok := v.data.([]member)
	if !ok {
		s.fault(v, "must be an object")
		return nil
	}
	for _, m := range members {
		if m.name == claimPinboard {
			s.checkPinboardClaim(m.value)
		}
	}
	claims, _ := plain(v).(map[string]any)
	return claims
}

func (s *scan) checkPinboardClaim(v value) {
	o, ok := s.object(v, claimNamespaces, claimBackendHosts)
	if !ok {
		return
	}
	s.checkTexts(o, claimNamespaces, func(text string) error { _, err := parsePattern(text); return err })
	s.checkTexts(o, claimBackendHosts, func(text string) error { return new(BackendRules).add(text) })
}

// checkTexts checks each string of an optional list.
func (s *scan) checkTexts(o object, name string, check func(string) error) {
	v, ok := o.fields[name]
	if !ok {
		return
	}
	items, _ := s.list(v)
	for _, item := range items {
		if text := s.text(item); text != "" {
			if err := check(text); err != nil {
				s.fault(item, "%v", err)
			}
		}
	}
}
