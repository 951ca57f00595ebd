package faults_test

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

func TestTheOwnerOfASocketIsFoundWhileItIsOpen(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	conn, err := net.Dial("tcp4", listener.Addr().String())
	require.NoError(t, err)
	peer := conn.LocalAddr().(*net.TCPAddr)
	_, ok := faults.Owner(peer, listener.Addr().String(), []int{os.Getppid()})
	require.False(t, ok)
	_, ok = faults.Owner(peer, listener.Addr().String(), []int{os.Getpid()})
	require.True(t, ok)
	require.NoError(t, conn.Close())
	_, ok = faults.Owner(peer, listener.Addr().String(), []int{os.Getpid()})
	require.False(t, ok, "closed")
}
