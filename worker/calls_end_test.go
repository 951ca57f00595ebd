package worker

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAnInstanceCallsUntilItsHooksAreOver(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		var hooked []string
		a.OnClose(func(ctx context.Context) error {
			for _, path := range []string{"/c/b", "/c/else"} {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
				res, err := a.Client().Do(req)
				hooked = append(hooked, read(t, res, err))
			}
			return nil
		})
		var releasing error
		c.pb.on(func(call call) (reply, bool) {
			if call.path == wire.PathRelease {
				_, releasing = a.Client().Get("/c/b")
			}
			return reply{}, false
		})
		a.Abort()
		synctest.Wait()
		require.False(t, c.live("/c", "a"))
		require.Equal(t, []string{`GET pinboard:8080 / "" by /c/a at 1`, "elsewhere"}, hooked)
		require.ErrorIs(t, releasing, ErrReleased, "from when its id is given back")
		_, err := a.Client().Get("/c/b")
		require.ErrorIs(t, err, ErrReleased)
	})
}

func TestALostInstanceDoesNotCall(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		var failure error
		a.OnClose(func(context.Context) error {
			_, failure = a.Client().Get("/c/b")
			return nil
		})
		c.w.dir.abort(a.key, errDuplicate)
		synctest.Wait()
		require.ErrorIs(t, failure, ErrReleased)
	})
}

func TestAnInstanceThatNeverCameToLiveDoesNotCall(t *testing.T) {
	t.Parallel()
	var inst *Instance
	inBubble(t, Options{}, hosting(func(i *Instance) (http.Handler, error) {
		inst = i
		return nil, errors.New("no")
	}), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusServiceUnavailable, h.get("/c/1").Code)
		_, err := inst.Client().Get("/c/1")
		require.ErrorIs(t, err, ErrReleased)
	})
}
