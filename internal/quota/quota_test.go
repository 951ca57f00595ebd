package quota

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func take[K comparable](t *testing.T, q *Quota[K], key K) *Share {
	t.Helper()
	s, err := q.Take(key)
	require.NoError(t, err)
	return s
}

func requireUse[K comparable](t *testing.T, q *Quota[K], total, keys int) {
	t.Helper()
	gotTotal, gotKeys := q.Use()
	require.Equal(t, []int{total, keys}, []int{gotTotal, gotKeys})
}

func TestAQuotaIsFullOrOnesShareIs(t *testing.T) {
	t.Parallel()
	q := New[string](3, 2)
	a, again := take(t, q, "a"), take(t, q, "a")
	require.Same(t, a, again)
	_, err := q.Take("a")
	require.ErrorIs(t, err, ErrShare)
	nobody := take(t, q, "")
	_, err = q.Take("b")
	require.ErrorIs(t, err, ErrFull)
	requireUse(t, q, 3, 1)
	q.Give(a)
	b := take(t, q, "b")
	requireUse(t, q, 3, 2)
	for _, s := range []*Share{a, b, nobody} {
		q.Give(s)
	}
	requireUse(t, q, 0, 0)
	for range 3 {
		take(t, q, "") // nobody has no share
	}
	requireUse(t, q, 3, 0)
}

func TestWhoHasNothingIsForgotten(t *testing.T) {
	t.Parallel()
	q := New[int](1<<20, 1)
	var held []*Share
	for key := range 20_000 {
		s := take(t, q, 1+key)
		if key%10 > 0 {
			q.Give(s)
		} else if held = append(held, s); len(held) > 100 {
			q.Give(held[0])
			held = held[1:]
		}
		_, used := q.Use()
		require.LessOrEqual(t, len(q.of), 2*used+spares)
	}
	requireUse(t, q, 100, 100)
	for i, s := range held {
		_, err := q.Take(1 + 20_000 - 10*(len(held)-i)) // is not among those forgotten
		require.ErrorIs(t, err, ErrShare)
		q.Give(s)
	}
	requireUse(t, q, 0, 0)
}

func TestWhoComesAgainFindsAPlace(t *testing.T) {
	t.Parallel()
	q := New[string](1, 1)
	first := take(t, q, "a")
	q.Give(first)
	require.Same(t, first, take(t, q, "a"))
}

func TestAQuotaWithoutSharesGivesNone(t *testing.T) {
	t.Parallel()
	_, err := New[string](1, 0).Take("a")
	require.ErrorIs(t, err, ErrShare)
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
