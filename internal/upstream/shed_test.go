package upstream

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// ending is a context that has ended, of which nobody has been told yet.
type ending struct {
	context.Context
	tell func()
}

func (e *ending) AfterFunc(tell func()) (stop func() bool) {
	e.tell = tell
	return func() bool { return false }
}

// The abort that is under way would hit whoever has the connection next.
func TestAConnectionThatIsBeingAbortedIsNotKeptForWhatWasShed(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, echo)
	pool := w.pool()
	first := &ending{Context: t.Context()}
	resp, err := pool.Do(first, w.request("GET", "/"))
	require.NoError(t, err)
	body := resp.Shed(t.Context())
	for err == nil {
		_, err = body.Next()
	}
	require.Equal(t, io.EOF, err)
	body.Close()
	requireIdle(t, pool, 0)
	first.tell()
	_, err = do(t.Context(), pool, w.request("GET", "/"))
	require.NoError(t, err)
}
