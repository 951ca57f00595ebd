//go:build !race && !msan

package sock_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// The runtime would wait with the calls of which it knows nothing.
func TestASocketThatBlocksIsNotWaitedFor(t *testing.T) {
	a, _ := pair(t, false)
	_, err := sock.Read(a, make([]byte, 1))
	require.Equal(t, syscall.EAGAIN, err)
	require.True(t, sock.Quiet(a))
	p := make([]byte, 32<<10)
	for n := len(p); n > 0; {
		n, err = sock.Write(a, p)
	}
	require.Equal(t, syscall.EAGAIN, err)
}
