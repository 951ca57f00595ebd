package pinboard

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

func TestHealthzSaysWhetherTheStoreAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		for _, token := range []string{"", tokenUnknown} { // no credential is looked at
			a := n.get("/healthz", token)
			require.Equal(t, http.StatusOK, a.status)
			require.JSONEq(t, `{"status":"ok"}`, a.text)
			require.Equal(t, "no-store", a.header.Get("Cache-Control"))
		}
		require.Equal(t, http.StatusOK, n.call("HEAD", "/healthz?x=y", "", nil).status)
		a := n.post("/healthz", "", "{}")
		a.requireRefusal(t, http.StatusMethodNotAllowed, "GET")
		require.Equal(t, "GET, HEAD", a.header.Get("Allow"))

		n.store.fail(errStoreTest, "Ping")
		n.get("/healthz", "").requireRefusal(t, http.StatusServiceUnavailable, "store")
		n.store.freeze("Ping")
		began := time.Now()
		n.get("/healthz", "").requireRefusal(t, http.StatusServiceUnavailable, "store")
		require.LessOrEqual(t, time.Since(began), storeTimeout) // virtual time
		n.store.intercept(nil)
		require.Equal(t, http.StatusOK, n.get("/healthz", "").status)
	})
}

func TestANodeThatShutsDownIsNotHealthyAndTakesNoCalls(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	require.Equal(t, http.StatusOK, n.get("/healthz", "").status)
	require.NoError(t, n.pb.Close())
	for _, path := range []string{"/healthz", "/registry/workers", "/a/x"} {
		a := n.get(path, tokenOperator)
		a.requireRefusal(t, http.StatusServiceUnavailable, "shutting down")
		require.Equal(t, "close", a.header.Get("Connection"))
	}
}

func TestThoseWhoAskForHealthTogetherShareTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		slow := &slowPing{Store: n.pb.store, let: make(chan struct{})}
		n.pb.store = slow
		answers := make(chan regAnswer)
		for range 50 {
			go func() { answers <- n.get("/healthz", "") }()
		}
		synctest.Wait()
		close(slow.let)
		for range 50 {
			require.Equal(t, http.StatusOK, (<-answers).status)
		}
		require.EqualValues(t, 1, slow.pings.Load())
		require.Equal(t, http.StatusOK, n.get("/healthz", "").status)
		require.EqualValues(t, 2, slow.pings.Load(), "an answer is for those who wait for it")
	})
}

// A client that leaves must not have the others told that the store is away.
func TestWhoAskedFirstForHealthMayLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		slow := &slowPing{Store: n.pb.store, let: make(chan struct{})}
		n.pb.store = slow
		ctx, leave := context.WithCancel(t.Context())
		go func() { _, _ = n.try(ctx, "GET", "/healthz", "", nil) }()
		synctest.Wait()
		other := make(chan regAnswer)
		go func() { other <- n.get("/healthz", "") }()
		synctest.Wait()
		leave()
		synctest.Wait()
		close(slow.let)
		require.Equal(t, http.StatusOK, (<-other).status)
	})
}

// slowPing is a store that keeps those waiting who ask whether it is there.
type slowPing struct {
	store.Store
	pings atomic.Int64
	let   chan struct{}
}

func (s *slowPing) Ping(ctx context.Context) error {
	s.pings.Add(1)
	select {
	case <-s.let:
		return s.Store.Ping(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}
