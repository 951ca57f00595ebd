package pinboard

import (
	"bytes"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// heap returns what is live.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools give up what they hold only now
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) + int64(m.StackInuse)
}

// Not parallel: it measures the heap.
func TestTheMemoryOfManyConnectionsComesBack(t *testing.T) {
	const each = 300
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{Requests: 2 * each, RequestsPerAddress: 3 * each, RequestsPerID: 2 * each}
	})
	w := newFake(t, func(h *hit) {
		switch {
		case h.header.Get("Upgrade") != "":
			h.echo()
		case h.target == "/counters/sse":
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n")
			h.gone()
		default:
			h.ok("")
		}
	})
	f.register(w, "a")
	forget := func() { // what the worker has recorded
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hits = nil
		w.raw = bytes.Buffer{}
	}
	f.get("/counters/sse/quick")
	forget()
	before, goroutines := heap(), runtime.NumGoroutine()
	var open []*client
	for i := range each {
		idle := f.ask("GET /counters/idle" + strconv.Itoa(i) + " HTTP/1.1\r\nHost: p\r\n\r\n")
		resp, _ := idle.whole("GET")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		sse := f.ask("GET /counters/sse HTTP/1.1\r\nHost: p\r\n\r\n")
		require.Equal(t, http.StatusOK, sse.answer("GET").StatusCode)
		ws := f.ask(upgradeRequest("/counters/ws"))
		require.Equal(t, http.StatusSwitchingProtocols, ws.answer("GET").StatusCode)
		ws.send("x")
		ws.expect("x")
		open = append(open, idle, sse, ws)
	}
	resp, _ := f.get("/counters/full")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	const least = 3 * each * 10 << 10 // 10 KiB for each
	require.Greater(t, heap()-before, int64(least))
	for _, c := range open {
		require.NoError(t, c.Close())
	}
	open = nil
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+10 }, patience, 10*time.Millisecond)
	forget()
	require.Eventually(t, func() bool { return heap()-before < least/2 }, patience, 10*time.Millisecond)
	resp, _ = f.get("/counters/full")
	require.Equal(t, http.StatusOK, resp.StatusCode)
}
