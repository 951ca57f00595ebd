package worker

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// countedClock counts how often it is read.
type countedClock struct {
	read  atomic.Int64
	ahead atomic.Int64 // of the system's, a time.Duration on both clocks
}

func (c *countedClock) now() instant {
	defer c.read.Add(1) // when it is over
	return systemClock().add(time.Duration(c.ahead.Load()))
}

// clockedWorker is a registered worker with a clock that counts, in a bubble: what
// goes on beside a request waits there until all else has come to rest.
func clockedWorker(t *testing.T, hosted HostOptions, construct Constructor) (*Worker, *countedClock) {
	t.Helper()
	c := &countedClock{}
	pb := &fakePinboard{began: time.Now()}
	opts := Options{
		PinboardURL: "http://pinboard:8080", Token: "t", AdvertiseURL: "http://worker:8000", Transport: pb,
		LeaseTTL: time.Hour, HeartbeatInterval: 10 * time.Minute,
	}
	pb.script = func(call) (reply, bool) {
		return reply{status: http.StatusOK, body: object{"sessionId": "session-1", "expiresInMs": time.Hour.Milliseconds()}}, true
	}
	w, err := build(opts, none, c.now, func() float64 { return 1 })
	require.NoError(t, err)
	require.NoError(t, w.HostWith("/c", hosted, construct))
	require.NoError(t, w.Start())
	require.NoError(t, w.AwaitReady(t.Context()))
	t.Cleanup(func() { require.NoError(t, w.Shutdown(context.Background())) })
	synctest.Wait() // the registration reads them once more
	return w, c
}

// The lease is asked where a request is let in, where its answer begins and where
// it ends, each time by a reading of its own. Nothing else needs one.
func TestARequestReadsTheClocksThreeTimes(t *testing.T) {
	t.Parallel()
	handler := serving(func(_ *Instance, rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/writes":
			_, _ = io.WriteString(rw, "hello")
		case "/streams":
			_ = http.NewResponseController(rw).Flush()
		}
	})
	passes := HostOptions{Middleware: func(next http.Handler) http.Handler { return next }}
	for name, c := range map[string]struct {
		hosted HostOptions
		path   string
		want   int64
	}{
		"an answer":             {HostOptions{}, "/writes", 3},
		"an empty answer":       {HostOptions{}, "/", 2}, // it begins where it ends
		"behind a middleware":   {passes, "/writes", 8},  // its answer is looked at as well
		"an answer to a stream": {HostOptions{}, "/streams", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, clock := clockedWorker(t, c.hosted, handler)
				ask := func() int64 {
					r := browserRequest(t, w, "/c/1"+c.path, attest.Claims{})
					before := clock.read.Load()
					w.ServeHTTP(&flushing{sink{header: http.Header{}}}, r)
					return clock.read.Load() - before
				}
				ask()
				synctest.Wait()
				require.Equal(t, c.want, ask())
			})
		})
	}
}

type flushing struct{ sink }

func (*flushing) Flush() {}

// A request that had to wait for the lock is let in by a reading that was made
// behind it, not by the one from before.
func TestARequestThatWaitsToBeLetInIsAskedAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := 0
		w, clock := clockedWorker(t, HostOptions{}, serving(func(*Instance, http.ResponseWriter, *http.Request) { seen++ }))
		r := browserRequest(t, w, "/c/1", attest.Claims{})
		w.ServeHTTP(&sink{header: http.Header{}}, r)
		synctest.Wait()
		w.dir.mu.Lock()
		read, rw, done := clock.read.Load(), &sink{header: http.Header{}}, make(chan struct{})
		go func() {
			defer close(done)
			w.ServeHTTP(rw, r)
		}()
		for clock.read.Load() == read { // for its attestation; then it goes on to the lock
			runtime.Gosched()
		}
		clock.ahead.Store(int64(2 * time.Hour))
		w.dir.mu.Unlock()
		<-done
		clock.ahead.Store(0)
		require.Equal(t, []string{wire.RefusalExpired}, rw.header[wire.HeaderRefusal])
		require.Equal(t, 1, seen)
	})
}
