package pinboard

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// An error is looked into before any of it is passed on; a client may leave
// meanwhile.
func TestAClientThatLeavesDuringAnErrorIsNoticed(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"503 Service Unavailable", "403 Forbidden"} {
		left := make(chan struct{}, 1)
		inLimits(t, Limits{}, or(func(h *hit) {
			h.send("HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{")
			_, _ = h.r.ReadByte()
			h.last = true
			left <- struct{}{}
		}), func(t *testing.T, b *limited) {
			b.works() // so that there is a connection
			c := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
			synctest.Wait()
			require.EqualValues(t, 1, b.pb.counters.proxying.Load())
			require.NoError(t, c.Close())
			synctest.Wait()
			require.Zero(t, b.pb.counters.proxying.Load())
			require.Len(t, left, 1, "its worker is told")
			b.works()
		})
	}
}

// A node that has waited long enough waits for no client's body.
func TestAShutdownThatIsOverWaitsForNoShortBody(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{BodyPause: time.Hour}, nil, func(t *testing.T, b *limited) {
		c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 8\r\n\r\n")
		synctest.Wait()
		require.EqualValues(t, 1, b.pb.counters.proxying.Load())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, b.pb.Shutdown(ctx), context.DeadlineExceeded)
		require.Less(t, time.Since(began), 2*time.Second)
		resp, body := c.whole("POST")
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Equal(t, "this node is shutting down", errorOf(t, body))
	})
}

// Behind a limit of connections a request may wait for longer than its route is
// good for: its owner may have given the id up, and have forgotten that.
func TestARequestThatHasWaitedForAConnectionIsNotSentByAnOldRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		epochs := make(chan int64, 1)
		b := newLimited(t, Options{
			Limits:    Limits{AnswerTimeout: 24 * time.Hour},
			Transport: &http.Transport{MaxConnsPerHost: 1},
		}, func(h *hit) {
			if h.target == "/counters/first" {
				<-end
			} else {
				epochs <- h.epoch()
			}
			h.ok("")
		})
		ctx := t.Context()
		first := b.ask("GET /counters/first HTTP/1.1\r\nHost: p\r\n\r\n")
		synctest.Wait()
		second := b.ask("GET /counters/second HTTP/1.1\r\nHost: p\r\n\r\n")
		synctest.Wait()
		row, err := b.store.Lookup(ctx, counters_, "second")
		require.NoError(t, err)
		for range 4 {
			time.Sleep(b.pb.opts.LeaseTTL / 2)
			_, err = b.store.Heartbeat(ctx, store.Beat{SessionID: row.SessionID, Headroom: 5})
			require.NoError(t, err)
		}
		_, err = b.store.Release(ctx, []wire.Release{{SessionID: row.SessionID, Namespace: counters_, ID: "second"}})
		require.NoError(t, err)
		close(end)
		first.whole("GET")
		second.whole("GET")
		require.Greater(t, <-epochs, row.Epoch)
	})
}
