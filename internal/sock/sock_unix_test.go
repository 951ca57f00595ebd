//go:build unix

package sock_test

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/sock"
)

// pair returns the two ends of a stream.
func pair(t *testing.T, nonblock bool) (a, b int) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	for _, fd := range fds {
		require.NoError(t, syscall.SetNonblock(fd, nonblock))
		t.Cleanup(func() { _ = syscall.Close(fd) })
	}
	return fds[0], fds[1]
}

func TestReadTellsNothingFromTheEnd(t *testing.T) {
	a, b := pair(t, true)
	p := make([]byte, 8)
	n, err := sock.Read(a, p)
	require.Zero(t, n)
	require.Equal(t, syscall.EAGAIN, err)
	require.True(t, sock.Quiet(a))

	n, err = sock.Write(b, []byte("0123456789"))
	require.NoError(t, err)
	require.Equal(t, 10, n)
	require.False(t, sock.Quiet(a), "something has come")
	require.False(t, sock.Quiet(a), "a look takes nothing away")
	n, err = sock.Read(a, p)
	require.NoError(t, err)
	require.Equal(t, "01234567", string(p[:n]))
	n, err = sock.Read(a, p)
	require.NoError(t, err)
	require.Equal(t, "89", string(p[:n]))

	require.NoError(t, syscall.Shutdown(b, syscall.SHUT_WR))
	require.False(t, sock.Quiet(a), "the end has come")
	n, err = sock.Read(a, p)
	require.Zero(t, n)
	require.NoError(t, err)
}

func TestWriteTakesWhatThereIsRoomFor(t *testing.T) {
	for _, size := range []int{1 << 10, 32 << 10, 32<<10 + 1, 256 << 10} {
		a, b := pair(t, true)
		sent := bytes.Repeat([]byte("abcdefgh"), size/8)
		total := 0
		for {
			n, err := sock.Write(a, sent)
			total += n
			if err != nil {
				require.Equal(t, syscall.EAGAIN, err)
				require.Zero(t, n)
				break
			}
			require.Positive(t, n)
		}
		require.Positive(t, total)
		p := make([]byte, size)
		for total > 0 {
			n, err := sock.Read(b, p)
			require.NoError(t, err)
			total -= n
		}
		require.Zero(t, total, "all that was said to be written, and no more")
		require.True(t, sock.Quiet(b))
	}
}

func TestAnOtherEndThatIsGoneIsAnError(t *testing.T) {
	a, b := pair(t, true)
	require.NoError(t, syscall.Shutdown(b, syscall.SHUT_RDWR))
	n, err := sock.Write(a, []byte("x"))
	require.Zero(t, n)
	require.Equal(t, syscall.EPIPE, err) // and no signal
	_, err = sock.Read(-1, make([]byte, 1))
	require.Equal(t, syscall.EBADF, err)
	require.False(t, sock.Quiet(-1))
}
