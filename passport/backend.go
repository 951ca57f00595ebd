package passport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// BackendRules say which hosts a worker may advertise, and which addresses may
// be dialled for it (protocol §10, allowedBackendHosts). The zero value allows
// nothing. An IPv4 address written as IPv6 counts as the IPv4 address; an
// address with a zone is never allowed, one that is Reserved only by a rule
// within its range.
type BackendRules struct {
	all      bool
	names    []string
	suffixes []string // ".example.com"
	prefixes []netip.Prefix
}

// ParseBackendRules reads rules: a host name, compared without regard to case
// and a trailing dot; "*.suffix" for every name below the suffix, at any depth,
// but not the suffix itself; an IP address; a CIDR; "*" for everything. If any
// rule is malformed, the error says which, and the rules allow nothing.
func ParseBackendRules(rules []string) (BackendRules, error) {
	var b BackendRules
	var faults []error
	for i, rule := range rules {
		if err := b.add(rule); err != nil {
			faults = append(faults, fmt.Errorf("backend rule %d: %w", i, err))
		}
	}
	if faults != nil {
		return BackendRules{}, errors.Join(faults...)
	}
	return b, nil
}

func (b *BackendRules) add(rule string) error {
	if rule == "*" {
		b.all = true
		return nil
	}
	if suffix, ok := strings.CutPrefix(rule, "*."); ok {
		name, err := wire.HostName(suffix)
		if err != nil {
			return err
		}
		b.suffixes = append(b.suffixes, "."+name)
		return nil
	}
	if strings.Contains(rule, "/") {
		prefix, err := netip.ParsePrefix(rule)
		if err != nil {
			return errors.New("has a '/' but is not a CIDR such as 10.0.0.0/8")
		}
		b.prefixes = append(b.prefixes, unmapPrefix(prefix))
		return nil
	}
	if addr, err := netip.ParseAddr(rule); err == nil {
		if addr.Zone() != "" {
			return errors.New("must not have an IPv6 zone")
		}
		addr = addr.Unmap()
		b.prefixes = append(b.prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		return nil
	}
	name, err := wire.HostName(rule)
	if err != nil {
		return err
	}
	b.names = append(b.names, name)
	return nil
}

// unmapPrefix turns a CIDR within ::ffff:0:0/96 into its IPv4 form, because
// that is what addresses are compared in.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	const mapped = 96
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p
}

// AllowsURLHost reports whether a worker may advertise a URL with this host,
// which is in lower case, without port, brackets and trailing dot. A name is
// allowed by the rules for names alone: what it resolves to is for AllowsDial.
// It resolves nothing.
func (b BackendRules) AllowsURLHost(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return b.AllowsAddr(addr)
	}
	name, err := wire.HostName(host)
	if err != nil {
		return false
	}
	return b.all || slices.Contains(b.names, name) ||
		slices.ContainsFunc(b.suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// AllowsAddr reports whether a rule allows the address itself. It is the check
// before every dial to a URL whose host is an address.
func (b BackendRules) AllowsAddr(addr netip.Addr) bool {
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	addr = addr.Unmap()
	within, special := reservedRange(addr)
	return b.all && !special || slices.ContainsFunc(b.prefixes, func(p netip.Prefix) bool {
		return p.Contains(addr) && (!special || p.Bits() >= within.Bits())
	})
}

// AllowsDial is the check before every dial to a URL whose host is a name that
// AllowsURLHost has allowed, so that the name cannot be pointed elsewhere
// between one call and the next. It reports whether AllowsAddr does, or else
// whether addr is pinned: the address that answered the registration's probe.
//
// During that probe there is none yet, and pinned is "": then any address may
// answer that is not Reserved, unless the rules also hold addresses, which then
// are the only ones. Do not pass "" after a registration.
func (b BackendRules) AllowsDial(addr netip.Addr, pinned string) bool {
	if b.AllowsAddr(addr) {
		return true
	}
	if !addr.IsValid() || addr.Zone() != "" {
		return false
	}
	if pinned != "" {
		want, err := netip.ParseAddr(pinned)
		return err == nil && want.Unmap() == addr.Unmap()
	}
	return len(b.prefixes) == 0 && len(b.names)+len(b.suffixes) > 0 && !Reserved(addr)
}
