package pinboard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The last of an answer is sent while the server still waits for the client's body.
func TestAClientThatDoesNotReadTheLastOfItsAnswerIsCut(t *testing.T) {
	t.Parallel()
	const last = 1000
	for size := 15 << 10; size < 16<<10+last; size += last / 2 {
		inBubble(t, Options{}, func(h *hit) {
			h.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size+last, strings.Repeat("x", size)))
			time.Sleep(time.Second)
			h.send(strings.Repeat("y", last))
			h.gone()
		}, func(t *testing.T, b *limited) {
			c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\nx")
			time.Sleep(time.Hour)
			total, _ := b.pb.limiter.requests.Use()
			require.Zero(t, total, size)
			require.NoError(t, c.Close())
			time.Sleep(time.Second)
		})
	}
}
