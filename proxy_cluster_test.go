package pinboard

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// silent is a stuck store whose handle has forgotten what it knew.
type silent struct{ stuck }

func (s *silent) Known(ctx context.Context, namespace, id string) (store.Known, error) {
	if err := s.fault(); err != nil {
		return store.Known{}, err
	}
	return s.Store.Known(ctx, namespace, id)
}

// A caller needs no more than a client's request to it would be sent by, and no less.
func TestPlacedInstancesCallEachOtherWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	broken := &silent{}
	f := newFront(t, func(s *setup) {
		s.store = func(inner store.Store) store.Store { broken.Store = inner; return broken }
		s.opts.Logger = nil
	})
	w := newFake(t, nil)
	s := f.register(w, "a")
	for _, id := range []string{"known", "caller", "left"} {
		resp, _ := f.get("/counters/" + id)
		require.Equal(t, 200, resp.StatusCode)
	}
	other := f.register(newFake(t, nil), "b")
	other.place("elsewhere")
	s.place("unheard")
	call := func(id string, s *session) int {
		resp, _ := f.get("/counters/known", caller("/counters/"+id, s)...)
		return resp.StatusCode
	}
	require.Equal(t, 200, call("caller", s))
	require.Equal(t, 403, call("caller", other))
	f.pb.placer.routes.drop(instance{counters_, "left"})

	broken.set(errPlanted)
	require.Equal(t, 200, call("caller", s))
	hits := w.seen()
	require.Equal(t, "/counters/caller", hits[len(hits)-1].claims(s).Caller)
	for _, id := range []string{"left", "unheard", "never", "elsewhere"} {
		require.Equal(t, 503, call(id, s), id)
	}
	require.Equal(t, 503, call("caller", other), "it is known to live on another session")
	f.pb.leases.end(s.SessionID)
	require.Equal(t, 403, call("caller", s), "the session is over")
	require.Len(t, w.seen(), len(hits))
}
