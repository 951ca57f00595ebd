package pinboard

import (
	"io"
	"net/http"
	"net/http/httptest"
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
