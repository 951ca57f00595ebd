package main

import (
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard"
)

// dialFrom connects from an address of this machine.
func dialFrom(t *testing.T, address, addr string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// gone waits for the end of connections and returns of how many there is one, which is
// to be so many.
func gone(t *testing.T, conns []net.Conn, want int) (ended []net.Conn) {
	t.Helper()
	ends := make(chan net.Conn, len(conns))
	for _, conn := range conns {
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			ends <- conn
		}()
	}
	for range want {
		ended = append(ended, <-ends)
	}
	return ended
}

// Hosts that each take what one may have together take all there are: whoever has
// fewer gets in, at their cost, whatever theirs are doing.
func TestAHandfulOfHostsShutsNobodyOut(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, conn net.Conn){
		"silent":   func(*testing.T, net.Conn) {},
		"kept":     func(t *testing.T, conn net.Conn) { require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode) },
		"dripping": func(t *testing.T, conn net.Conn) { _, _ = io.WriteString(conn, "GET /heal") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const most = 32
			addr := start(t, "PINBOARD_MAX_CONNECTIONS="+strconv.Itoa(most))
			var hosts [shares][]net.Conn
			for host := range hosts {
				for range most / shares {
					conn := dialFrom(t, "127.0."+strconv.Itoa(100+host)+".1", addr)
					begin(t, conn)
					hosts[host] = append(hosts[host], conn)
				}
			}
			for n := range 2 * shares { // a second one of each is still fewer than theirs
				conn := dialFrom(t, "127.0."+strconv.Itoa(1+n%shares)+".1", addr)
				require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode, n)
			}
			var all []net.Conn
			for _, conns := range hosts {
				all = append(all, conns...)
			}
			require.Len(t, gone(t, all, 2*shares), 2*shares)
			// Now everybody has two, and nobody's place is another's any more.
			for _, from := range []string{"127.0.100.1", "127.0.1.1"} {
				require.Equal(t, http.StatusServiceUnavailable, answer(t, dialFrom(t, from, addr)).StatusCode)
			}
		})
	}
}

func TestAddressesOfOneNetworkShareWhatIsCut(t *testing.T) {
	t.Parallel()
	addr := start(t, "PINBOARD_MAX_CONNECTIONS=8", "PINBOARD_MAX_CONNECTIONS_PER_ADDRESS=2")
	for n := range 8 {
		conn := dialFrom(t, "127.0.100."+strconv.Itoa(1+n), addr)
		require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, answer(t, dialFrom(t, "127.0.100.9", addr)).StatusCode)
	require.Equal(t, http.StatusOK, healthy(t, dialFrom(t, "127.0.1.1", addr)).StatusCode)
}

// What waits for nothing goes first.
func TestAConnectionWithoutARequestIsCutBeforeOneThatHasOne(t *testing.T) {
	t.Parallel()
	addr := start(t, "PINBOARD_MAX_CONNECTIONS=8", "PINBOARD_MAX_CONNECTIONS_PER_ADDRESS=8")
	var open []net.Conn
	for n := range 8 {
		conn := dialFrom(t, "127.0.100.1", addr)
		if n%2 == 0 { // its request is read, and waits for its body
			_, err := io.WriteString(conn, "POST /registry/drain HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\n"+
				"Expect: 100-continue\r\nAuthorization: Bearer planted-token-of-an-operator\r\n\r\n")
			require.NoError(t, err)
			begun := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
			_, err = io.ReadFull(conn, begun)
			require.NoError(t, err)
			require.Contains(t, string(begun), "100 Continue")
		}
		open = append(open, conn)
	}
	for n := range 4 {
		require.Equal(t, http.StatusOK, healthy(t, dialFrom(t, "127.0."+strconv.Itoa(1+n)+".1", addr)).StatusCode)
	}
	for n, conn := range open {
		if n%2 == 0 {
			_, err := io.WriteString(conn, "{}")
			require.NoError(t, err)
			require.Equal(t, http.StatusBadRequest, answer(t, conn).StatusCode)
			continue
		}
		_, err := conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
}

func TestATrustedProxyLosesNoConnectionToOthers(t *testing.T) {
	t.Parallel()
	addr := start(t, "PINBOARD_MAX_CONNECTIONS=4", "PINBOARD_TRUSTED_PROXIES=127.0.100.1")
	for range 4 {
		require.Equal(t, http.StatusOK, healthy(t, dialFrom(t, "127.0.100.1", addr)).StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, answer(t, dialFrom(t, "127.0.1.1", addr)).StatusCode)
}

// In front of all clients it has most of what there is, and would take the rest.
func TestForATrustedProxyNobodyElseIsCut(t *testing.T) {
	t.Parallel()
	addr := start(t, "PINBOARD_MAX_CONNECTIONS=4", "PINBOARD_TRUSTED_PROXIES=127.0.100.1")
	workers := []net.Conn{dialFrom(t, "127.0.1.1", addr), dialFrom(t, "127.0.1.2", addr)}
	for _, conn := range append(workers, dialFrom(t, "127.0.100.1", addr), dialFrom(t, "127.0.100.1", addr)) {
		require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
	}
	require.Equal(t, http.StatusServiceUnavailable, answer(t, dialFrom(t, "127.0.100.1", addr)).StatusCode)
	for _, conn := range workers {
		require.Equal(t, http.StatusOK, healthy(t, conn).StatusCode)
	}
}

// Else whoever closes what it got, and comes again when others have come back, could have
// theirs cut without end and without having any.
func TestWhoClosesWhatItGotHasNoMoreCutThanByKeepingIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const has = 10
		c := newCrowd()
		for range has {
			c.join(&counted{network: netip.MustParsePrefix("192.0.2.0/24")})
		}
		one, other := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")
		for range 2 {
			cut := 0
			for c.excess(one) != nil { // which come back at once
				cut++
			}
			require.Equal(t, has-1, cut)
			require.NotNil(t, c.excess(other))
			time.Sleep(lately) // virtual time
		}
	})
}

// Else nobody is accepted while one is looked for.
func TestFewConnectionsAreLookedAtHoweverManyThereAre(t *testing.T) {
	t.Parallel()
	for _, networks := range []int{1, 256} {
		c := newCrowd()
		for n := range 20 * lookAtMost {
			c.join(&counted{network: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n % networks), 0}), 24)})
		}
		looked := 0
		for range c.some() {
			looked++
		}
		require.Equal(t, lookAtMost, looked)
		require.NotNil(t, c.excess(netip.Prefix{}))
	}
}

func TestWhichConnectionsHaveARequestIsKnownBelowTLSToo(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	l := limitConnections(nil, &pinboard.Environment{}, zap.NewNop())
	site := netip.MustParsePrefix("192.0.2.1/32")
	share, err := l.quota.Take(site)
	require.NoError(t, err)
	c := l.count(dialTo(t, listener.Addr().String()).(*net.TCPConn), site, share)
	for _, conn := range []net.Conn{c, tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS12})} {
		for state, idle := range map[http.ConnState]bool{
			http.StateNew: true, http.StateActive: false, http.StateIdle: true, http.StateHijacked: false,
		} {
			l.follow(conn, state)
			require.Equal(t, idle, c.idle.Load(), state)
		}
	}
}

func TestNetworksAreAbout256AddressesOr65536Customers(t *testing.T) {
	t.Parallel()
	for site, network := range map[string]string{"192.0.2.9/32": "192.0.2.0/24", "2001:db8:1:2::/64": "2001:db8:1::/48"} {
		require.Equal(t, netip.MustParsePrefix(network), networkOf(netip.MustParsePrefix(site)))
	}
	require.False(t, networkOf(netip.Prefix{}).IsValid())
}

// The count of each size is what counting would give, whoever comes and goes.
func TestACrowdKnowsWhoHasMost(t *testing.T) {
	t.Parallel()
	c := newCrowd()
	var in []*counted
	for range 5000 {
		if len(in) > 0 && rand.IntN(5) < 2 {
			at := rand.IntN(len(in))
			c.leave(in[at])
			in = append(in[:at], in[at+1:]...)
		} else {
			one := &counted{network: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(rand.IntN(6)), 0}), 24)}
			c.join(one)
			in = append(in, one)
		}
		sizes, most := map[netip.Prefix]int{}, 0
		for _, one := range in {
			sizes[one.network]++
			most = max(most, sizes[one.network])
		}
		require.Equal(t, most, c.most)
		clear(c.cutFor)
		one := c.excess(netip.Prefix{})
		if most < 2 {
			require.Nil(t, one)
		} else {
			require.Equal(t, most, sizes[one.network])
		}
	}
	for _, one := range in {
		c.leave(one)
	}
	require.Empty(t, c.of)
	require.Empty(t, c.bySize)
}
