package worker

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// slowly are middlewares that keep a request, or its answer, until thaw is closed.
func slowly(thaw chan struct{}) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/own":
				<-thaw
				writes(w)
			case "/empty":
				<-thaw
			case "/own-half":
				writes(w)
				<-thaw
			case "/before":
				<-thaw
				next.ServeHTTP(w, r)
			case "/after":
				kept := httptest.NewRecorder()
				next.ServeHTTP(kept, r)
				<-thaw
				_, _ = w.Write(kept.Body.Bytes())
			default:
				next.ServeHTTP(w, r)
				<-thaw
			}
		})
	}
}

// Past the lease, a middleware's answer counts no more than an instance's. What
// the instance has not seen may be sent to the next owner.
func TestNoMiddlewareAnswersPastTheLease(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"past the lease": true, "just not past the lease": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				thaw := make(chan struct{})
				h := newHarness(t, Options{}, nil)
				require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: slowly(thaw)}, serving(frozenAnswers)))
				h.start()
				client := h.network()
				got, done := map[string]*answered{}, map[string]chan struct{}{}
				for _, path := range []string{"/own", "/empty", "/own-half", "/before", "/after", "/written", "/stream", "/hijack"} {
					got[path], done[path] = ask(client, h.outgoing(t.Context(), "/c/1"+path))
				}
				synctest.Wait()
				left := 15 * time.Second
				if !late {
					left--
				}
				h.step(left, left)
				close(thaw)
				for path, done := range done {
					<-done
					got := got[path]
					seen := path != "/own" && path != "/empty" && path != "/before"
					switch {
					case !late, path == "/stream", path == "/hijack":
						require.True(t, got.whole(), "%s: %v", path, got)
					case path == "/own-half", path == "/written":
						require.Error(t, got.err, path)
					case seen:
						require.Equal(t, http.StatusServiceUnavailable, got.status, path)
						require.Empty(t, got.header.Get(wire.HeaderRefusal), path)
					default:
						require.Equal(t, http.StatusServiceUnavailable, got.status, path)
						require.Equal(t, wire.RefusalExpired, got.header.Get(wire.HeaderRefusal), path)
					}
				}
				h.stop()
			})
		})
	}
}

func frozenAnswers(_ *Instance, w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/hijack":
		hijacks(w)
	case "/stream":
		writes(w)
		_ = http.NewResponseController(w).Flush()
	default:
		writes(w)
	}
}
