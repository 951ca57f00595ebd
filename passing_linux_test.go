package pinboard

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pinboard-go/pinboard/internal/upstream"
)

// noted is a recipient that notes what is asked of it.
type noted struct {
	got     strings.Builder
	flushes int    // since the last write
	early   int    // flushes that were followed by a write
	first   func() // called before the first write
}

func (n *noted) write(p []byte) error {
	if n.got.Len() == 0 {
		n.first()
	}
	n.early += n.flushes
	n.flushes = 0
	n.got.Write(p)
	return nil
}

func (n *noted) flush() error {
	n.flushes++
	return nil
}

func (*noted) finishBy(time.Time) {}

// Chunks that are there go together, so that the end of one is no packet of its own; and
// what was held back for that is sent when nothing more comes.
func TestNothingIsFlushedWhileMoreHasCome(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	const first, then = 4 << 10, 32 << 10 // what is read at a time
	whole := head + strings.Repeat("2000\r\n"+strings.Repeat("x", 8<<10)+"\r\n", 7) + "0\r\n\r\n"
	for name, sent := range map[string]string{"whole": whole, "broken off": whole[:first+then]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = listener.Close() }()
			go func() {
				conn, err := listener.Accept()
				if err == nil {
					_, _ = http.ReadRequest(bufio.NewReader(conn))
					_, _ = io.WriteString(conn, sent)
					_ = conn.Close()
				}
			}()
			var conn *net.TCPConn
			pool := upstream.New(upstream.Config{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				raw, err := (&net.Dialer{}).DialContext(ctx, network, listener.Addr().String())
				if err == nil {
					conn = raw.(*net.TCPConn)
				}
				return raw, err
			}})
			to := &noted{first: func() { arrives(t, conn, len(sent)-first) }}
			resp, err := pool.Do(t.Context(), &upstream.Request{Origin: upstream.ParseOrigin("http://worker"), Method: http.MethodGet, Target: "/"})
			require.NoError(t, err)
			defer resp.Close()
			p := passing{to: to, resp: resp}
			over := false
			for !over {
				over, err = p.round()
			}
			require.Zero(t, to.early)
			if sent == whole {
				require.NoError(t, err)
				require.Equal(t, 7*8<<10, to.got.Len())
				return
			}
			require.Error(t, err)
			require.Equal(t, strings.Count(sent, "x"), to.got.Len())
			require.Positive(t, to.flushes)
		})
	}
}

// arrives waits until so many bytes are there to be read, and the end.
func arrives(t *testing.T, conn *net.TCPConn, n int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var there int
		var state *unix.TCPInfo
		_ = raw.Control(func(fd uintptr) {
			there, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			state, _ = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		return there >= n && state != nil && state.State != unix.BPF_TCP_ESTABLISHED
	}, patience, time.Millisecond)
}
