//go:build linux

package hop

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// holding returns a set of so many connections that are told nothing by epoll, and the
// connections.
func holding(t testing.TB, count int, told Told) (set *epoll, conns []net.Conn) {
	t.Helper()
	peer, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = peer.Close() })
	set = &epoll{byFD: map[int32]*Watched{}, highest: int32(count - 1)}
	for i := range count {
		conn, err := net.DialUDP("udp", nil, peer.LocalAddr().(*net.UDPAddr))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		raw, err := conn.SyscallConn()
		require.NoError(t, err)
		set.byFD[int32(i)] = &Watched{set: set, told: told, raw: raw}
		conns = append(conns, conn)
	}
	return set, conns
}

// BenchmarkLook looks for what ended here among so many connections, and says how long
// the set is locked for at a time.
func BenchmarkLook(b *testing.B) {
	for _, count := range []int{128, 1024, 8192} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			set, _ := holding(b, count, &heard{})
			for b.Loop() {
				set.look()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count/lookAtOnce), "ns/lock")
		})
	}
}

// Whoever has something to tell, or comes, or goes, waits for a part of the look.
func TestALookIsDoneInSteps(t *testing.T) {
	t.Parallel()
	const count = 3*lookAtOnce + 1
	var h heard
	set, conns := holding(t, count, &h)
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	for step := range 4 {
		require.Equal(t, step < 3, set.lookFrom(int32(step*lookAtOnce)))
		require.Equal(t, min(count, (step+1)*lookAtOnce), h.count())
	}
	set.look()
	require.Equal(t, 2*count, h.count(), "and all are looked at")
}
