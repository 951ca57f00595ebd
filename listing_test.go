package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// placed walks over placements and returns them as "namespace/id", sorted, with the
// number of pages.
func (n *regNode) placed(token, query string) (ids []string, pages int) {
	n.t.Helper()
	for cursor := ""; ; {
		a := n.get("/registry/placements?"+query+"&cursor="+cursor, token)
		require.Equal(n.t, http.StatusOK, a.status, a.text)
		var page struct {
			Placements []struct{ Namespace, Hostname, ID string }
			Cursor     string
		}
		a.into(n.t, &page)
		for _, p := range page.Placements {
			ids = append(ids, p.Hostname+p.Namespace+"/"+p.ID)
		}
		pages++
		require.Less(n.t, pages, 1000)
		if cursor = page.Cursor; cursor == "" {
			slices.Sort(ids)
			return ids, pages
		}
	}
}

func TestPlacementsAreFoundByWorkerAndPrefixInAllNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		a, b := n.workerAt("http://127.0.0.1:1"), n.workerAt("http://127.0.0.1:2")
		a.record("/a", "/b")
		n.reclaim(a, "/a", "x", "y")
		b.record("/a", "/b")
		n.reclaim(b, "/b", "xx", "z")
		for _, limit := range []string{"", "&limit=1", "&limit=1000"} {
			for query, want := range map[string][]string{
				"":                                    {"/a/x", "/a/y", "/b/xx", "/b/z"},
				"namespace=/b":                        {"/b/xx", "/b/z"},
				"clientId=" + a.client:                {"/a/x", "/a/y"},
				"clientId=" + b.client + "&prefix=x":  {"/b/xx"},
				"prefix=x":                            {"/a/x", "/b/xx"},
				"namespace=/a&prefix=x":               {"/a/x"},
				"namespace=/b&clientId=" + a.client:   nil,
				"clientId=nobody":                     nil,
				"prefix=nothing":                      nil,
				"hostname=other.example":              nil,
				"hostname=other.example&namespace=/a": nil,
			} {
				ids, _ := n.placed(tokenOperator, query+limit)
				require.Equal(t, want, ids, query+limit)
			}
		}
		ids, _ := n.placed(tokenViewer, "limit=1")
		require.Equal(t, []string{"/a/x", "/a/y"}, ids, "only /a… is the viewer's to see")
		ids, _ = n.placed(tokenViewer, "clientId="+b.client)
		require.Empty(t, ids)
		n.get("/registry/placements?namespace=/b", tokenViewer).requireRefusal(t, http.StatusNotFound, "unknown namespace")
	})
}

// However many rows and bindings there are: what one request looks at is bounded,
// and so a page may be empty before the last one.
func TestOnePageOfPlacementsDoesABoundedPartOfTheWalk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		var namespaces []string
		for i := range 3*maxSteps + 1 {
			namespaces = append(namespaces, fmt.Sprintf("/a%03d", i))
		}
		w.record(namespaces...)
		last := namespaces[len(namespaces)-1]
		n.reclaim(w, last, "x")
		n.store.called()
		a := n.get("/registry/placements?prefix=x", tokenOperator)
		require.Equal(t, http.StatusOK, a.status)
		require.Equal(t, append([]string{"Live"}, slices.Repeat([]string{"Rows"}, maxSteps)...), n.store.called())
		require.Contains(t, a.text, `{"placements":[],"cursor":`)
		ids, pages := n.placed(tokenOperator, "prefix=x")
		require.Equal(t, []string{last + "/x"}, ids)
		require.Equal(t, 4, pages)
	})
}

// The binding that a walk was in may lose its last worker meanwhile.
func TestAWalkOverPlacementsOutlivesTheBindingItWasIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		a, c := n.workerAt("http://127.0.0.1:1"), n.workerAt("http://127.0.0.1:3")
		a.record("/a")
		n.reclaim(a, "/a", "x", "y")
		c.record("/c")
		n.reclaim(c, "/c", "x", "y")
		var page struct{ Cursor string }
		n.get("/registry/placements?limit=1", tokenOperator).into(t, &page)
		require.NotEmpty(t, page.Cursor)
		require.NoError(t, n.store.Deregister(t.Context(), a.session))
		rest := n.get("/registry/placements?cursor="+page.Cursor, tokenOperator)
		require.Equal(t, http.StatusOK, rest.status, rest.text)
		require.Contains(t, rest.text, `"namespace":"/c","id":"x"`)
		require.Contains(t, rest.text, `"namespace":"/c","id":"y"`)
	})
}

// A slow store makes short pages, not failed ones.
func TestAPageOfPlacementsEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a", "/b", "/c", "/d", "/e")
		n.reclaim(w, "/e", "x")
		n.store.intercept(func(_ context.Context, op string) error {
			if op == "Rows" {
				time.Sleep(300 * time.Millisecond) // virtual time
			}
			return nil
		})
		began := time.Now()
		ids, pages := n.placed(tokenOperator, "")
		require.Equal(t, []string{"/e/x"}, ids)
		require.Equal(t, 2, pages)
		require.Equal(t, 1500*time.Millisecond, time.Since(began))
	})
}

func TestOneIDTellsWhereItIsAndWhyAndHowItMoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.awaitQuarantine("/a")
		a, b := n.workerAt("http://127.0.0.1:2"), n.workerAt("http://127.0.0.1:3")
		a.record("/a")
		require.NoError(t, n.store.Activate(t.Context(), a.session))
		where := func() map[string]any {
			answer := n.get("/registry/placement?namespace=/a&id=x", tokenOperator)
			require.Equal(t, http.StatusOK, answer.status, answer.text)
			var p map[string]any
			answer.into(t, &p)
			return p
		}
		n.get("/registry/placement?namespace=/a&id=x", tokenOperator).requireRefusal(t, http.StatusNotFound, "not placed")
		synctest.Wait() // for the first sweep, which would take the row of a session that ends below
		at := time.Now().UnixMilli()
		first := n.resolved(ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "k", true }})
		require.Equal(t, map[string]any{
			"namespace": "/a", "id": "x", "clientId": a.client, "sessionId": a.session, "advertiseUrl": a.url,
			"epoch": float64(first.epoch), "placedAt": float64(at), "why": map[string]any{"cause": "new", "choice": "affinity"}, "moves": []any{},
		}, where())
		b.record("/a")
		require.NoError(t, n.store.Activate(t.Context(), b.session))
		second := n.resolved(ask{
			instance: instance{"/a", "x"}, prefer: b.session,
			refused: &store.Refused{SessionID: a.session, ClientID: a.client, Epoch: first.epoch},
		})
		require.Equal(t, b.session, second.lease.ID)
		require.Equal(t, map[string]any{"cause": "refused", "choice": "caller"}, where()["why"])
		require.NoError(t, n.store.Deregister(t.Context(), b.session))
		third := n.resolved(ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }})
		synctest.Wait()
		p := where()
		require.Equal(t, map[string]any{"cause": "failover", "choice": "twoChoices"}, p["why"])
		require.Equal(t, a.client, p["clientId"])
		moves := p["moves"].([]any)
		require.Len(t, moves, 2)
		for i, want := range []map[string]any{
			{"kind": "failover", "clientId": a.client, "sessionId": a.session, "fromClientId": b.client, "fromSessionId": b.session, "epoch": float64(third.epoch)},
			{"kind": "refused", "clientId": b.client, "sessionId": b.session, "fromClientId": a.client, "fromSessionId": a.session, "epoch": float64(second.epoch)},
		} {
			move := moves[i].(map[string]any)
			require.Positive(t, move["event"])
			want["event"], want["at"], want["namespaces"], want["id"] = move["event"], float64(at), []any{"/a"}, "x"
			require.Equal(t, want, move)
		}
	})
}

// resolved has an id looked up as for a request.
func (n *regNode) resolved(a ask) route {
	n.t.Helper()
	n.get("/healthz", "") // what runs in the background runs with the first request
	rt, err := n.pb.placer.resolve(n.t.Context(), a)
	require.NoError(n.t, err)
	return rt
}

func TestOneIDIsAskedForWithGoodParameters(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/b")
	n.reclaim(w, "/b", "x")
	for query, has := range map[string]string{
		"":                                   "namespace",
		"?id=x":                              "namespace",
		"?namespace=/b":                      "id",
		"?namespace=/b&id=a%2Fb":             "id",
		"?namespace=b&id=x":                  "namespace",
		"?namespace=/b&id=x&hostname=a%2Fb":  "hostname",
		"?namespace=/b&id=x&hostname=%zz":    "query",
		"?namespace=/b&id=x&hostname=&more=": "hostname",
	} {
		n.get("/registry/placement"+query, tokenOperator).requireRefusal(t, http.StatusBadRequest, has)
	}
	require.Equal(t, http.StatusOK, n.get("/registry/placement?namespace=/b&id=x", tokenOperator).status)
	n.get("/registry/placement?namespace=/b&id=x", tokenViewer).requireRefusal(t, http.StatusNotFound, "the id is not placed")
	n.get("/registry/placement?namespace=/b&id=x&hostname=h.example", tokenOperator).requireRefusal(t, http.StatusNotFound, "the id is not placed")
	n.get("/registry/placement?namespace=/b&id=x", tokenWorker).requireRefusal(t, http.StatusForbidden, "scope")
	n.call(http.MethodPost, "/registry/placement", tokenOperator, nil).requireRefusal(t, http.StatusMethodNotAllowed, "method")
}
