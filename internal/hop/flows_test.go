package hop

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

// sockets returns both ends of a connection.
func sockets(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	dialled, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = dialled.Close(); _ = accepted.Close() })
	return accepted.(*net.TCPConn), dialled.(*net.TCPConn)
}

// own is a type of a host's that reads in a way of its own.
type own struct{ *net.TCPConn }

func (o own) Read(p []byte) (int, error) {
	n, err := o.TCPConn.Read(p)
	return copy(p, strings.ToUpper(string(p[:n]))), err
}

// passive is one that says it does not.
type passive struct{ own }

func (p passive) Socket() *net.TCPConn { return p.TCPConn }

// keeping is one that would, but for what it has read already.
type keeping struct{ own }

func (k keeping) Socket() *net.TCPConn { return nil }

func TestAnInflowReadsWhatComesAndHoldsNothingMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wrap func(*net.TCPConn) net.Conn
		want string
		raw  bool
	}{
		"socket":  {func(c *net.TCPConn) net.Conn { return c }, "word", true},
		"own":     {func(c *net.TCPConn) net.Conn { return own{c} }, "WORD", false},
		"passive": {func(c *net.TCPConn) net.Conn { return passive{own{c}} }, "word", true},
		"keeping": {func(c *net.TCPConn) net.Conn { return keeping{own{c}} }, "WORD", false},
	} {
		here, there := sockets(t)
		var in Inflow
		in.Init(c.wrap(here))
		for range 2 {
			_, err := there.Write([]byte("word"))
			require.NoError(t, err)
			in.Await()
			if c.raw {
				require.Nil(t, in.buf, "while it waits")
			}
			p, err := in.Next()
			require.NoError(t, err)
			require.Equal(t, c.want, string(p), name)
		}
		long := strings.Repeat("long", 100_000)
		go func() {
			_, _ = there.Write([]byte(long))
			_ = there.CloseWrite()
		}()
		n := 0
		for {
			in.Await()
			p, err := in.Next()
			n += len(p)
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
		}
		require.Equal(t, len(long), n, name)
		in.Drop()
		require.Nil(t, in.buf)
	}
}

// Where much comes, a look before each read would be a third system call for each piece.
func TestAnInflowIsNotLookedAtAfterAReadThatWasFilled(t *testing.T) {
	t.Parallel()
	here, there := sockets(t)
	var in Inflow
	in.Init(here)
	_, err := there.Write(make([]byte, SmallBuffer))
	require.NoError(t, err)
	for got := 0; got < SmallBuffer; {
		in.Await()
		p, err := in.Next()
		require.NoError(t, err)
		got += len(p)
	}
	require.False(t, in.drained)
	require.NoError(t, here.SetReadDeadline(time.Now().Add(time.Minute)))
	in.Await() // returns, although nothing has come
	require.NotNil(t, in.buf, "it has not waited")
}

func TestADeadlineEndsTheWaitOfAnInflow(t *testing.T) {
	t.Parallel()
	here, there := sockets(t)
	var in Inflow
	in.Init(here)
	waiting := make(chan error)
	go func() {
		in.Await()
		_, err := in.Next()
		waiting <- err
	}()
	require.NoError(t, here.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, <-waiting, os.ErrDeadlineExceeded)
	require.NoError(t, here.SetReadDeadline(time.Time{}))
	_, err := there.Write([]byte("x"))
	require.NoError(t, err)
	in.Await()
	p, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "x", string(p))
}

func TestAnOutflowWritesAllToASlowReaderAndGivesUpOnOneThatStops(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long", 4<<20) // more than sockets have room for
	for _, wrap := range []func(*net.TCPConn) net.Conn{
		func(c *net.TCPConn) net.Conn { return c }, func(c *net.TCPConn) net.Conn { return own{c} },
	} {
		here, there := sockets(t)
		var out Outflow
		out.Init(wrap(here), time.Minute)
		got := make(chan int64)
		go func() {
			n, _ := io.Copy(io.Discard, there)
			got <- n
		}()
		for range 2 {
			n, err := out.Write([]byte(long))
			require.NoError(t, err)
			require.Equal(t, len(long), n)
		}
		require.NoError(t, here.Close())
		require.EqualValues(t, 2*len(long), <-got)

		here, _ = sockets(t)
		out = Outflow{}
		out.Init(wrap(here), 10*time.Millisecond)
		_, err := out.Write([]byte(long))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "the pause")

		here, _ = sockets(t)
		out = Outflow{}
		out.Init(wrap(here), time.Hour)
		ended := make(chan error)
		go func() {
			_, err := out.Write([]byte(long))
			ended <- err
		}()
		out.FinishBy(time.Unix(1, 0))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded, "whatever the pause")
		_, err = out.Write([]byte("x"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "for good")
	}
}

func TestAnOutflowTellsOfAConnectionThatWasReset(t *testing.T) {
	t.Parallel()
	here, there := sockets(t)
	require.NoError(t, there.SetLinger(0))
	require.NoError(t, there.Close())
	var out Outflow
	out.Init(here, time.Minute)
	require.Eventually(t, func() bool {
		_, err := out.Write([]byte("x"))
		return err != nil
	}, 20*time.Second, time.Millisecond)
	_, err := out.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.EPIPE)
}
