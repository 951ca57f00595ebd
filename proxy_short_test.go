package pinboard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A short body is sent with its head, however it comes; a worker hears nothing of
// the request before.
func TestAShortBodyIsSentWithItsHead(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	for _, size := range []int{1, 2000, 2100, 4096, shortBody, shortBody + 1} {
		body := strings.Repeat("b", size)
		resp, got := f.post("/counters/alice", body)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.True(t, body == got, "%d bytes", size)
	}
	seen := len(w.seen())
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 8\r\nConnection: close\r\n\r\n")
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 1 }, patience, time.Millisecond)
	require.Len(t, w.seen(), seen)
	c.send("in ")
	c.send("parts")
	_, got := c.whole("POST")
	require.Equal(t, "in parts", got)
}

func TestAShortBodyGoesToTheSecondWorkerToo(t *testing.T) {
	t.Parallel()
	f, _, b, _, _ := pair(t, func(h *hit) { h.body(); h.refuse() }, func(h *hit) { h.ok(h.body()) })
	resp, got := f.post("/counters/alice", "short")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "short", got)
	b.only()
}

// Nobody is bothered with a body that does not come.
func TestAShortBodyThatDoesNotComeReachesNobody(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) { s.opts.Limits.BodyPause = 100 * time.Millisecond })
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 8\r\n\r\n")
	resp, _ := c.whole("POST")
	require.Equal(t, http.StatusRequestTimeout, resp.StatusCode)
	require.Empty(t, w.seen())

	c = f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 8\r\n\r\n")
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 1 }, patience, time.Millisecond)
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == 0 }, patience, time.Millisecond)
	require.Empty(t, w.seen())
}
