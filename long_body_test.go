package pinboard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Much of a body that comes fast is read at a time. A worker that reads it slowly still has
// the time for its answer from when it last got some.
func TestAWorkerThatReadsALongBodySlowlyIsWaitedFor(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{AnswerTimeout: 30 * time.Second}, func(h *hit) {
		for range mib / (32 * kib) {
			time.Sleep(29 * time.Second)
			_, err := io.CopyN(io.Discard, h.r, 32*kib)
			if err != nil {
				return
			}
		}
		h.ok("read")
	}, func(t *testing.T, b *limited) {
		// Not by a connection, which would have room for little at a time here.
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/counters/alice", strings.NewReader(strings.Repeat("x", mib)))
		rec := httptest.NewRecorder()
		b.pb.ServeHTTP(rec, r)
		require.Equal(t, http.StatusOK, rec.Code)
		require.Equal(t, "read", rec.Body.String())
	})
}

// The server's reads of a body in chunks end when they are full, or the chunk is over: one
// that reads much at a time would hold back what comes slowly, and take it for a pause.
func TestALongChunkThatComesSlowlyIsPassedOnAsItComes(t *testing.T) {
	t.Parallel()
	const piece = 8 * kib
	for _, fast := range []int{0, mib / 2} {
		inLimits(t, Limits{BodyPause: 10 * time.Second}, func(h *hit) {
			body, last := httputil.NewChunkedReader(h.r), time.Now()
			for left := mib; left > 0; left -= piece {
				_, err := io.CopyN(io.Discard, body, piece)
				if err != nil || time.Since(last) > 9*time.Second {
					h.reply(http.StatusInsufficientStorage, time.Since(last).String())
					return
				}
				last = time.Now()
			}
			_, _ = io.Copy(io.Discard, body)
			_, _ = h.r.ReadString('\n') // it ends with an empty line
			h.ok("read")
		}, func(t *testing.T, b *limited) {
			c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n" + strings.Repeat("x", fast))
			for range (mib - fast) / piece {
				c.send(strings.Repeat("x", piece))
				time.Sleep(time.Second) // virtual time
			}
			c.send("\r\n0\r\n\r\n")
			resp, body := c.whole("POST")
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Equal(t, "read", body)
		})
	}
}
