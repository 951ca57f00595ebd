package upstream

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timeless is a connection that knows no deadlines, such as one through SSH.
type timeless struct{ net.Conn }

var errTimeless = errors.New("deadlines are not possible here")

func (timeless) SetDeadline(time.Time) error      { return errTimeless }
func (timeless) SetReadDeadline(time.Time) error  { return errTimeless }
func (timeless) SetWriteDeadline(time.Time) error { return errTimeless }

func timelessWorker(t *testing.T, script func(*peer)) *worker {
	w := newTCPWorker(t, script)
	dial := w.dial
	w.dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return timeless{c}, nil
	}
	return w
}

func TestAConnectionWithoutDeadlinesIsClosedInstead(t *testing.T) {
	t.Parallel()
	w := timelessWorker(t, func(p *peer) {
		p.head()
		_, _ = p.r.ReadByte()
	})
	ctx, cancel := context.WithCancel(t.Context())
	pool, ended := w.pool(), make(chan error, 1)
	go func() {
		_, err := do(ctx, pool, w.request("GET", "/"))
		ended <- err
	}()
	require.Eventually(t, func() bool { return w.connections() == 1 }, patience, time.Millisecond)
	cancel()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(patience):
		require.Fail(t, "a request that was given up goes on")
	}
}

func TestAnIdleConnectionWithoutDeadlinesIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	w := timelessWorker(t, echo)
	pool := w.pool()
	for i := range 3 {
		ended := make(chan error, 1)
		go func() {
			_, err := do(t.Context(), pool, w.request("GET", "/"))
			ended <- err
		}()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "a request waits for an idle connection for ever")
		}
		require.Equal(t, i+1, w.connections())
	}
}
