package worker

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
)

// fallsOver panics, at the moment that the path names.
func fallsOver(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Half", "done")
	switch r.URL.Path {
	case "/hints":
		w.WriteHeader(http.StatusEarlyHints)
	case "/begun":
		_, _ = io.WriteString(w, "half")
	case "/flushed":
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
	case "/abort":
		panic(http.ErrAbortHandler)
	case "/switch":
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	panic("mine")
}

func identity(next http.Handler) http.Handler { return next }

// A lost connection would have pinboard send a GET again, and nobody would know which
// instance it was.
func TestAHandlersPanicIsAnsweredAndLoggedWithItsInstance(t *testing.T) {
	t.Parallel()
	for name, middleware := range map[string]func(http.Handler) http.Handler{"": nil, "behind a middleware": identity} {
		for path, cut := range map[string]bool{
			"/": false, "/hints": false, "/switch": false, "/begun": true, "/flushed": true, "/abort": true,
		} {
			t.Run(path+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newHarness(t, Options{}, nil)
					defer h.stop()
					var served atomic.Int64
					require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: middleware},
						serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
							served.Add(1)
							fallsOver(w, r)
						})))
					h.start()
					res, err := h.network().Do(h.outgoing(t.Context(), "/c/1"+path))
					switch {
					case !cut:
						require.NoError(t, err)
						require.JSONEq(t, `{"detail": "internal error"}`, read(t, res, nil))
						require.Equal(t, http.StatusInternalServerError, res.StatusCode)
						require.Empty(t, res.Header.Get("X-Half"))
					case err == nil:
						_, err = io.ReadAll(res.Body)
						require.NoError(t, res.Body.Close())
						require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					}
					require.EqualValues(t, 1, served.Load())
					require.True(t, h.live("/c", "1"), "it lives on")
					synctest.Wait()
					require.Zero(t, h.w.Stats().Instances[0].Tasks, "and the request is over")
					lines := h.logs.FilterLevelExact(zapcore.ErrorLevel).All()
					if path == "/abort" {
						require.Empty(t, lines)
						return
					}
					require.Len(t, lines, 1)
					require.Equal(t, "handler panicked", lines[0].Message)
					said := lines[0].ContextMap()
					require.Equal(t, "/c/1", said["instance"])
					require.Equal(t, "mine", said["panic"])
					require.Contains(t, said["stack"], "worker.fallsOver")
				})
			})
		}
	}
}

// A middleware that reports panics, or answers for them, still gets to see them.
func TestAMiddlewareSeesAHandlersPanicFirst(t *testing.T) {
	t.Parallel()
	recovering := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() == "mine" {
					w.WriteHeader(http.StatusTeapot)
				}
			}()
			next.ServeHTTP(w, r)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		defer h.stop()
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: recovering},
			serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) { fallsOver(w, r) })))
		h.start()
		require.Equal(t, http.StatusTeapot, h.get("/c/1/").Code)
		require.False(t, h.logged("handler panicked"))
	})
}

func TestAMiddlewaresPanicIsAnsweredAndLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		defer h.stop()
		require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: func(http.Handler) http.Handler { return http.HandlerFunc(fallsOver) }}, echo))
		h.start()
		rec := h.get("/c/1/")
		require.Equal(t, http.StatusInternalServerError, rec.Code)
		require.Equal(t, "internal error", detail(t, rec))
		require.Equal(t, "/c/1", h.logs.FilterMessage("handler panicked").All()[0].ContextMap()["instance"])
		require.False(t, h.live("/c", "1"), "nothing was activated")
	})
}

func TestAPanicInACallInProcessIsAnswered(t *testing.T) {
	t.Parallel()
	inCluster(t, func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fall" {
			panic("mine")
		}
	}, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		res, err := a.Client().Get("/c/b/fall")
		require.JSONEq(t, `{"detail": "internal error"}`, read(t, res, err))
		require.Equal(t, http.StatusInternalServerError, res.StatusCode)
		require.Empty(t, c.seen(), "it was answered here")
	})
}
