package worker

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

type series = map[string]float64

// meterCase is one event, and all that the metrics make of it.
type meterCase struct {
	opts   Options
	host   Constructor // echo if nil
	before func(h *harness)
	event  func(h *harness)
	want   series
}

func runMeterCases(t *testing.T, cases map[string]meterCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, registry := metered()
			tc.opts.Registerer = opts.Registerer
			if tc.host == nil {
				tc.host = echo
			}
			inBubble(t, tc.opts, hosting(tc.host), func(t *testing.T, h *harness) {
				if tc.before != nil {
					tc.before(h)
				}
				before := scrape(t, registry)
				tc.event(h)
				require.Equal(t, tc.want, changes(before, scrape(t, registry)))
			})
		})
	}
}

const (
	activations = "pinned_instance_activations_total"
	evictions   = "pinned_instance_evictions_total"
	aborts      = "pinned_instance_aborts_total"
	active      = "pinned_active_instances"
	healthy     = "pinned_lease_healthy"
	registered  = "pinned_registered"
	requests    = "pinned_request_duration_seconds_count{namespace=/c}"
	seconds     = "pinned_request_duration_seconds_sum{namespace=/c}"
	registering = "pinned_registration_failures_total"
)

func controlPlane(operation, reason string) string {
	return "pinned_control_plane_failures_total{operation=" + operation + ",reason=" + reason + "}"
}

func hookFailures(hook string) string { return "pinned_callback_failures_total{hook=" + hook + "}" }

func startWith(path string) func(h *harness) {
	return func(h *harness) {
		h.start()
		h.get(path)
	}
}

func passing(d time.Duration) func(h *harness) { return func(h *harness) { h.after(d) } }

func TestMetricsOfInstances(t *testing.T) {
	t.Parallel()
	runMeterCases(t, map[string]meterCase{
		"nothing but heartbeats": {before: startWith("/c/1"), event: passing(time.Minute), want: series{}},
		"an activation": {
			before: startWith("/c/1"),
			event:  func(h *harness) { h.get("/c/2") },
			want:   series{activations: 1, active: 1, requests: 1},
		},
		"a request for a live instance": {
			before: startWith("/c/1"),
			event:  func(h *harness) { h.get("/c/1") },
			want:   series{requests: 1},
		},
		"idle": {
			before: startWith("/c/1"), event: passing(301 * time.Second),
			want: series{evictions: 1, active: -1},
		},
		"wound down with nothing to do": {
			before: startWith("/c/1"),
			event: func(h *harness) {
				h.w.dir.windDown(key{"/c", "1"}, time.Hour)
				h.after(time.Second)
			},
			want: series{evictions: 1, active: -1},
		},
		"aborted": {
			before: startWith("/c/1"),
			event: func(h *harness) {
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				h.after(time.Second)
			},
			want: series{evictions: 1, aborts: 1, active: -1},
		},
		// It is not live any more, although it holds its id.
		"closing for long": {
			host: func(inst *Instance) (http.Handler, error) {
				inst.OnClose(func(context.Context) error { <-time.After(time.Minute); return nil })
				return echo(inst)
			},
			before: startWith("/c/1"), event: passing(301 * time.Second),
			want: series{evictions: 1, active: -1},
		},
		"aborted before it was live": {
			host: func(inst *Instance) (http.Handler, error) {
				<-inst.Context().Done()
				return nil, inst.Context().Err()
			},
			before: (*harness).start,
			event: func(h *harness) {
				p := h.beginGet("/c/1")
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				<-p.done
			},
			want: series{requests: 1},
		},
	})
}

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

func TestMetricsOfCallbacks(t *testing.T) {
	t.Parallel()
	closing := func(hook func(context.Context) error) Constructor {
		return func(inst *Instance) (http.Handler, error) {
			inst.OnClose(hook)
			return echo(inst)
		}
	}
	noRoute := func(h *harness) {
		h.start()
		h.pb.answer(wire.PathHeartbeat, reply{err: errors.New("no route")})
	}
	windDown := func(h *harness) {
		h.w.dir.windDown(key{"/c", "1"}, time.Hour)
		synctest.Wait()
	}
	runMeterCases(t, map[string]meterCase{
		"OnClose fails": {
			host: closing(func(context.Context) error { return errors.New("mine") }), before: startWith("/c/1"), event: passing(301 * time.Second),
			want: series{hookFailures("on_close"): 1, evictions: 1, active: -1},
		},
		"OnClose panics": {
			host: closing(func(context.Context) error { panic("mine") }), before: startWith("/c/1"), event: passing(301 * time.Second),
			want: series{hookFailures("on_close"): 1, evictions: 1, active: -1},
		},
		"OnWindDown panics": {
			host: func(inst *Instance) (http.Handler, error) {
				inst.OnWindDown(func() { panic("mine") })
				inst.Go(untilDone)
				return echo(inst)
			},
			before: startWith("/c/1"), event: windDown,
			want: series{hookFailures("on_wind_down"): 1},
		},
		"OnIdle panics": {
			host: func(inst *Instance) (http.Handler, error) {
				inst.OnIdle(func() bool { panic("mine") })
				return echo(inst)
			},
			before: startWith("/c/1"), event: passing(301 * time.Second),
			want: series{hookFailures("on_idle"): 1, evictions: 1, active: -1},
		},
		"stats that JSON can't hold": {
			host: func(inst *Instance) (http.Handler, error) {
				inst.SetStats(func() map[string]any { return map[string]any{"load": math.Inf(1)} })
				return echo(inst)
			},
			before: startWith("/c/1"), event: func(h *harness) { h.w.Stats() },
			want: series{hookFailures("stats"): 1},
		},
		"OnUnhealthy panics": {
			opts: Options{OnUnhealthy: func() { panic("mine") }}, before: noRoute, event: passing(11 * time.Second),
			want: series{hookFailures("on_unhealthy"): 1, healthy: -1, controlPlane("heartbeat", "transport"): 3},
		},
		"OnRestored panics": {
			opts: Options{OnRestored: func() { panic("mine") }},
			before: func(h *harness) {
				noRoute(h)
				h.after(11 * time.Second)
				h.pb.on(nil)
			},
			event: passing(time.Second),
			want:  series{hookFailures("on_restored"): 1, healthy: 1},
		},
		"Headroom returns no number": {
			opts: Options{Headroom: math.NaN}, before: (*harness).start, event: passing(6 * time.Second),
			want: series{hookFailures("headroom"): 2},
		},
		"Headroom panics": {
			opts: Options{Headroom: func() float64 { panic("mine") }}, before: (*harness).start, event: passing(3 * time.Second),
			want: series{hookFailures("headroom"): 1},
		},
		"Headroom is late": {
			opts: Options{Headroom: lateOnce()}, before: (*harness).start, event: passing(9 * time.Second),
			want: series{hookFailures("headroom"): 1},
		},
	})
}

// Nothing tells a suspended machine that its lease is over but the clock.
func TestTheLeaseIsReadWhenItIsScraped(t *testing.T) {
	t.Parallel()
	opts, registry := metered()
	inBubble(t, opts, hosting(echo), func(t *testing.T, h *harness) {
		require.Equal(t, 0.0, scrape(t, registry)[healthy], "nothing was granted yet")
		h.start()
		require.Equal(t, 1.0, scrape(t, registry)[healthy])
		h.wallStep.Store(int64(9 * time.Second))
		require.Equal(t, 1.0, scrape(t, registry)[healthy])
		h.wallStep.Store(int64(10 * time.Second)) // a lease of 15 s, without its buffer
		require.Equal(t, 0.0, scrape(t, registry)[healthy])
		require.Equal(t, 1.0, scrape(t, registry)[registered], "pinboard has not said otherwise")
		h.after(3 * time.Second)
		require.Equal(t, 1.0, scrape(t, registry)[healthy])
	})
}

func TestMetricsOfRegistrations(t *testing.T) {
	t.Parallel()
	answered := func(out reply, want series) meterCase {
		return meterCase{
			before: func(h *harness) { h.pb.answer(wire.PathRegister, out) },
			event: func(h *harness) {
				require.NoError(h.t, h.w.Start())
				synctest.Wait()
			},
			want: want,
		}
	}
	session := func(duplicates any) reply {
		return reply{status: 200, body: object{"sessionId": "s", "expiresInMs": 15000, "duplicates": duplicates}}
	}
	runMeterCases(t, map[string]meterCase{
		"accepted":     {event: (*harness).start, want: series{registered: 1, healthy: 1}},
		"no route":     answered(reply{err: errors.New("no route")}, series{registering: 1, controlPlane("register", "transport"): 1}),
		"unauthorized": answered(reply{status: 401}, series{registering: 1, controlPlane("register", "unauthorized"): 1}),
		"deferred":     answered(reply{status: 503}, series{controlPlane("register", "deferred"): 1}),
		"rejected":     answered(reply{status: 409}, series{registering: 1, controlPlane("register", "rejected"): 1}),
		"malformed":    answered(reply{status: 200, body: object{}}, series{registering: 1, controlPlane("register", "malformed"): 1}),
		"duplicates": answered(
			session([]any{7, object{"ns": "/c", "id": "1"}, object{"ns": "/c", "id": "2"}}),
			series{registered: 1, healthy: 1, "pinned_duplicate_quits_total": 2, controlPlane("register", "malformed_duplicates"): 1},
		),
		"malformed duplicates": answered(session("all"),
			series{registered: 1, healthy: 1, controlPlane("register", "malformed_duplicates"): 1}),
		"a session that was lost": {
			before: startWith("/c/1"),
			event: func(h *harness) {
				h.pb.on(func(c call) (reply, bool) {
					return reply{status: map[string]int{wire.PathHeartbeat: 409, wire.PathRegister: 503}[c.path],
						body: object{"reregister": true}}, true
				})
				h.after(3 * time.Second)
			},
			want: series{registered: -1, controlPlane("register", "deferred"): 1},
		},
		"registered again": {
			before: startWith("/c/1"),
			event: func(h *harness) {
				h.pb.answer(wire.PathHeartbeat, reply{status: 409, body: object{"reregister": true}})
				h.after(3 * time.Second)
			},
			want: series{},
		},
	})
}

func TestMetricsOfHeartbeats(t *testing.T) {
	t.Parallel()
	answered := func(out reply, want series) meterCase {
		return meterCase{
			before: func(h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathHeartbeat, out)
			},
			event: passing(3 * time.Second), want: want,
		}
	}
	messages := func(list any) reply { return beating(object{"messages": list}) }
	windDown := object{"msgId": "a", "type": "wind_down", "ns": "/c", "id": "x", "deadline": 1}
	runMeterCases(t, map[string]meterCase{
		"no route":     answered(reply{err: errors.New("no route")}, series{controlPlane("heartbeat", "transport"): 1}),
		"unauthorized": answered(reply{status: 401}, series{controlPlane("heartbeat", "unauthorized"): 1}),
		"rejected":     answered(reply{status: 503}, series{controlPlane("heartbeat", "rejected"): 1}),
		"malformed":    answered(reply{status: 200, body: object{}}, series{controlPlane("heartbeat", "malformed"): 1}),
		"superseded": answered(reply{status: 409, body: object{"superseded": true}}, series{
			controlPlane("heartbeat", "superseded"): 1, registered: -1, evictions: 1, aborts: 1, active: -1,
		}),
		"a message that is applied": answered(messages([]any{windDown}), series{}),
		"messages that are no list": answered(messages("all"), series{controlPlane("control_message", "malformed_batch"): 1}),
		"a message that is none":    answered(messages([]any{windDown, 7}), series{controlPlane("control_message", "malformed"): 1}),
		"an unknown message": answered(messages([]any{object{"msgId": "b", "type": "dance"}, windDown}),
			series{controlPlane("control_message", "callback"): 1}),
		"a drain whose deadline is none": answered(beating(object{"draining": true, "drainDeadline": "soon"}), series{
			controlPlane("server_draining", "malformed_deadline"): 1, evictions: 1, active: -1,
		}),
	})
}

func TestMetricsOfReleases(t *testing.T) {
	t.Parallel()
	runMeterCases(t, map[string]meterCase{
		"a release that fails": {
			before: func(h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathRelease, reply{status: 503})
			},
			event: func(h *harness) {
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				h.after(time.Second) // three attempts, and not yet those of the next heartbeat
			},
			want: series{controlPlane("release", "exhausted"): 1, evictions: 1, aborts: 1, active: -1},
		},
		"a release at the second attempt": {
			before: func(h *harness) {
				h.start()
				h.get("/c/1")
				h.pb.answer(wire.PathRelease, reply{status: 503})
			},
			event: func(h *harness) {
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				synctest.Wait()
				h.pb.on(nil)
				h.after(time.Second)
			},
			want: series{evictions: 1, aborts: 1, active: -1},
		},
		// Shutdown itself takes the metrics off the registry.
		"a session that can't be deregistered": {
			before: (*harness).start,
			event: func(h *harness) {
				h.pb.answer(wire.PathDeregister, reply{status: 503})
				h.w.reg.deregister(h.t.Context())
			},
			want: series{controlPlane("deregister", "exhausted"): 1, registered: -1},
		},
	})
}

// lateOnce returns a Headroom whose second answer takes 4 s.
func lateOnce() func() float64 {
	asked := 0
	return func() float64 {
		if asked++; asked == 2 {
			<-time.After(4 * time.Second)
		}
		return 1
	}
}
