package quota

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAQuotaIsFullOrOnesShareIs(t *testing.T) {
	t.Parallel()
	q := New[string](3, 2)
	for _, key := range []string{"a", "a"} {
		require.NoError(t, q.Take(key))
	}
	require.ErrorIs(t, q.Take("a"), ErrShare)
	require.NoError(t, q.Take(""))
	require.ErrorIs(t, q.Take("b"), ErrFull)
	q.Give("a")
	require.NoError(t, q.Take("b"))
	for _, key := range []string{"a", "b", ""} {
		q.Give(key)
	}
	total, keys := q.Use()
	require.Zero(t, total)
	require.Zero(t, keys, "nobody is remembered")
	for range 3 {
		require.NoError(t, q.Take(""), "nobody has no share")
	}
}

func TestASiteIsAnAddressOrAnIPv6Customer(t *testing.T) {
	t.Parallel()
	for addr, site := range map[string]string{
		"192.0.2.1":        "192.0.2.1/32",
		"::ffff:192.0.2.1": "192.0.2.1/32",
		"2001:db8::1":      "2001:db8::/64",
		"2001:db8:0:1::1":  "2001:db8:0:1::/64",
		"fe80::1%eth0":     "fe80::/64",
	} {
		require.Equal(t, netip.MustParsePrefix(site), Site(netip.MustParseAddr(addr)), addr)
	}
	require.Zero(t, Site(netip.Addr{}))
}
