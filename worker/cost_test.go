package worker

import (
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
)

// Not parallel: it measures the whole process. The application's part is
// nothing: all instances have one handler. Requests are as long as they may be
// with a long query, of which nothing must stay.
func TestAnIdleInstanceTakesLittle(t *testing.T) {
	const instances, most = 20_000, 1400 // bytes: 2,000 are allowed
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	w, stop := bareWorker(t, Options{MaxInstances: 2 * instances}, func(*Instance) (http.Handler, error) { return handler, nil })
	defer stop()
	like := browserRequest(t, w, "/c/any", attest.Claims{})
	activate := func(i int) {
		line := fmt.Sprintf("/c/thread-%08d/messages?%s", i, strings.Repeat("q", 1000))
		r := like.WithContext(like.Context())
		r.URL, r.RequestURI = &url.URL{Path: line[:len("/c/thread-00000000/messages")]}, line // a part of it, as servers have it
		w.ServeHTTP(&sink{header: http.Header{}}, r)
	}
	activate(0)
	before, goroutines := used(), runtime.NumGoroutine()
	for i := range instances {
		activate(1 + i)
	}
	require.Equal(t, instances+1, w.dir.remaining())
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines+5, "none for an instance")
	each := (used() - before) / instances
	require.LessOrEqual(t, each, most)
	require.Greater(t, each, 500, "else it does not measure what it is meant to")
	runtime.KeepAlive(w)
}

// used returns the bytes of the heap and of stacks that are in use.
func used() int {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// However many instances are idle, time passes without a look at any, and a
// request is a look at its own one; the one that is due is one look.
func TestOnlyTheInstanceThatIsDueIsLookedAt(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{IdleTimeout: time.Hour}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		due := h.w.dir.timetable.expired
		var rounds atomic.Int64
		h.w.dir.timetable.expired = func() {
			rounds.Add(1)
			due()
		}
		const instances = 500
		for i := range instances {
			require.Equal(t, http.StatusOK, h.get(fmt.Sprintf("/c/%d", i)).Code)
			h.after(time.Second)
		}
		h.after(50 * time.Minute) // a thousand heartbeats
		for range 100 {
			h.get("/c/17") // keeps its place in the timetable
		}
		require.Zero(t, rounds.Load())
		h.after(10*time.Minute - instances*time.Second - time.Second/2) // half a second before the first one is due
		for i := range 20 {
			h.after(time.Second)
			require.EqualValues(t, i+1, rounds.Load(), "one timer, one instance")
			gone := i + 1
			if i >= 17 {
				gone-- // looked at, and it was used since
			}
			require.Equal(t, instances-gone, h.w.dir.remaining())
		}
	})
}

// A request is in the middle of all others: whatever it looks through is in
// their way.
func TestARequestForgetsAFewFencesAtMost(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		const old = 1000
		h.w.dir.mu.Lock()
		for i := range old {
			h.w.dir.fences.giveUp(key{"/c", fmt.Sprint("old-", i)}, 1, h.now().mono)
		}
		h.w.dir.mu.Unlock()
		h.after(time.Minute)
		for i := range 3 {
			r := h.request(http.MethodGet, "/c/1")
			h.do(r)
			h.w.dir.mu.Lock()
			left := len(h.w.dir.fences.byID)
			h.w.dir.mu.Unlock()
			require.Equal(t, old+1-(i+1)*2, left)
		}
		synctest.Wait()
	})
}
