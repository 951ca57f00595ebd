package passport_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// "*" and its like are for a network of workers, not for what tells a machine
// its own secrets.
func TestOnlyARuleOfItsOwnAllowsAReservedAddress(t *testing.T) {
	t.Parallel()
	for addr, own := range map[string]string{ // the widest rule that means it, and the next wider
		"0.0.0.0":              "0.0.0.0/8 0.0.0.0/7",
		"0.1.2.3":              "0.0.0.0/8 0.0.0.0/7",
		"::":                   "::/128 ::/127",
		"169.254.0.0":          "169.254.0.0/16 169.254.0.0/15",
		"169.254.169.254":      "169.254.0.0/16 169.254.0.0/15",
		"169.254.255.255":      "169.254.169.254/16 168.0.0.0/6",
		"fe80::":               "fe80::/10 fe80::/9",
		"fe80::254":            "fe80::/64 fe00::/8",
		"febf:ffff::1":         "fe80::/10 fe80::/9",
		"224.0.0.1":            "224.0.0.0/4 224.0.0.0/3",
		"239.255.255.255":      "239.0.0.0/8 224.0.0.0/3",
		"ff02::1":              "ff00::/8 fe00::/7",
		"255.255.255.255":      "255.255.255.255/32 255.255.255.254/31",
		"100.100.100.200":      "100.100.100.200/32 100.64.0.0/10",
		"168.63.129.16":        "168.63.129.16/32 168.63.129.0/24",
		"192.0.0.192":          "192.0.0.192/32 192.0.0.0/24",
		"fd00:ec2::254":        "fd00:ec2::/32 fd00::/8",
		"fd00:ec2::23":         "fd00:ec2::23/128 fd00:ec2::/31",
		"fd20:ce::254":         "fd20:ce::254/128 fd20:ce::/64",
		"fd00:c1::a9fe:a9fe":   "fd00:c1::a9fe:a9fe/128 fd00::/16",
		"fd00:42::42":          "fd00:42::42/128 fd00:42::/32",
		"fd00:a9fe:a9fe::1":    "fd00:a9fe:a9fe::1/128 fd00:a9fe:a9fe::/64",
		"fd00:100::100:200":    "fd00:100::100:200/128 fd00:100::/32",
		"::ffff:169.254.0.1":   "169.254.0.0/16 0.0.0.0/0",
		"::ffff:0.0.0.0":       "::ffff:0:0/104 ::ffff:0:0/96",
		"64:ff9b::a9fe:a9fe":   "64:ff9b::a9fe:0/112 64:ff9b::/96", // what IPv6 is translated to
		"64:ff9b::":            "64:ff9b::/104 64:ff9b::/103",
		"64:ff9b::6464:64c8":   "64:ff9b::6464:64c8/128 64:ff9b::6464:0/112",
		"64:ff9b:1::a9fe:a9fe": "64:ff9b:1::a9fe:0/112 64:ff9b:1::/48",
		"::a9fe:a9fe":          "::a9fe:0/112 ::/96",
		"::ffff:0:a9fe:a9fe":   "::ffff:0:a9fe:0/112 ::/0",
		"2002:a9fe:a9fe::1":    "2002:a9fe::/32 2002::/16",
	} {
		a, rule := netip.MustParseAddr(addr), strings.Fields(own)
		require.True(t, passport.Reserved(a), addr)
		for _, wide := range []string{"*", rule[1], "0.0.0.0/0 ::/0", "* 0.0.0.0/0 ::/0 *.example"} {
			b := rules(t, strings.Fields(wide)...)
			require.False(t, b.AllowsAddr(a), "%s: %s", wide, addr)
			require.False(t, b.AllowsURLHost(addr), "%s: %s", wide, addr)
			require.False(t, b.AllowsDial(a, "10.0.0.1"), "%s: %s", wide, addr)
			require.False(t, b.AllowsDial(a, ""), "%s: %s", wide, addr)
		}
		for _, close := range []string{rule[0], addr} {
			b := rules(t, "*", close)
			require.True(t, b.AllowsAddr(a), "%s: %s", close, addr)
			require.True(t, b.AllowsURLHost(addr), "%s: %s", close, addr)
			require.True(t, b.AllowsDial(a, ""), "%s: %s", close, addr)
		}
	}
}

func TestAddressesThatWorkersAreAtAreNotReserved(t *testing.T) {
	t.Parallel()
	for addr := range strings.FieldsSeq(`127.0.0.1 127.255.255.254 ::1 10.0.0.1 172.16.0.1 192.168.0.1 100.64.0.1 100.100.100.201 1.0.0.0 223.255.255.255
		169.253.255.255 169.255.0.0 168.63.129.17 192.0.0.193 192.0.2.1 8.8.8.8 240.0.0.1 255.255.255.254 fd00::1 fc00::1 fd00:ec1::254 fd20:ce::253
		fec0::1 fe7f::1 2001:db8::1 64:ff9b::a00:1 64:ff9b:1::a00:1 2002:a00:1::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b:2::a9fe:a9fe`) {
		a := netip.MustParseAddr(addr)
		require.False(t, passport.Reserved(a), addr)
		require.True(t, rules(t, "*").AllowsAddr(a), addr)
	}
	require.False(t, passport.Reserved(netip.Addr{}))
	require.True(t, passport.Reserved(netip.MustParseAddr("fe80::1%eth0")))
}

// An IPv6 address that is translated to an IPv4 one is still an address of its
// own: rules for the one say nothing of the other.
func TestRulesForIPv4DoNotReachWhatIsTranslatedToIt(t *testing.T) {
	t.Parallel()
	b := rules(t, "10.0.0.0/8", "10.0.0.1", "0.0.0.0/0")
	for _, addr := range []string{"64:ff9b::a00:1", "64:ff9b:1::a00:1", "::10.0.0.1", "::ffff:0:10.0.0.1", "2002:a00:1::1"} {
		require.False(t, b.AllowsAddr(netip.MustParseAddr(addr)), addr)
		require.True(t, rules(t, addr).AllowsAddr(netip.MustParseAddr(addr)), addr)
	}
	require.True(t, b.AllowsAddr(netip.MustParseAddr("::ffff:10.0.0.1")), "this is the IPv4 address itself")
}
