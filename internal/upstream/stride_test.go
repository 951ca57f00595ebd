package upstream

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAStrideIsLongWhileMuchComesAndOneIsFree(t *testing.T) {
	t.Parallel()
	free := make(strides, 1)
	a, b := newStride(free), newStride(free)
	require.Equal(t, largeBuffer, len(a.space()))
	a.took(largeBuffer-1, quick)
	require.Equal(t, largeBuffer, len(a.space()), "it was not filled")
	a.took(largeBuffer, quick)
	require.Equal(t, longStride, len(a.space()))
	b.took(largeBuffer, quick)
	require.Equal(t, largeBuffer, len(b.space()), "there is none for it")
	a.took(largeBuffer+1, quick)
	require.Equal(t, longStride, len(a.space()))
	a.took(largeBuffer, quick)
	require.Equal(t, largeBuffer, len(a.space()))
	b.took(largeBuffer, quick+1)
	require.Equal(t, largeBuffer, len(b.space()), "it came slowly")
	b.took(largeBuffer, quick)
	require.Equal(t, longStride, len(b.space()))
	b.took(longStride, quick+1)
	require.Equal(t, largeBuffer, len(b.space()))
	b.took(largeBuffer, quick)
	require.Equal(t, longStride, len(b.space()))
	a.put()
	b.put()
	require.Empty(t, free)
}

func TestEveryBodyGivesItsStrideBack(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	var numbers strings.Builder
	for i := 0; numbers.Len() < size; i++ {
		numbers.WriteString(strconv.Itoa(i) + " ")
	}
	long := numbers.String()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			if p.n == 0 {
				echo(p)
				return
			}
			p.head()
			_, _ = io.ReadFull(p.r, make([]byte, size/2))
		})
		pool := w.pool()
		g, err := do(t.Context(), pool, w.post("/", long))
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(g.body, long), "it came as it was sent")
		for _, body := range []io.Reader{strings.NewReader(long), io.MultiReader(strings.NewReader(long[:size/2]), iotest.ErrReader(errors.New("broken")))} {
			r := w.post("/", long)
			r.Body = body
			pool.CloseIdle()
			_, err = do(t.Context(), pool, r)
			require.Error(t, err)
		}
		require.Eventually(t, func() bool { return len(pool.strides) == 0 }, patience, time.Millisecond)
	})
}

// However long the stride is, what the worker is slow to read waits in pieces, and whoever
// bounds the worker's time hears of each.
func TestProgressIsToldWhileAWorkerIsSlowToRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size, pause = 1 << 20, 3 * time.Second
		w := newMemoryWorker(t, func(p *peer) {
			p.head()
			for left := size; left > 0; left -= largeBuffer {
				time.Sleep(pause - time.Second)
				_, _ = io.ReadFull(p.r, make([]byte, min(left, largeBuffer)))
			}
			p.ok("")
		})
		r := w.post("/", strings.Repeat("x", size))
		last, longest := time.Now(), time.Duration(0)
		r.Progress = func() {
			longest = max(longest, time.Since(last))
			last = time.Now()
		}
		_, err := do(t.Context(), w.pool(func(c *Config) { c.WritePause = pause }), r)
		require.NoError(t, err)
		require.Positive(t, longest)
		require.LessOrEqual(t, longest, pause)
	})
}

// A write that finds room goes without a deadline, and so none may be left over from one
// that had to wait.
func TestNoDeadlineIsLeftOfAPieceThatWaited(t *testing.T) {
	t.Parallel()
	const pause = 2 * time.Second
	w := newTCPWorker(t, func(p *peer) { _, _ = io.Copy(io.Discard, p.r) })
	raw, err := w.dial(t.Context())
	require.NoError(t, err)
	require.NoError(t, raw.(*net.TCPConn).SetWriteBuffer(1<<10))
	c := newConn(raw, nil, pause)
	defer func() { _ = c.Close() }()
	require.True(t, c.plain())
	waited := 0
	require.NoError(t, c.write(make([]byte, 4<<20), func() { waited++ }))
	require.Positive(t, waited)
	<-time.After(pause)
	require.NoError(t, c.write([]byte("x"), nil))
}
