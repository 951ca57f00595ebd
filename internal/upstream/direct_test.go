//go:build linux

package upstream

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// direct waits until there is something to read directly.
func direct(t *testing.T, r *Response, most int64) (src io.Reader) {
	t.Helper()
	require.Eventually(t, func() bool {
		src = r.Direct(most)
		return src != nil
	}, patience, time.Millisecond)
	return src
}

func TestWhatHasComeOfALongBodyIsReadDirectly(t *testing.T) {
	t.Parallel()
	const most = 40_000
	long := strings.Repeat("long", 50_000)
	step, reset := make(chan struct{}), make(chan struct{})
	w := newTCPWorker(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + long)
		p.head() // the connection is kept
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + long)
		<-step
		_ = p.Conn.(*net.TCPConn).SetLinger(0)
		_ = p.Close()
		close(reset)
	})
	pool := w.pool()
	r, err := pool.Do(t.Context(), w.request("GET", "/"))
	require.NoError(t, err)
	require.Nil(t, r.Direct(most), "something was read with the head")
	var got strings.Builder
	piece, err := r.Next()
	require.NoError(t, err)
	got.Write(piece)
	for pieces := 0; err == nil; {
		if src := r.Direct(most); src != nil {
			n, err := io.Copy(&got, src)
			require.NoError(t, err)
			require.LessOrEqual(t, n, int64(most))
			require.GreaterOrEqual(t, n, int64(leastDirect))
			r.Passed(n)
			pieces++
			continue
		}
		piece, err = r.Next()
		got.Write(piece)
	}
	require.Equal(t, io.EOF, err)
	require.Equal(t, long, got.String())
	require.Nil(t, r.Direct(most))
	r.Close()
	requireIdle(t, pool, 1)

	r, err = pool.Do(t.Context(), w.request("GET", "/"))
	require.NoError(t, err)
	_, err = r.Next()
	require.NoError(t, err)
	src := direct(t, r, most)
	close(step)
	<-reset
	n, err := io.Copy(io.Discard, src)
	require.NoError(t, err, "what has come is there")
	require.GreaterOrEqual(t, n, int64(leastDirect))
	r.Passed(n)
	for err == nil {
		_, err = r.Next()
	}
	require.NotEqual(t, io.EOF, err)
	r.Close()
	requireIdle(t, pool, 0)
}

// What is no socket, or says more than the body, is not to be read past the answer.
func TestOnlyPlainSocketsAreReadDirectly(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n" + strings.Repeat("long", 50_000) + "\r\n0\r\n\r\n")
		})
		r, err := w.pool().Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		total := 0
		for err == nil {
			require.Nil(t, r.Direct(1<<20), "in chunks")
			var piece []byte
			piece, err = r.Next()
			total += len(piece)
		}
		require.Equal(t, io.EOF, err)
		require.Equal(t, 200_000, total)
		r.Close()
	})
	for _, start := range []func(*testing.T, func(*peer)) *worker{newMemoryWorker, newWrappedWorker, newTLSWorker} {
		w := start(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat("long", 50_000))
		})
		r, err := w.pool().Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		for err == nil {
			require.Nil(t, r.Direct(1<<20))
			_, err = r.Next()
		}
		require.Equal(t, io.EOF, err)
		r.Close()
	}
}
