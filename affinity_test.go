package pinboard

import (
	"context"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// slowStore takes half a second for each Resolve.
type slowStore struct {
	store.Store
	inUse atomic.Int64
}

func (s *slowStore) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	s.inUse.Add(1)
	defer s.inUse.Add(-1)
	time.Sleep(time.Second / 2) // virtual time
	return s.Store.Resolve(ctx, r)
}

// A look-up that others may share is on nobody's goroutine, and goes on when the client
// that asked first has left.
func TestNothingOfTheHostsIsUsedAfterItsRequest(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		for _, limits := range []Limits{{}, {PlacementsPerAddress: 100}} { // these look whether the id is placed first
			var served atomic.Bool
			var asked atomic.Int64
			key := func(*http.Request, Client) (string, bool) {
				asked.Add(1)
				assert.False(t, served.Load(), "after the handler")
				assert.Contains(t, string(debug.Stack()), "(*Pinboard).ServeHTTP", "on another goroutine")
				return "k", true
			}
			inBubble(t, Options{Limits: limits, Affinity: Affinity{Key: key}}, func(h *hit) { h.ok("") }, func(t *testing.T, b *limited) {
				slow := &slowStore{Store: b.store}
				b.pb.placer.store = slow
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://p/counters/new", nil)
				require.NoError(t, err)
				r.RemoteAddr = "192.0.2.1:1"
				if leaves {
					time.AfterFunc(time.Second/4, leave)
				}
				w := &recorded{header: http.Header{}}
				b.pb.ServeHTTP(w, r)
				served.Store(true)
				if leaves {
					require.EqualValues(t, 1, slow.inUse.Load())
				} else {
					require.Equal(t, http.StatusOK, w.status)
					require.EqualValues(t, 1, asked.Load())
				}
				require.NoError(t, b.pb.Shutdown(t.Context()))
				require.Zero(t, slow.inUse.Load(), "after Shutdown")
			})
		}
	}
}

func TestTheKeyIsNotAskedForWhereAnIdIsLookedForFirst(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	key := func(*http.Request, Client) (string, bool) { asked.Add(1); return "k", true }
	inBubble(t, Options{Limits: Limits{PlacementsPerAddress: 100}, Affinity: Affinity{Key: key}}, func(h *hit) { h.ok("") }, func(t *testing.T, b *limited) {
		get := func(id string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://p/counters/"+id, nil)
			require.NoError(t, err)
			r.RemoteAddr = "192.0.2.1:1"
			w := &recorded{header: http.Header{}}
			b.pb.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.status)
		}
		_, err := b.store.Resolve(t.Context(), store.Request{Namespace: counters_, ID: "placed", View: store.AnyView, BalanceFactor: 1})
		require.NoError(t, err)
		get("placed")
		require.Zero(t, asked.Load())
		get("new")
		require.EqualValues(t, 1, asked.Load())
	})
}
