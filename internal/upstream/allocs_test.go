//go:build !race && !leakcheck

package upstream

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
)

// Not parallel: it counts what the whole process allocates. The worker allocates
// nothing.
func TestAShortExchangeAllocatesLittle(t *testing.T) {
	for name, usual := range map[string]float64{"GET": 4, "POST": 11} {
		answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\nbody")
		w := newTCPWorker(t, func(p *peer) {
			buf := make([]byte, 64<<10)
			for n := 0; ; n = 0 {
				for n == 0 || buf[0] == 'P' && !bytes.HasSuffix(buf[:n], []byte("text")) { // in two pieces
					more, err := p.Read(buf[n:])
					if err != nil {
						return
					}
					n += more
				}
				if _, err := p.Write(answer); err != nil {
					return
				}
			}
		})
		pool := w.pool()
		get, post := w.request("GET", "/"), w.post("/", "text")
		exchange := func() {
			r := get
			if name == "POST" {
				r = post
				r.Body, _ = r.Rewind()
			}
			resp, err := pool.Do(t.Context(), r)
			require.NoError(t, err)
			_, _ = resp.Next()
			resp.Close()
		}
		exchange()
		require.LessOrEqual(t, allocs.PerCall(t, exchange), usual+allocs.Margin, name)
	}
}
