package memnet

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBothSidesMayWriteBeforeTheyRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		for _, conn := range []net.Conn{a, b} {
			n, err := conn.Write([]byte("hello"))
			require.NoError(t, err)
			require.Equal(t, 5, n)
		}
		for _, conn := range []net.Conn{a, b} {
			got := make([]byte, 10)
			n, err := conn.Read(got)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got[:n]))
		}
	})
}

func TestAWriterWaitsForItsReaderBeyondTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		sent := make([]byte, 3*window+1)
		_, _ = rand.Read(sent)
		written := make(chan error, 1)
		go func() {
			_, err := a.Write(sent)
			_ = a.Close()
			written <- err
		}()
		synctest.Wait()
		require.Empty(t, written)
		require.Equal(t, window, a.(*conn).out.buf.Len())
		got, err := io.ReadAll(b)
		require.NoError(t, err, "what was written before the end arrives")
		require.True(t, bytes.Equal(sent, got))
		require.NoError(t, <-written)
	})
}

func TestAClosedEndFailsAndEndsTheOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		waiting := make(chan error, 2)
		go func() {
			_, err := a.Read(make([]byte, 1))
			waiting <- err
		}()
		go func() {
			_, err := b.Write(make([]byte, window+1))
			waiting <- err
		}()
		go func() { _, _ = a.Read(make([]byte, 1)) }()
		synctest.Wait()
		require.NoError(t, a.Close())
		require.NoError(t, a.Close())
		synctest.Wait()
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = a.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = b.Write([]byte("x"))
		require.ErrorIs(t, err, io.ErrClosedPipe)
		_, err = b.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Len(t, waiting, 2, "nobody waits any more")
	})
}

func TestADeadlineEndsWhatWaitsUntilItIsLifted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := Pipe()
		defer b.Close()
		defer a.Close()
		began := time.Now()
		require.NoError(t, a.SetDeadline(began.Add(time.Second)))
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.Equal(t, time.Second, time.Since(began))
		require.NoError(t, a.SetDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(make([]byte, window+1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, window, n)
		_, err = io.ReadFull(b, make([]byte, window))
		require.NoError(t, err)

		require.NoError(t, a.SetDeadline(time.Time{}))
		n, err = a.Write(make([]byte, 10))
		require.NoError(t, err)
		require.Equal(t, 10, n)
		// The second replaces the first.
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Second)))
		require.NoError(t, a.SetReadDeadline(time.Now().Add(time.Hour)))
		began = time.Now()
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Hour, time.Since(began))

		// net/http ends a read that is under way like this.
		waiting := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, window)) // the ten
			if err == nil {
				_, err = b.Read(make([]byte, 1))
			}
			waiting <- err
		}()
		synctest.Wait()
		require.NoError(t, b.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-waiting, os.ErrDeadlineExceeded)
	})
}

func TestAListenerConnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewListener()
		accepted := make(chan net.Conn, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				accepted <- conn
			}
		}()
		near, err := l.Dial(t.Context())
		require.NoError(t, err)
		far := <-accepted
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = l.Dial(ctx)
		require.ErrorIs(t, err, context.Canceled, "nobody accepts")
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		_, err = l.Dial(t.Context())
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = near.Write([]byte("x"))
		require.NoError(t, err, "connections outlive their listener")
		require.NoError(t, far.Close())
		require.NoError(t, near.Close())
	})
}
