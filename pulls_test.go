package pinboard

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shallow has little room for what its client does not read, and notes how many have
// the kernel pass something on at once.
type shallow struct {
	*net.TCPConn
	now, most *atomic.Int64
}

func (s shallow) ReadFrom(r io.Reader) (int64, error) {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	return s.TCPConn.ReadFrom(r)
}

type shallowListener struct {
	net.Listener
	now, most atomic.Int64
}

func (l *shallowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
	return shallow{conn.(*net.TCPConn), &l.now, &l.most}, nil
}

// A pull holds two files for as long as its client does not read.
func TestThereAreOnlySoManyPullsAtOnce(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // there are none
	}
	const most, clients = 2, 6
	f := newFront(t)
	f.pb.proxy.pulls = make(pulls, most)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := &shallowListener{Listener: inner}
	server := &http.Server{Handler: f.server.Handler}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	f.addr = inner.Addr().String()
	f.register(newFake(t, sends), "a")
	begun := make([]*http.Response, clients)
	for i := range begun {
		c := f.dial()
		require.NoError(t, c.Conn.(*net.TCPConn).SetReadBuffer(16<<10))
		c.send("GET /counters/2000000 HTTP/1.1\r\nHost: p\r\n\r\n")
		begun[i] = c.answer("GET")
	}
	require.Eventually(t, func() bool { return listener.now.Load() == most }, patience, time.Millisecond, "they do not read")
	var group sync.WaitGroup
	for _, resp := range begun {
		group.Go(func() {
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.True(t, bytes.Equal(long(2_000_000), body))
		})
	}
	group.Wait()
	require.EqualValues(t, most, listener.most.Load())
	f.quiet()
	require.Empty(t, f.pb.proxy.pulls, "all are given back")
}
