//go:build linux

package hop

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// heard counts what a Lookout tells.
type heard struct {
	mu    sync.Mutex
	times int
	ended bool
}

func (h *heard) Told(ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times++
	h.ended = h.ended || ended
}

func (h *heard) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.times
}

func (h *heard) await(t *testing.T, what string, met func() bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return met()
	}, 20*time.Second, time.Millisecond, what)
}

func TestALookoutTellsOfWhatComesAndOfTheEnd(t *testing.T) {
	t.Parallel()
	var l Lookout
	here, there := sockets(t)
	other, silent := sockets(t)
	_, err := there.Write([]byte("early"))
	require.NoError(t, err)
	var h, nobody heard
	w := l.Watch(here, &h)
	require.NotNil(t, w)
	quiet := l.Watch(other, &nobody)
	h.await(t, "what was there", func() bool { return h.times > 0 })
	require.False(t, h.ended)
	for range 3 { // also while nobody has read what came before
		before := h.count()
		_, err := there.Write([]byte("more"))
		require.NoError(t, err)
		h.await(t, "more", func() bool { return h.times > before })
	}
	require.NoError(t, there.CloseWrite())
	h.await(t, "the end", func() bool { return h.ended })
	p, err := io.ReadAll(here)
	require.NoError(t, err)
	require.Equal(t, "earlymoremoremore", string(p), "it takes nothing away")

	w.End()
	before := h.count()
	require.NoError(t, there.Close())
	_, err = silent.Write([]byte("x"))
	require.NoError(t, err)
	nobody.await(t, "the other one", func() bool { return nobody.times > 0 })
	require.Equal(t, before, h.count(), "nobody is told after the end")
	quiet.End()
	require.Nil(t, l.current, "there is nothing while nothing is watched")
}

// The number of a closed socket is soon that of another one.
func TestTheEndOfAClosedConnectionIsNotThatOfTheNextOne(t *testing.T) {
	t.Parallel()
	var l Lookout
	for range 50 { // some of which get the number again
		here, there := sockets(t)
		var first, next heard
		w := l.Watch(here, &first)
		require.NoError(t, here.Close())
		require.NoError(t, there.Close())
		here, there = sockets(t)
		again := l.Watch(here, &next)
		w.End()
		_, err := there.Write([]byte("x"))
		require.NoError(t, err)
		next.await(t, "what comes by the next one", func() bool { return next.times > 0 })
		again.End()
		require.NoError(t, here.Close())
		require.NoError(t, there.Close())
	}
}

func TestALookoutWatchesOnlySockets(t *testing.T) {
	t.Parallel()
	var l Lookout
	pipe, end := net.Pipe()
	defer func() { _ = pipe.Close(); _ = end.Close() }()
	here, _ := sockets(t)
	require.Nil(t, l.Watch(pipe, &heard{}))
	require.Nil(t, l.Watch(own{here}, &heard{}), "of a host's that reads in a way of its own")
	require.Nil(t, l.Watch(keeping{own{here}}, &heard{}))
	w := l.Watch(passive{own{here}}, &heard{})
	require.NotNil(t, w)
	w.End()
	require.NoError(t, here.Close())
	require.Nil(t, l.Watch(here, &heard{}), "closed")
	require.Nil(t, l.current)
	(*Watched)(nil).End()
}

func TestConnectionsAreWatchedAndGivenUpAtTheSameTime(t *testing.T) {
	t.Parallel()
	var l Lookout
	var group sync.WaitGroup
	for range 8 {
		here, there := sockets(t)
		group.Go(func() {
			for range 100 {
				var h heard
				w := l.Watch(here, &h)
				_, _ = there.Write([]byte("x"))
				var one [1]byte
				_, _ = here.Read(one[:])
				w.End()
			}
		})
	}
	group.Wait()
	require.Nil(t, l.current)
}

func TestAnInflowThatIsPolledHoldsNothingAndReadsNothingInVain(t *testing.T) {
	t.Parallel()
	here, there := sockets(t)
	var in Inflow
	in.Init(here)
	require.False(t, in.Poll(true))
	require.Nil(t, in.buf)
	_, err := there.Write([]byte("word"))
	require.NoError(t, err)
	require.False(t, in.Poll(false), "it knows of nothing")
	require.Eventually(t, func() bool { return in.Poll(true) }, 20*time.Second, time.Millisecond)
	require.True(t, in.Poll(true), "nobody took it")
	p, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, "word", string(p))
	_, err = there.Write([]byte("more"))
	require.NoError(t, err)
	require.False(t, in.Poll(false), "the last read took all")
	require.Nil(t, in.buf)
	require.NoError(t, there.CloseWrite())
	require.Eventually(t, func() bool { return in.Poll(true) }, 20*time.Second, time.Millisecond)
	p, err = in.Next()
	require.NoError(t, err)
	require.Equal(t, "more", string(p))
	require.Eventually(t, func() bool { return in.Poll(true) }, 20*time.Second, time.Millisecond)
	_, err = in.Next()
	require.Equal(t, io.EOF, err)

	require.NoError(t, here.SetReadDeadline(time.Unix(1, 0)))
	require.True(t, in.Poll(true))
	_, err = in.Next()
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, here.Close())
	require.True(t, in.Poll(true))
	_, err = in.Next()
	require.ErrorIs(t, err, net.ErrClosed)
}
