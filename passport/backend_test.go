package passport_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

func rules(t *testing.T, list ...string) passport.BackendRules {
	t.Helper()
	b, err := passport.ParseBackendRules(list)
	require.NoError(t, err)
	return b
}

func TestRulesDecideWhichHostsMayBeAdvertised(t *testing.T) {
	t.Parallel()
	hosts := strings.Fields(`worker.example worker.example. WORKER.example a.worker.example a.b.worker.example xworker.example example
		10.0.0.1 10.255.0.1 11.0.0.1 ::1 2001:db8::5 2001:DB8:0::5 2001:db9::5 ::ffff:10.0.0.1`)
	for rule, want := range map[string]string{
		"":                    "",
		"worker.example":      "worker.example worker.example. WORKER.example",
		"Worker.Example.":     "worker.example worker.example. WORKER.example",
		"*.worker.example":    "a.worker.example a.b.worker.example",
		"*.WORKER.Example.":   "a.worker.example a.b.worker.example",
		"*.example":           "worker.example worker.example. WORKER.example a.worker.example a.b.worker.example xworker.example",
		"10.0.0.1":            "10.0.0.1 ::ffff:10.0.0.1",
		"::ffff:10.0.0.1":     "10.0.0.1 ::ffff:10.0.0.1",
		"10.0.0.0/8":          "10.0.0.1 10.255.0.1 ::ffff:10.0.0.1",
		"10.9.9.9/8":          "10.0.0.1 10.255.0.1 ::ffff:10.0.0.1",
		"::ffff:10.0.0.0/104": "10.0.0.1 10.255.0.1 ::ffff:10.0.0.1",
		"0.0.0.0/0":           "10.0.0.1 10.255.0.1 11.0.0.1 ::ffff:10.0.0.1",
		"::/0":                "::1 2001:db8::5 2001:DB8:0::5 2001:db9::5",
		"::1":                 "::1",
		"2001:db8::/32":       "2001:db8::5 2001:DB8:0::5",
		"2001:DB8:0:0::0005":  "2001:db8::5 2001:DB8:0::5",
		"*":                   strings.Join(hosts, " "),
	} {
		b := rules(t, strings.Fields(rule)...)
		var got []string
		for _, host := range hosts {
			if b.AllowsURLHost(host) {
				got = append(got, host)
			}
		}
		require.Equal(t, want, strings.Join(got, " "), rule)
	}
	several := rules(t, "worker.example", "*.svc", "10.0.0.0/8", "::1")
	for host, want := range map[string]bool{"worker.example": true, "a.svc": true, "svc": false, "10.1.1.1": true, "::1": true, "::2": false} {
		require.Equal(t, want, several.AllowsURLHost(host), host)
	}
}

func TestWhatIsNeitherNameNorAddressIsNeverAllowed(t *testing.T) {
	t.Parallel()
	b := rules(t, "*")
	for _, host := range []string{
		"", ".", "a..b", "a b", "[::1]", "a:80", "http://a", "2130706433", "127.1", "0x7f000001", "0177.0.0.1", "127.0.0.01",
		"a@b", "a/b", `a\b`, "b\u00fccher", "\u212aelvin", "::1%lo", "fe80::1%eth0", strings.Repeat("a", 254),
	} {
		require.False(t, b.AllowsURLHost(host), "%q", host)
	}
}

// C30: the check is made on what ParseAdvertiseURL understood, before anything
// is looked up.
func TestSpellingsGetAroundNoRule(t *testing.T) {
	t.Parallel()
	b := rules(t, "127.0.0.1")
	for raw, want := range map[string]string{
		"http://127.0.0.1@169.254.169.254:8000": "malformed",
		"http://169.254.169.254/":               "forbidden",
		"http://7f000001.nip.io:8000":           "forbidden",
		"http://0x7f000001:8000":                "malformed",
		"http://2130706433:8000":                "malformed",
		"http://127.1:8000":                     "malformed",
		"http://[::ffff:127.0.0.1]:8000":        "malformed",
		"http://127.0.0.1:8000/?x":              "malformed",
		"http://127.0.0.1:8000/#f":              "malformed",
		"ftp://127.0.0.1":                       "malformed",
		`http://127.0.0.1:8000\@evil`:           "malformed",
		"HTTP://127.0.0.1:8000/":                "http://127.0.0.1:8000",
	} {
		got, host, err := wire.ParseAdvertiseURL(raw)
		switch {
		case err != nil:
			got = "malformed"
		case !b.AllowsURLHost(host):
			got = "forbidden"
		}
		require.Equal(t, want, got, raw)
	}
}

func TestAddressRulesDecideWhichAddressesAreAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules, allowed, refused string
	}{
		{"", "", "10.0.0.1 ::1"},
		{"*", "10.0.0.1 ::1 ::ffff:1.2.3.4", "fe80::1%eth0 ::ffff:1.2.3.4%eth0"},
		{"10.0.0.0/8", "10.0.0.1 ::ffff:10.0.0.1", "11.0.0.1 ::10.0.0.1 ::ffff:11.0.0.1"},
		{"fe80::/10", "fe80::1", "fe80::1%eth0 fec0::1 10.0.0.1"},
		{"worker.example *.example", "", "10.0.0.1 ::1"}, // a name is not an address
	} {
		b := rules(t, strings.Fields(c.rules)...)
		for addr := range strings.FieldsSeq(c.allowed) {
			require.True(t, b.AllowsAddr(netip.MustParseAddr(addr)), "%s: %s", c.rules, addr)
		}
		for addr := range strings.FieldsSeq(c.refused) {
			require.False(t, b.AllowsAddr(netip.MustParseAddr(addr)), "%s: %s", c.rules, addr)
		}
		require.False(t, b.AllowsAddr(netip.Addr{}))
	}
}

// A name that the rules allow must not lead to another host later.
func TestNameIsDialledOnlyAtItsAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules, addr, pinned string
		want                bool
	}{
		{"worker.example", "10.0.0.1", "", true}, // registering: any address may answer
		{"*.example", "10.0.0.1", "", true},
		{"worker.example", "10.0.0.1", "10.0.0.1", true},
		{"worker.example", "10.0.0.1", "::ffff:10.0.0.1", true},
		{"worker.example", "::ffff:10.0.0.1", "10.0.0.1", true},
		{"worker.example", "169.254.169.254", "10.0.0.1", false}, // pointed elsewhere
		{"worker.example", "10.0.0.1", "worker.example", false},
		{"worker.example", "10.0.0.1", "10.0.0.1:80", false},
		{"worker.example 10.0.0.0/8", "10.0.0.1", "", true},
		{"worker.example 10.0.0.0/8", "11.0.0.1", "", false}, // the rules hold addresses: only those
		{"worker.example 10.0.0.0/8", "10.0.0.2", "10.0.0.1", true},
		{"worker.example 10.0.0.0/8", "11.0.0.1", "10.0.0.1", false},
		{"worker.example 10.0.0.1", "169.254.169.254", "", false},
		{"*", "11.0.0.1", "", true},
		{"*", "11.0.0.1", "10.0.0.1", true},
		{"*", "169.254.169.254", "", false}, // reserved: whatever a name was allowed by
		{"*", "169.254.169.254", "10.0.0.1", false},
		{"worker.example", "169.254.169.254", "", false},
		{"*.example", "64:ff9b::a9fe:a9fe", "", false},
		{"worker.example", "0.0.0.0", "", false},
		{"worker.example 0.0.0.0/0", "169.254.169.254", "", false},
		{"worker.example 169.254.169.254", "169.254.169.254", "", true},
		{"worker.example 169.254.0.0/16", "169.254.169.254", "", true},
		{"* 10.0.0.0/8", "11.0.0.1", "", true},
		{"*", "fe80::1%eth0", "", false},
		{"worker.example", "fe80::1%eth0", "", false},
		{"worker.example", "fe80::1%eth0", "fe80::1%eth0", false},
		{"10.0.0.0/8", "10.0.0.1", "", true},
		{"10.0.0.0/8", "11.0.0.1", "", false},
		{"", "10.0.0.1", "", false}, // no rule could have allowed the name
	} {
		got := rules(t, strings.Fields(c.rules)...).AllowsDial(netip.MustParseAddr(c.addr), c.pinned)
		require.Equal(t, c.want, got, "%+v", c)
	}
	require.False(t, rules(t, "worker.example").AllowsDial(netip.Addr{}, ""))
}

func TestMalformedRuleIsAnErrorAndAllowsNothing(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{
		"", " ", "*.", "**", "*a", "a*", "a.*", "*.*", "*.*.example", "*.10", ".example", "a..b", "a b", "http://a", "a:80", "a/b", "10.0.0.0/33",
		"10.0.0.0/", "/8", "10.0.0/8", "127.1", "2130706433", "0x7f000001", "010.0.0.1", "[::1]", "::1%lo", "fe80::1%eth0/64", "::/129", "b\u00fccher", "\u212aelvin",
	} {
		b, err := passport.ParseBackendRules([]string{"*", rule})
		require.ErrorContains(t, err, "backend rule 1: ", "%q", rule)
		require.False(t, b.AllowsURLHost("worker.example"))
		require.False(t, b.AllowsAddr(netip.MustParseAddr("10.0.0.1")))
		require.False(t, b.AllowsDial(netip.MustParseAddr("10.0.0.1"), ""))
	}
	_, err := passport.ParseBackendRules([]string{"a b", "*", "c d"})
	require.ErrorContains(t, err, "backend rule 0: ")
	require.ErrorContains(t, err, "backend rule 2: ")
}
