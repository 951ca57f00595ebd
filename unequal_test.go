package pinboard

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A node with other Shards than the fleet looks for an id in another place, and would
// place it a second time. It answers 503 and nothing that costs a worker its session.
func TestANodeWithOtherShardsServesNothing(t *testing.T) {
	t.Parallel()
	directory := MemoryStore()
	inPlacingBubble(t, Options{Store: directory, Shards: 1}, func(t *testing.T, n *regNode) {
		other := newRegNode(t, Options{Store: directory, Shards: 8}, nil)
		w := n.ready(1000, "/a")
		for _, id := range []string{"x", "y", "z"} {
			_, err := n.resolve(id, nil)
			require.NoError(t, err)
		}
		const line = "this node's settings are not the fleet's"
		before := strings.Count(other.said.String(), line)
		const refusal = "the store does not answer"
		w.n = other
		for range 5 {
			for _, id := range []string{"x", "y", "z", "new"} {
				other.get("/a/"+id, "").requireRefusal(t, http.StatusServiceUnavailable, refusal)
			}
			other.post("/registry/heartbeat", tokenWorker, w.beat()).requireRefusal(t, http.StatusServiceUnavailable, refusal)
			other.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, refusal)
			release := fields{"sessionId": w.session, "namespace": "/a", "id": "x"}
			other.post("/registry/release", tokenWorker, release).requireRefusal(t, http.StatusServiceUnavailable, refusal)
			other.get("/healthz", "").requireRefusal(t, http.StatusServiceUnavailable, refusal)
		}
		said := other.said.String()
		require.Equal(t, 1, strings.Count(said, line)-before, "once in a while")
		require.Contains(t, said, `"level":"error"`)
		require.Contains(t, said, "Shards (PINBOARD_SHARDS) is 8 on this node and 1 on the nodes that workers are registered with")
		<-time.After(tellEvery)
		other.get("/healthz", "")
		require.Equal(t, 2, strings.Count(other.said.String(), line)-before)

		w.n = n
		w.report(1000)
		require.Equal(t, http.StatusOK, n.get("/healthz", "").status)
		synctest.Wait()
		for _, id := range []string{"x", "y", "z"} {
			session, _ := n.owner("/a", id)
			require.Equal(t, w.session, session)
		}
	})
}
