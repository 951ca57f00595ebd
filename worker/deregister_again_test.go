package worker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// A Shutdown that goes on to deregister leaves no connection to pinboard behind, as
// the one before it left none.
func TestAShutdownThatDeregistersAtLastKeepsNoConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Bool
		var open atomic.Int64
		listener := memnet.NewListener()
		pinboard := &http.Server{
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == wire.PathDeregister && !answers.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				jsonbody.Write(w, http.StatusOK, object{"sessionId": "session-1", "expiresInMs": 15000, "draining": false})
			}),
			ConnState: func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
				}
			},
		}
		go func() { _ = pinboard.Serve(listener) }()
		defer func() { _ = pinboard.Close() }()

		w, err := build(complete(), none, systemClock, func() float64 { return 1 })
		require.NoError(t, err)
		w.reg.client.owned.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) }
		require.NoError(t, w.Host("/c", echo))
		require.NoError(t, w.Start())
		require.NoError(t, w.AwaitReady(t.Context()))
		synctest.Wait()
		require.NotZero(t, open.Load())
		require.ErrorIs(t, w.Shutdown(t.Context()), ErrNotDeregistered)
		synctest.Wait()
		require.Zero(t, open.Load())
		answers.Store(true)
		require.NoError(t, w.Shutdown(t.Context()))
		synctest.Wait()
		require.Zero(t, open.Load())
	})
}

// Who takes an ErrNotDeregistered for a good end must not miss a listener that failed.
func TestServeThatFailsIsNotJustNotDeregistered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		l := &brokenListener{pipeListener: newPipeListener(), err: make(chan error, 1)}
		ended := make(chan error, 1)
		go func() { ended <- h.w.Serve(t.Context(), l) }()
		require.NoError(t, h.w.AwaitReady(t.Context()))
		h.pb.answer(wire.PathDeregister, reply{status: http.StatusBadGateway})
		broken := errors.New("too many open files")
		l.err <- broken
		err := <-ended
		require.ErrorIs(t, err, broken)
		require.NotErrorIs(t, err, ErrNotDeregistered)
		require.Len(t, h.pb.to(wire.PathDeregister), releaseAttempts)
	})
}
