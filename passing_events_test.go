package pinboard

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However an event lies in what is read at a time, and whatever has come behind it: what is
// no event yet must not hold it back.
func TestNoEventWaitsForWhatHasComeBehindIt(t *testing.T) {
	t.Parallel()
	const read = 4 << 10 // at first
	for _, detach := range []bool{false, true} {
		for _, behind := range []string{"", "\r", "\r\n", "\r\n5", "\r\n5\r\n", "\r\n0\r\n", "\r\n0\r\nX-Trailer: 1"} {
			t.Run(fmt.Sprintf("%v %q", detach, behind), func(t *testing.T) {
				t.Parallel()
				var sent string
				f := newFront(t, func(s *setup) { s.opts.DetachStreams = detach })
				f.register(newFake(t, func(h *hit) {
					h.send(sent)
					h.body()
					h.last = true
					_, _ = h.r.ReadByte() // until it is left
				}), "worker")
				for past := -1; past <= len(behind)+1; past++ { // of what was sent
					head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nf00\r\n"
					event := strings.Repeat("x", 0xf00)
					head = strings.Replace(head, "\r\n\r\n", "\r\nX-Fill: "+strings.Repeat("f", read+past-len(head+event+behind)-len("X-Fill: \r\n"))+"\r\n\r\n", 1)
					sent = head + event + behind
					require.Len(t, sent, read+past)
					c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
					require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
					_, err := io.ReadFull(c.answer("GET").Body, make([]byte, len(event)))
					require.NoError(t, err)
					require.NoError(t, c.Close())
				}
			})
		}
	}
}
