package worker

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestLocalModeIsRefusedInProduction(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env     map[string]string
		refused bool
	}{
		"no variables":         {nil, false},
		"development":          {map[string]string{"NODE_ENV": "development", "ENVIRONMENT": "dev", "APP_ENV": "test"}, false},
		"NODE_ENV":             {map[string]string{"NODE_ENV": "production"}, true},
		"ENVIRONMENT":          {map[string]string{"ENVIRONMENT": "prod"}, true},
		"APP_ENV":              {map[string]string{"APP_ENV": "prod"}, true},
		"any case":             {map[string]string{"APP_ENV": " Production "}, true},
		"one of several":       {map[string]string{"NODE_ENV": "development", "APP_ENV": "production"}, true},
		"part of a name":       {map[string]string{"APP_ENV": "preprod"}, false},
		"allowed":              {map[string]string{"APP_ENV": "production", "PINBOARD_ALLOW_DEV_IN_PRODUCTION": "1"}, false},
		"allowed by true":      {map[string]string{"APP_ENV": "production", "PINBOARD_ALLOW_DEV_IN_PRODUCTION": "true"}, true},
		"allowed by 0":         {map[string]string{"APP_ENV": "production", "PINBOARD_ALLOW_DEV_IN_PRODUCTION": "0"}, true},
		"an empty URL is none": {map[string]string{"PINBOARD_URL": "", "PINBOARD_ALLOW_DEV_IN_PRODUCTION": "1"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zap.WarnLevel)
			w, err := build(Options{Logger: zap.New(core)}, variables(tc.env), systemClock, func() float64 { return 1 })
			if tc.refused {
				require.ErrorContains(t, err, "Options.PinboardURL (PINBOARD_URL)")
				return
			}
			require.NoError(t, err)
			require.Equal(t, 1, logs.Len())
			require.Contains(t, logs.All()[0].Message, "DEV MODE")
			require.Equal(t, "worker in local mode", fmt.Sprint(w))
		})
	}
}

// With a pinboard, the environment may be what it likes.
func TestProductionWithAPinboardIsNoLocalMode(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.WarnLevel)
	o := complete()
	o.Logger = zap.New(core)
	_, err := build(o, variables(map[string]string{"APP_ENV": "production"}), systemClock, func() float64 { return 1 })
	require.NoError(t, err)
	require.Zero(t, logs.Len())
}

func TestLocalIsLocalWhateverTheEnvironmentSays(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"of a worker":       {"PINBOARD_URL": "http://p", "PINBOARD_TOKEN": "planted-hunter2-0123", "ADVERTISE_URL": "http://w"},
		"half of a worker":  {"ADVERTISE_URL": "http://w"},
		"an empty URL":      {"PINBOARD_URL": ""},
		"production":        {"APP_ENV": "production"},
		"times do not fit":  {"PINBOARD_LEASE_TTL_MS": "100"},
		"no rate of drains": {"PINBOARD_DRAIN_RATE": "fast"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zap.WarnLevel)
			w, err := build(Options{Local: true, Logger: zap.New(core)}, variables(env), systemClock, fixed(1))
			require.NoError(t, err)
			require.Equal(t, "worker in local mode", fmt.Sprint(w))
			require.Equal(t, 1, logs.Len(), "it says so")
		})
	}
	o := complete()
	o.Local = true
	_, err := build(o, none, systemClock, fixed(1))
	require.ErrorContains(t, err, "Options.Local is set, and so is PinboardURL")
}

// newLocal returns a worker in local mode; the harness's pinboard gets no call.
func newLocal(t *testing.T, opts Options, hosts map[string]Constructor) *harness {
	t.Helper()
	h := &harness{t: t, pb: &fakePinboard{began: time.Now()}}
	core, logs := observer.New(zap.DebugLevel)
	h.logs = logs
	opts.Transport, opts.Logger = h.pb, zap.New(core)
	w, err := build(opts, none, h.now, func() float64 { return 1 })
	require.NoError(t, err)
	h.w, h.pb.worker = w, w
	for namespace, construct := range hosts {
		require.NoError(t, w.Host(namespace, construct))
	}
	return h
}

func TestLocalModeServesWithoutAPinboard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var callers []string
		host := serving(func(inst *Instance, w http.ResponseWriter, r *http.Request) {
			caller, ok := CallerFrom(r.Context())
			callers = append(callers, fmt.Sprint(ok))
			_, _ = fmt.Fprint(w, inst.Epoch(), caller.Instance != nil)
		})
		h := newLocal(t, Options{}, hosting(host))
		plain := func(header ...string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodGet, "/c/1/x", nil)
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			return h.do(r)
		}
		require.False(t, h.w.Ready())
		says := func(want string) {
			t.Helper()
			rec := plain()
			refused(t, rec, wire.RefusalExpired)
			require.Equal(t, want, detail(t, rec))
			require.Equal(t, want, detail(t, h.do(httptest.NewRequest(http.MethodGet, pathReady, nil))))
		}
		says("the worker has not started: Start, Serve or ListenAndServe does that")
		require.NoError(t, h.w.Start())
		require.NoError(t, h.w.AwaitReady(t.Context()))
		require.Equal(t, Lease{Healthy: true}, h.w.Lease())

		require.Equal(t, http.StatusOK, plain().Code)
		require.Equal(t, http.StatusOK, plain(wire.HeaderAttestation, "forged").Code)
		require.Equal(t, []string{"false", "false"}, callers, "nobody attests anything")
		for _, epoch := range []string{"7", "6"} {
			require.Equal(t, http.StatusOK, plain(wire.HeaderEpoch, epoch).Code, "no placement is stale where nobody places")
		}
		require.Equal(t, http.StatusBadRequest, h.do(httptest.NewRequest(http.MethodGet, "/c/../x", nil)).Code)

		h.after(200 * time.Second) // no lease ends
		require.True(t, h.w.Ready())
		require.True(t, h.live("/c", "1"))
		h.after(101 * time.Second)
		require.False(t, h.live("/c", "1"), "idle eviction is the same")

		first := plain().Body.String()
		h.after(time.Hour)
		h.wallStep.Store(-int64(48 * time.Hour))
		second := plain().Body.String()
		require.Less(t, first, second, "epochs rise, also when the clock is set back")

		require.NoError(t, h.w.Drain(t.Context(), time.Second))
		refused(t, plain(), wire.RefusalDraining)
		h.w.Undrain()
		require.Equal(t, http.StatusOK, plain().Code)
		held := h.w.LeaseContext()
		require.NoError(t, held.Err())
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.ErrorIs(t, context.Cause(held), ErrClosed)
		require.False(t, h.w.Ready())
		says("the worker was shut down")
		require.Empty(t, h.pb.calls, "there is nobody to tell")
	})
}

func TestLocalModesProbesStayClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newLocal(t, Options{}, hosting(echo))
		require.NoError(t, h.w.Start())
		for _, path := range []string{wire.PathChallenge + "?challenge=", wire.PathStats} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set(wire.HeaderProxySecret, "")
			require.Equal(t, http.StatusForbidden, h.do(r).Code, path)
		}
		require.Equal(t, http.StatusOK, h.do(httptest.NewRequest(http.MethodGet, pathReady, nil)).Code)
		require.NoError(t, h.w.Shutdown(t.Context()))
	})
}

func TestWithoutAPinboardAllThatIsHostedIsCalledHere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a *Instance
		h := newLocal(t, Options{}, map[string]Constructor{"/d": serving(whoCalls), "/c": func(inst *Instance) (http.Handler, error) {
			a = inst
			return echo(inst)
		}})
		require.NoError(t, h.w.Start())
		h.do(httptest.NewRequest(http.MethodGet, "/c/a", nil))
		res, err := a.Client().Get("/d/new")
		require.Equal(t, `GET pinned.cluster / "" by /c/a at 1`, read(t, res, err))
		require.True(t, h.live("/d", "new"))
		_, err = a.Client().Get("/e/1")
		require.ErrorIs(t, err, ErrUnknownTarget)
		require.ErrorIs(t, h.w.Drain(canceled(), time.Hour), context.Canceled)
		res, err = a.Client().Get("/d/newer")
		require.Contains(t, read(t, res, err), wire.DetailHostDraining)
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Empty(t, res.Header.Get(wire.HeaderRefusal))
		require.NoError(t, h.w.Shutdown(t.Context()))
		require.Empty(t, h.pb.calls)
	})
}

// A pinboard sends a request that meets a closing instance once more. Where there
// is none, the worker itself lets it wait for the next instance.
func TestInLocalModeARequestAtAClosingInstanceActivatesItAnew(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		closes time.Duration
		status int
	}{"soon": {500 * time.Millisecond, http.StatusOK}, "not soon": {5 * time.Second, http.StatusServiceUnavailable}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newLocal(t, Options{}, hosting(func(inst *Instance) (http.Handler, error) {
					inst.OnClose(func(context.Context) error { <-time.After(tc.closes); return nil })
					return echo(inst)
				}))
				require.NoError(t, h.w.Start())
				get := func() *httptest.ResponseRecorder {
					return h.do(httptest.NewRequest(http.MethodGet, "/c/1", nil))
				}
				require.Equal(t, http.StatusOK, get().Code)
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				require.Equal(t, tc.status, get().Code)
				h.stop()
			})
		})
	}
}
