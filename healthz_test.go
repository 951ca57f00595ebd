package pinboard

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
