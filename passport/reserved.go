package passport

import "net/netip"

// reserved are the ranges that no worker is at and that a machine gives away
// secrets at: those of one link or of none, and where clouds tell a machine its
// own credentials. Only a rule within the range itself means them.
var reserved = ranges(
	"0.0.0.0/8", "::/128", // unspecified: leads to the node itself
	"169.254.0.0/16", "fe80::/10", // link-local
	"224.0.0.0/4", "ff00::/8", "255.255.255.255/32", // multicast and broadcast
	"100.100.100.200/32", "fd00:100::100:200/128", // Alibaba Cloud
	"168.63.129.16/32",                         // Azure
	"192.0.0.192/32", "fd00:c1::a9fe:a9fe/128", // Oracle Cloud
	"fd00:ec2::/32",         // Amazon
	"fd20:ce::254/128",      // Google
	"fd00:42::42/128",       // Scaleway
	"fd00:a9fe:a9fe::1/128", // Linode
)

// embedding are the IPv6 ranges whose addresses lead to an IPv4 address that
// begins at the given bit.
var embedding = []struct {
	netip.Prefix
	at int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 96},    // NAT64
	{netip.MustParsePrefix("64:ff9b:1::/48"), 96},  // NAT64 of one's own
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 96}, // translated
	{netip.MustParsePrefix("::/96"), 96},           // compatible
	{netip.MustParsePrefix("2002::/16"), 16},       // 6to4
}

func ranges(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, text := range list {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// Reserved reports whether an address is one that no wide rule for backend
// hosts allows, neither "*" nor a CIDR around its range nor a name that leads to
// it, but only a rule that lies within the range: an unspecified, link-local,
// multicast or broadcast address, a cloud's metadata service, or IPv6 that is
// translated to one of these.
func Reserved(addr netip.Addr) bool {
	_, ok := reservedRange(addr.Unmap())
	return ok
}

// reservedRange returns the reserved range that an unmapped address lies in.
func reservedRange(addr netip.Addr) (netip.Prefix, bool) {
	addr = addr.WithZone("")
	for _, p := range reserved {
		if p.Contains(addr) {
			return p, true
		}
	}
	for _, e := range embedding {
		if !e.Contains(addr) || addr.IsLoopback() { // ::1 would be 0.0.0.1
			continue
		}
		raw := addr.As16()
		v4 := netip.AddrFrom4([4]byte(raw[e.at/8 : e.at/8+4]))
		if p, ok := reservedRange(v4); ok {
			return netip.PrefixFrom(addr, e.at+p.Bits()).Masked(), true
		}
	}
	return netip.Prefix{}, false
}
