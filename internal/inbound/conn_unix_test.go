//go:build unix

package inbound

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drained reports whether all that has come was read.
func (c *Conn) drained() (all bool) {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		var one [1]byte
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		all = err == syscall.EAGAIN
	})
	return all
}

// The server may have room for just one byte more, and wants to know nothing of a client
// that leaves.
func TestAReadOfOneByteIsMadeAgainAndWaits(t *testing.T) {
	t.Parallel()
	client, c := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, len(r.URL.Path)) })
	from := bufio.NewReader(client)
	const most = 4096 // of the server's buffer
	path := "/" + strings.Repeat("x", most-6)
	for range 2 {
		send(t, client, "GET "+path)
		require.Eventually(t, c.drained, patience, often)
		send(t, client, " HTTP/1.1\r\nHost: p\r\n\r\n")
		expect(t, from, fmt.Sprint(len(path)))
	}
}

func TestQuickRequestsSetNoDeadlinesAndLookForNobody(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	l := listen(t)
	count := func(apply func(time.Time) error) func(time.Time) error {
		return func(at time.Time) error {
			set.Add(1)
			return apply(at)
		}
	}
	server := &http.Server{
		ReadHeaderTimeout: patience, IdleTimeout: 2 * patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(w, "done")
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			c := conn.(*Conn)
			c.in.apply, c.out.apply = count(c.in.apply), count(c.out.apply)
			return c.Context(ctx)
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	client := dial(t, l)
	from := bufio.NewReader(client)
	for range 100 {
		send(t, client, get)
		expect(t, from, "done")
	}
	// The one for the first head, and what a request that was held up for 5 ms may take.
	require.Less(t, set.Load(), int64(50), "of seven hundred")
	require.NoError(t, server.Close())
	<-done
	require.Equal(t, int64(1), l.closed.Load(), "each connection is closed once")
}
