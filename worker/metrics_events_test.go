package worker

import (
	"context"
	"errors"
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
				require.ErrorIs(h.t, h.w.reg.deregister(h.t.Context()), ErrNotDeregistered)
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
