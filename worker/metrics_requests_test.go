package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestMetricsOfRequests(t *testing.T) {
	t.Parallel()
	failed := func(transport string) string {
		return "pinned_request_failures_total{phase=construct,transport=" + transport + "}"
	}
	upgrade := func(h *harness) {
		r := h.request(http.MethodGet, "/c/1")
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "WebSocket")
		h.do(r)
	}
	failing := func(*Instance) (http.Handler, error) { return nil, errors.New("no store") }
	runMeterCases(t, map[string]meterCase{
		"a constructor that fails": {
			host: failing, before: (*harness).start,
			event: func(h *harness) { h.get("/c/1") },
			want:  series{failed("http"): 1, requests: 1},
		},
		"a constructor that fails a WebSocket": {
			host: failing, before: (*harness).start, event: upgrade,
			want: series{failed("websocket"): 1, requests: 1},
		},
		"a constructor that panics under two requests": {
			host:   func(*Instance) (http.Handler, error) { <-time.After(time.Second); panic("mine") },
			before: (*harness).start,
			event: func(h *harness) {
				a, b := h.beginGet("/c/1"), h.beginGet("/c/1")
				<-a.done
				<-b.done
			},
			want: series{failed("http"): 2, requests: 2, seconds: 2},
		},
		"a handler that panics": {
			host:   serving(func(*Instance, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			before: (*harness).start,
			event: func(h *harness) {
				require.Panics(h.t, func() { h.get("/c/1") })
			},
			want: series{activations: 1, active: 1, requests: 1},
		},
		"refused while draining": {
			before: func(h *harness) {
				h.start()
				h.w.dir.setDrain(ownDrain, drain{on: true})
			},
			event: func(h *harness) { refused(h.t, h.get("/c/1"), wire.RefusalDraining) },
			want:  series{requests: 1},
		},
		"a wait for the constructor counts": {
			host:   func(inst *Instance) (http.Handler, error) { <-time.After(2 * time.Second); return echo(inst) },
			before: (*harness).start,
			event:  func(h *harness) { h.get("/c/1") },
			want:   series{activations: 1, active: 1, requests: 1, seconds: 2},
		},
		"what is not for an instance": {
			before: (*harness).start,
			event: func(h *harness) {
				r := h.request(http.MethodGet, "/c/1")
				r.Header.Del(wire.HeaderAttestation)
				require.Equal(h.t, http.StatusForbidden, h.do(r).Code)
				require.Equal(h.t, http.StatusNotFound, h.get("/nobody/1").Code)
				require.Equal(h.t, http.StatusBadRequest, h.get("/c/a+b").Code)
				require.Equal(h.t, http.StatusOK, h.get(pathReady).Code)
			},
			want: series{},
		},
	})
}

func TestWhatAMiddlewareAnswersIsMeasuredToo(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	inBubble(t, opts, nil, func(t *testing.T, h *harness) {
		deny := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				<-time.After(time.Second)
				if r.URL.Path == "/denied" {
					http.Error(w, "no", http.StatusForbidden)
					return
				}
				next.ServeHTTP(w, r)
			})
		}
		// Its inner handler goes on after it has answered.
		impatient := func(next http.Handler) http.Handler { return http.TimeoutHandler(next, time.Second, "late") }
		slow := serving(func(*Instance, http.ResponseWriter, *http.Request) { <-time.After(time.Minute) })
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: deny}, echo))
		require.NoError(t, h.w.HostWith("/slow", HostOptions{Middleware: impatient}, slow))
		h.start()
		before := scrape(t, registry)
		require.Equal(t, http.StatusForbidden, h.get("/c/1/denied").Code)
		require.Equal(t, series{requests: 1, seconds: 1}, changes(before, scrape(t, registry)))
		h.epoch++ // what was denied gave its placement up
		before = scrape(t, registry)
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		require.Equal(t, series{activations: 1, active: 1, requests: 1, seconds: 1}, changes(before, scrape(t, registry)))
		before = scrape(t, registry)
		require.Equal(t, http.StatusServiceUnavailable, h.get("/slow/1").Code)
		h.after(2 * time.Minute)
		require.Equal(t, series{
			activations: 1, active: 1,
			"pinned_request_duration_seconds_count{namespace=/slow}": 1,
			"pinned_request_duration_seconds_sum{namespace=/slow}":   1,
		}, changes(before, scrape(t, registry)))
	})
}

func TestLocalModeHasALeaseAndNoRegistration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		opts, registry := metered()
		h := newLocal(t, opts, hosting(echo))
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/1").Code)
		now := scrape(t, registry)
		require.Equal(t, []float64{1, 0, 1, 1}, []float64{now[healthy], now[registered], now[active], now[requests]})
		h.stop()
		require.Empty(t, scrape(t, registry))
	})
}

// A stream lasts as long as its client wants, which is nobody's slowness.
func TestAStreamIsMeasuredUntilItBecomesOne(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		<-time.After(2 * time.Second)
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	inBubble(t, opts, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := h.begin(h.request(http.MethodGet, "/c/1").WithContext(ctx))
		h.after(time.Second)
		require.Equal(t, 0.0, scrape(t, registry)[requests])
		h.after(time.Minute)
		now := scrape(t, registry)
		require.Equal(t, []float64{1, 2}, []float64{now[requests], now[seconds]})
		cancel()
		<-p.done
		now = scrape(t, registry)
		require.Equal(t, []float64{1, 2}, []float64{now[requests], now[seconds]}, "once")
	})
}

// As with the Python client, a connection that was taken over counts for as long
// as its handler works.
func TestAWebSocketIsMeasuredUntilItsHandlerReturns(t *testing.T) {
	t.Parallel()
	var events record
	opts, registry := metered()
	inBubble(t, opts, hosting(hijacker(&events)), func(t *testing.T, h *harness) {
		h.start()
		l := newPipeListener()
		server := &http.Server{Handler: h.w}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		defer h.upgraded(l, "/c/1/waits").Close()
		h.after(time.Minute)
		require.Equal(t, 0.0, scrape(t, registry)[requests])
		h.pb.answer(wire.PathRelease, reply{status: 200, body: object{"released": 1}, delay: 3 * time.Second})
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.after(10 * time.Second)
		now := scrape(t, registry)
		require.Equal(t, []float64{1, 60}, []float64{now[requests], now[seconds]}, "without the wait for the release")
	})
}
