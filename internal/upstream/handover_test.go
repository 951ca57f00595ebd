package upstream

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A WebSocket may get older than a write of the request that began it, or of one
// before on the same connection, could take.
func TestAConnectionThatIsHandedOverHasNoDeadlineLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMemoryWorker(t, func(p *peer) {
			head := p.head()
			_, _, _ = p.body(head)
			p.ok("")
			p.head()
			p.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.CopyN(p, p.r, 5)
		})
		pool := w.pool(func(c *Config) { c.WritePause = time.Minute })
		_, err := do(t.Context(), pool, w.post("/", "body"))
		require.NoError(t, err)
		req := w.request("GET", "/")
		req.Switch = true
		resp, err := pool.Do(t.Context(), req)
		require.NoError(t, err)
		defer resp.Close()
		conn, _ := resp.Conn()
		time.Sleep(time.Hour)
		_, err = io.WriteString(conn, "hello")
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = io.ReadFull(conn, got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		require.Equal(t, 1, w.connections())
	})
}
