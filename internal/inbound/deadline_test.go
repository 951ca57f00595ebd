package inbound

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (client net.Conn, c *Conn) {
	t.Helper()
	l := listen(t)
	defer func() { _ = l.Close() }()
	client = dial(t, l)
	conn, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return client, conn.(*Conn)
}

func timesOut(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	fault, ok := err.(net.Error)
	require.True(t, ok && fault.Timeout())
}

// read reads on a goroutine of its own, up to len(p), and waits until that waits.
func read(t *testing.T, c *Conn, p []byte) (failed chan error) {
	t.Helper()
	failed = make(chan error, 1)
	go func() {
		_, err := c.Read(p)
		failed <- err
	}()
	require.Eventually(t, func() bool {
		c.in.mu.Lock()
		defer c.in.mu.Unlock()
		return c.in.busy
	}, patience, often)
	return failed
}

func TestADeadlineEndsARead(t *testing.T) {
	t.Parallel()
	_, c := pair(t)
	for name, test := range map[string]struct{ before, during time.Duration }{
		"that is yet to come": {before: often}, "set during the read": {during: often},
		"made earlier": {before: time.Hour, during: often},
	} {
		require.NoError(t, c.SetReadDeadline(time.Time{}))
		if test.before > 0 {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(test.before)))
		}
		failed := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 2))
			failed <- err
		}()
		if test.during > 0 {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(test.during)))
		}
		err := <-failed
		require.Error(t, err, name)
		timesOut(t, err)
	}
}

// The server sets a later one for each request.
func TestAFormerDeadlineEndsNothing(t *testing.T) {
	t.Parallel()
	client, c := pair(t)
	for _, later := range []time.Time{{}, time.Now().Add(time.Hour)} {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		failed := read(t, c, make([]byte, 2))
		require.Eventually(t, func() bool { _, set := c.state(); return !set.IsZero() && time.Until(set) < time.Minute }, patience, often/10)
		require.NoError(t, c.SetReadDeadline(later))
		// The socket's ends, and is changed for the one that is wanted.
		require.Eventually(t, func() bool { _, set := c.state(); return set.Equal(later) }, patience, often)
		send(t, client, "on")
		require.NoError(t, <-failed)
	}
}

func TestADeadlineThatIsOverEndsWhatWouldNotWait(t *testing.T) {
	t.Parallel()
	client, c := pair(t)
	send(t, client, "there")
	for range 2 { // it stays so
		require.NoError(t, c.SetDeadline(longAgo))
		_, err := c.Read(make([]byte, 5))
		timesOut(t, err)
		n, err := c.Write([]byte("too late"))
		timesOut(t, err)
		require.Zero(t, n)
	}
	require.NoError(t, c.SetDeadline(time.Time{}))
	_, err := io.ReadFull(c, make([]byte, 5))
	require.NoError(t, err)
}

func TestADeadlineEndsAWriteThatWaits(t *testing.T) {
	t.Parallel()
	_, c := pair(t)
	much := make([]byte, 64<<20) // more than any socket takes
	written := make(chan error, 1)
	var n int
	go func() {
		var err error
		n, err = c.Write(much)
		written <- err
	}()
	require.Eventually(t, func() bool {
		c.out.mu.Lock()
		defer c.out.mu.Unlock()
		return c.out.busy
	}, patience, often)
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	timesOut(t, <-written)
	require.Less(t, n, len(much), "it says how much went")
}

// Also one that is set by another goroutine while the kernel moves what is written.
func TestADeadlineEndsAWriteOfTheKernels(t *testing.T) {
	t.Parallel()
	client, c := pair(t)
	_, source := pair(t)
	go func() { _, _ = io.Copy(io.Discard, client) }()
	failed := make(chan error, 1)
	go func() {
		_, err := c.ReadFrom(&io.LimitedReader{R: source.tcp, N: 1 << 30})
		failed <- err
	}()
	other, over := pair(t)
	defer func() { _ = other.Close() }()
	require.NoError(t, over.SetWriteDeadline(longAgo))
	_, err := over.ReadFrom(strings.NewReader("too late"))
	timesOut(t, err)
	require.NoError(t, source.Close()) // ends the first one
	require.Error(t, <-failed)
}

func TestAWriteThatWaitsGoesOn(t *testing.T) {
	t.Parallel()
	client, c := pair(t)
	const size = 32 << 20
	written := make(chan error, 1)
	go func() {
		n, err := c.Write(make([]byte, size))
		if err == nil && n != size {
			err = io.ErrShortWrite
		}
		written <- err
	}()
	got, err := io.Copy(io.Discard, io.LimitReader(client, size))
	require.NoError(t, err)
	require.Equal(t, int64(size), got)
	require.NoError(t, <-written)
}

func TestErrorsAreThoseOfATCPConnection(t *testing.T) {
	t.Parallel()
	client, c := pair(t)
	require.NoError(t, client.(*net.TCPConn).SetLinger(0))
	require.NoError(t, client.Close())
	_, err := c.Read(make([]byte, 2))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	op, ok := err.(*net.OpError)
	require.True(t, ok)
	require.Equal(t, "read", op.Op, "the server answers what is none of these")
	require.NoError(t, c.Close())
	_, err = c.Read(make([]byte, 2))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Write(make([]byte, 2))
	require.ErrorIs(t, err, net.ErrClosed)

	client, c = pair(t)
	require.NoError(t, client.Close())
	_, err = c.Read(make([]byte, 2))
	require.Equal(t, io.EOF, err)
}
