package pinboard

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func prefixes(texts ...string) proxies {
	var p proxies
	for _, text := range texts {
		p = append(p, netip.MustParsePrefix(text))
	}
	return p
}

func from(peer string, lines ...string) *http.Request {
	return &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": lines}}
}

// C27: the client's address is what nobody but trusted proxies can have made up.
func TestTheClientsAddressIsTheLastOneThatNoTrustedProxyVouchesFor(t *testing.T) {
	t.Parallel()
	trusted := prefixes("127.0.0.0/8", "10.0.0.0/8", "fd00::/8")
	const proxy = "127.0.0.1:4000"
	for _, c := range []struct {
		peer  string
		lines []string
		want  string
	}{
		{proxy, nil, "127.0.0.1"},
		{proxy, []string{"6.6.6.6", "198.51.100.7, 10.1.2.3"}, "198.51.100.7"},
		{proxy, []string{"6.6.6.6", "198.51.100.7, 10.1.2.3, unknown"}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6, unknown, 10.1.2.3"}, "10.1.2.3"},
		{proxy, []string{"6.6.6.6, , 198.51.100.7"}, "198.51.100.7"},
		{proxy, []string{"6.6.6.6, 198.51.100.7", "", " , \t,"}, "198.51.100.7"},
		{proxy, []string{"10.9.9.9, 10.1.2.3"}, "10.9.9.9"}, // all of them proxies: the farthest
		{proxy, []string{"198.51.100.7:8080"}, "198.51.100.7"},
		{proxy, []string{"[2001:db8::1]:8080"}, "2001:db8::1"},
		{proxy, []string{"[2001:db8::1]"}, "2001:db8::1"},
		{proxy, []string{"2001:DB8:0::1"}, "2001:db8::1"},
		{proxy, []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{proxy, []string{"6.6.6.6, ::ffff:10.1.2.3"}, "6.6.6.6"},
		{proxy, []string{"6.6.6.6, fd00::1%eth0"}, "6.6.6.6"},
		{proxy, []string{"6.6.6.6, [10.1.2.3"}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6, 10.1.2.3]"}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6, 010.1.2.3"}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6, 10.1.2.3:99999"}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6, _hidden"}, "127.0.0.1"},
		{proxy, []string{"["}, "127.0.0.1"},
		{proxy, []string{"6.6.6.6;10.1.2.3"}, "127.0.0.1"},
		{"[fd00::7]:4000", []string{"6.6.6.6"}, "6.6.6.6"},
		{"[::ffff:10.0.0.1]:4000", []string{"6.6.6.6"}, "6.6.6.6"},
		// Who is not trusted is believed nothing.
		{"198.51.100.7:4000", []string{"6.6.6.6", "10.1.2.3"}, "198.51.100.7"},
		{"[fe80::1%eth0]:4000", []string{"6.6.6.6"}, "fe80::1"},
	} {
		require.Equal(t, c.want, trusted.sender(from(c.peer, c.lines...)).addr.String(), "%s %q", c.peer, c.lines)
	}
	// A unix socket's other end has no address, so nothing vouches for more.
	require.False(t, trusted.sender(from("@", "6.6.6.6")).addr.IsValid())
}

func TestWithoutTrustedProxiesOnlyThePeerCounts(t *testing.T) {
	t.Parallel()
	for i := range 64 {
		r := from("127.0.0.1:4000", fmt.Sprint("6.6.6.", i))
		r.Header.Set("X-Real-Ip", fmt.Sprint("7.7.7.", i))
		r.Header.Set("Forwarded", fmt.Sprint("for=8.8.8.", i))
		require.Equal(t, "127.0.0.1", proxies(nil).sender(r).addr.String())
	}
}

func FuzzForwardedFor(f *testing.F) {
	for _, text := range []string{"", "1.2.3.4", "10.0.0.1, 1.2.3.4", "unknown,10.0.0.1", "[::1]:80", "[", "]", "a\n10.0.0.1", "fe80::1%x", "::ffff:10.0.0.1"} {
		f.Add(text)
	}
	trusted := prefixes("10.0.0.0/8", "::1/128")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		got := trusted.sender(from("10.0.0.1:1", lines...)).addr
		require.True(t, got.IsValid())
		require.Empty(t, got.Zone())
		require.False(t, got.Is4In6())
		// What somebody writes to the left of it changes nothing, unless all
		// of the list is proxies.
		invented := append([]string{"6.6.6.6"}, lines...)
		again := trusted.sender(from("10.0.0.1:1", invented...)).addr
		if got != again {
			require.True(t, trusted.trust(got))
			require.Equal(t, "6.6.6.6", again.String())
		}
		require.Equal(t, "192.0.2.1", trusted.sender(from("192.0.2.1:1", lines...)).addr.String())
	})
}
