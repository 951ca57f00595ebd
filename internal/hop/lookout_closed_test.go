//go:build linux

package hop

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The host's code may close a connection that it has once accepted, and epoll says
// nothing of what is closed here.
func TestALookoutTellsOfAConnectionThatWasClosedHere(t *testing.T) {
	t.Parallel()
	l := Lookout{lookout{every: time.Millisecond}}
	closed, _ := sockets(t)
	late, _ := sockets(t)
	open, _ := sockets(t)
	var c, d, quiet heard
	watched := []*Watched{l.Watch(closed, &c), l.Watch(late, &d), l.Watch(open, &quiet)}
	require.NoError(t, closed.Close())
	require.NoError(t, late.SetReadDeadline(time.Unix(1, 0)))
	c.await(t, "the closed one", func() bool { return c.ended })
	d.await(t, "the one whose time is over", func() bool { return d.ended })
	again := d.count()
	d.await(t, "it is told again", func() bool { return d.times > again })
	for _, w := range watched {
		w.End()
	}
	require.Zero(t, quiet.count())
	require.Nil(t, l.current)
}

func TestAClosedConnectionIsToldOfWhenTheNextOneHasItsNumber(t *testing.T) {
	t.Parallel()
	var l Lookout
	here, _ := sockets(t)
	other, _ := sockets(t)
	var first, next heard
	w := l.Watch(other, &next)
	raw, err := here.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		w.set.mu.Lock()
		defer w.set.mu.Unlock()
		w.set.byFD[int32(fd)] = &Watched{told: &first}
	}))
	again := l.Watch(here, &next)
	require.Equal(t, 1, first.count())
	again.End()
	w.End()
	require.Zero(t, next.count())
}

// A read ends at a byte of urgent data, whatever comes after it.
func TestWhatComesAfterUrgentDataIsNotMissed(t *testing.T) {
	t.Parallel()
	var l Lookout
	here, there := sockets(t)
	var h heard
	w := l.Watch(here, &h)
	defer w.End()
	raw, err := there.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		_, err = syscall.Write(int(fd), []byte("before"))
		require.NoError(t, err)
		require.NoError(t, syscall.Sendto(int(fd), []byte("!"), syscall.MSG_OOB, nil))
		_, err = syscall.Write(int(fd), []byte("after"))
		require.NoError(t, err)
	}))
	var in Inflow
	in.Init(here)
	h.await(t, "that there is something", func() bool { return h.times > 0 })
	require.True(t, in.Poll(true))
	p, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "before", string(p))
	h.await(t, "that one look may not be enough", func() bool { return h.ended })
	require.Eventually(t, func() bool { return in.Poll(true) }, 20*time.Second, time.Millisecond)
	p, err = in.Next()
	require.NoError(t, err)
	require.Equal(t, "after", string(p))
}
