package upstream

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server that a request comes from may go on after a panic, so the connections of
// others must not become fewer.
func TestAPanicOfACallbackCostsNoTurn(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		w := start(t, func(p *peer) {
			for p.head() != "" {
				p.send("HTTP/1.1 103 Early Hints\r\n\r\n")
				p.ok("")
			}
		})
		fails := true
		pool := w.pool(func(c *Config) {
			dial := c.Dial
			c.MaxPerOrigin = 1
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if fails {
					panic("planted")
				}
				return dial(ctx, network, addr)
			}
		})
		r := w.request("GET", "/")
		r.Inform = func(int, Header) error {
			if fails {
				panic("planted")
			}
			return nil
		}
		require.PanicsWithValue(t, "planted", func() { _, _ = pool.Do(t.Context(), r) })
		requireUnused(t, pool)
		for _, fails = range []bool{false, true, false} {
			if fails {
				require.PanicsWithValue(t, "planted", func() { _, _ = pool.Do(t.Context(), r) })
				requireUnused(t, pool)
				continue
			}
			g, err := do(t.Context(), pool, r)
			require.NoError(t, err)
			require.NoError(t, g.err)
			requireIdle(t, pool, 1)
		}
	})
}
