package pinboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// workersSeen returns what the token's owner sees of the workers, by clientId.
func (n *regNode) workersSeen(token string) map[string]map[string]any {
	n.t.Helper()
	a := n.get("/registry/workers", token)
	require.Equal(n.t, http.StatusOK, a.status, a.text)
	require.Equal(n.t, "no-store", a.header.Get("Cache-Control"))
	require.Contains(n.t, a.text, `{"workers":[`)
	var list struct{ Workers []map[string]any }
	a.into(n.t, &list)
	seen := map[string]map[string]any{}
	for _, w := range list.Workers {
		seen[w["clientId"].(string)] = w
	}
	require.Len(n.t, seen, len(list.Workers), "each worker once")
	return seen
}

func TestWorkersAreShownWithoutTheirSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		require.Empty(t, n.workersSeen(tokenOperator))
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a", "/b")
		registered := time.Now().UnixMilli()
		time.Sleep(5 * time.Second) // virtual time
		require.Equal(t, map[string]map[string]any{w.client: {
			"clientId": w.client, "sessionId": w.session, "advertiseUrl": w.url, "namespaces": []any{"/a", "/b"},
			"headroom": 0.0, "draining": false, "degraded": false, "expiresInMs": 10_000.0,
			"registeredAt": float64(registered), "epoch": 0.0,
		}}, n.workersSeen(tokenOperator))
		time.Sleep(10*time.Second + time.Millisecond)
		require.Empty(t, n.workersSeen(tokenOperator), "live ones only")
	})
}

func TestDrainingIsTheWorkersOwnFlagOrTheOperators(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	require.Equal(t, false, w.listed()["draining"])
	w.heartbeat(fields{"draining": true, "headroom": 2.5})
	require.Equal(t, true, w.listed()["draining"])
	require.InDelta(t, 2.5, w.listed()["headroom"], 0)
	w.heartbeat()
	require.Equal(t, false, w.listed()["draining"])
	n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": 600})
	require.Equal(t, true, w.listed()["draining"])
	require.InDelta(t, 600, w.listed()["drainDeadline"], 100)
}

func TestHeadroomIsWhatIsLeftAfterPlacements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.awaitQuarantine("/a")
		w := n.workerAt("http://127.0.0.1:2")
		w.record("/a")
		w.heartbeat(fields{"headroom": 3})
		require.NoError(t, n.store.SetDegraded(t.Context(), w.session, false)) // nobody answers at its URL
		for left := 2.0; left >= 0; left-- {
			n.owner("/a", fmt.Sprint(left))
			require.InDelta(t, left, w.listed()["headroom"], 0)
		}
	})
}

// What an operator does not see is not there; what it sees in part it cannot
// touch.
func TestOperatorsAreLimitedToTheirNamespaces(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	within, partly, hidden := n.worker(), n.worker(), n.worker()
	within.register(fields{"namespaces": []string{"/a", "/ab"}, "instances": fields{"/a": []string{"x"}}})
	partly.register(fields{"namespaces": []string{"/a", "/b"}, "instances": fields{"/a": []string{"y"}, "/b": []string{"y"}}})
	hidden.register(fields{"namespaces": []string{"/b"}, "instances": fields{"/b": []string{"z"}}})
	seen := n.workersSeen(tokenViewer)
	require.Len(t, seen, 2)
	require.Equal(t, []any{"/a", "/ab"}, seen[within.client]["namespaces"])
	require.Equal(t, []any{"/a"}, seen[partly.client]["namespaces"])
	require.Len(t, n.workersSeen(tokenOperator), 3)

	for _, path := range []string{"/registry/drain", "/registry/undrain"} {
		require.Equal(t, http.StatusOK, n.post(path, tokenViewer, fields{"clientId": within.client}).status)
		n.post(path, tokenViewer, fields{"clientId": partly.client}).requireRefusal(t, http.StatusForbidden, "claims")
		unknown := n.post(path, tokenViewer, fields{"clientId": "unknown"})
		unknown.requireRefusal(t, http.StatusNotFound, "clientId")
		a := n.post(path, tokenViewer, fields{"clientId": hidden.client})
		require.Equal(t, unknown.text, a.text, "hidden looks like unknown")
		require.Equal(t, http.StatusNotFound, a.status)
	}
	require.Equal(t, false, partly.listed()["draining"])
	require.Equal(t, false, hidden.listed()["draining"])

	windDown := func(ns, id string) regAnswer {
		return n.post("/registry/wind_down", tokenViewer, fields{"namespace": ns, "id": id, "deadline": 60})
	}
	require.Equal(t, http.StatusOK, windDown("/a", "y").status, "the id is within, whatever its worker serves besides")
	require.Equal(t, windDown("/a", "nobodys").text, windDown("/b", "z").text, "hidden looks like not placed")
	require.Equal(t, http.StatusNotFound, windDown("/b", "z").status)
	require.Nil(t, hidden.heartbeat().field(t, "messages"))

	require.Equal(t, http.StatusOK, n.get("/registry/placements?namespace=/a", tokenViewer).status)
	n.get("/registry/placements?namespace=/b", tokenViewer).requireRefusal(t, http.StatusNotFound, "namespace")
}

func TestHealthTellsOfTheQuarantineAndOfThisNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		left := func() any {
			t.Helper()
			a := n.get("/registry/health", tokenOperator)
			require.Equal(t, http.StatusOK, a.status, a.text)
			return a.field(t, "quarantineMs")
		}
		require.InDelta(t, 0, left(), 0, "nothing has been placed")
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		require.InDelta(t, 0, left(), 0, "a registration is no placement")
		_, err := n.store.Resolve(t.Context(), n.ask("/a", "x"))
		require.NoError(t, err)
		require.InDelta(t, 15_000, left(), 0)
		time.Sleep(15*time.Second - time.Microsecond) // virtual time
		require.InDelta(t, 1, left(), 0, "rounded up")
		time.Sleep(time.Second)
		require.InDelta(t, 0, left(), 0)

		c := &n.pb.counters
		c.resolves.Add(1)
		c.cacheHits.Add(2)
		c.proxying.add(kindHTTP, 1) // of all kinds
		c.proxying.add(kindSSE, 2)
		c.retries.add(markerNone, 4)
		c.limits.add(limitRequests, 5)
		c.limits.add(limitURL, 1) // is no request too many
		a := n.get("/registry/health", tokenOperator)
		for number, name := range []string{"resolves", "cacheHits", "proxying", "retries", "turnedAway"} {
			require.InDelta(t, number+1, a.field(t, name), 0, name)
		}
	})
}

func TestADrainStopsPlacementsAndOutlivesTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		drain := func(body fields) regAnswer {
			t.Helper()
			a := n.post("/registry/drain", tokenOperator, body)
			require.Equal(t, http.StatusOK, a.status, a.text)
			require.Equal(t, true, a.field(t, "draining"))
			return a
		}
		require.Nil(t, drain(fields{"clientId": w.client}).field(t, "drainDeadline"))
		require.Nil(t, w.listed()["drainDeadline"])
		require.InDelta(t, 30.5, drain(fields{"clientId": w.client, "deadline": 30.5}).field(t, "drainDeadline"), 0.001)
		time.Sleep(10 * time.Second) // virtual time
		require.InDelta(t, 20.5, w.listed()["drainDeadline"], 0.001)
		require.InDelta(t, 0, drain(fields{"clientId": w.client, "deadline": 0}).field(t, "drainDeadline"), 0)
		require.Greater(t, drain(fields{"clientId": w.client, "deadline": 1e300}).field(t, "drainDeadline"), 1e8)

		time.Sleep(20 * time.Second)
		require.Nil(t, w.listed())
		drain(fields{"clientId": w.client, "deadline": 60}) // remembered past the session
		w.record("/a")
		require.Equal(t, true, w.listed()["draining"])
		a := n.post("/registry/undrain", tokenOperator, fields{"clientId": w.client})
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.JSONEq(t, `{"draining":false}`, a.text)
		require.Equal(t, false, w.listed()["draining"])
		require.Nil(t, w.listed()["drainDeadline"])
	})
}

func TestAWindDownReachesTheOwnerWithAtLeastALease(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"instances": fields{"/a": []string{"x", "y", "z"}}})
	for id, deadline := range map[string]any{"x": 600, "y": 0, "z": nil} {
		a := n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": id, "deadline": deadline})
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.JSONEq(t, `{"queued":true}`, a.text)
	}
	deadlines := map[string]any{}
	for _, m := range w.heartbeat().field(t, "messages").([]any) {
		message := m.(map[string]any)
		require.Equal(t, "wind_down", message["type"])
		require.Equal(t, "/a", message["ns"])
		require.NotEmpty(t, message["msgId"])
		deadlines[message["id"].(string)] = message["deadline"]
	}
	require.Len(t, deadlines, 3)
	require.InDelta(t, 600, deadlines["x"], 10)
	require.InDelta(t, 15, deadlines["y"], 5, "one lease")
	require.Nil(t, deadlines["z"])
}

func TestAWindDownOfWhatIsNotPlacedIs404(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"instances": fields{"/a": []string{"x"}}})
	body := fields{"namespace": "/a", "id": "x", "deadline": 60}
	n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": "y", "deadline": 60}).requireRefusal(t, http.StatusNotFound, "not placed")
	n.store.fail(store.ErrQueueFull, "WindDown")
	n.post("/registry/wind_down", tokenOperator, body).requireRefusal(t, http.StatusServiceUnavailable, "messages")
	n.store.intercept(nil)
	require.Equal(t, http.StatusOK, n.post("/registry/wind_down", tokenOperator, body).status)
	// A dead session's row is not a placement.
	require.Equal(t, http.StatusOK, n.post("/registry/deregister", tokenWorker, fields{"sessionId": w.session}).status)
	n.post("/registry/wind_down", tokenOperator, body).requireRefusal(t, http.StatusNotFound, "not placed")
}

func TestOperatorsBodiesWithAWrongFieldAre400(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	for _, c := range []struct {
		path, field string
		value       any
	}{
		{"drain", "clientId", missing}, {"drain", "clientId", 1}, {"drain", "clientId", ""},
		{"drain", "deadline", -1}, {"drain", "deadline", "30"}, {"drain", "deadline", true},
		{"undrain", "clientId", missing}, {"undrain", "clientId", nil},
		{"wind_down", "namespace", missing}, {"wind_down", "namespace", "a"}, {"wind_down", "id", missing},
		{"wind_down", "id", "a/b"}, {"wind_down", "deadline", missing}, {"wind_down", "deadline", -0.5},
		{"wind_down", "deadline", "soon"}, {"wind_down", "hostname", ""}, {"wind_down", "hostname", "a/b"},
	} {
		body := fields{"clientId": "c", "namespace": "/a", "id": "x", "deadline": 1, c.field: c.value}
		if c.value == any(missing) {
			delete(body, c.field)
		}
		n.post("/registry/"+c.path, tokenOperator, body).requireRefusal(t, http.StatusBadRequest, c.field)
	}
	for _, path := range []string{"drain", "undrain", "wind_down"} {
		for _, body := range []string{"", "[]", "null", "{", `{"deadline":1e999}`} {
			n.post("/registry/"+path, tokenOperator, body).requireRefusal(t, http.StatusBadRequest, "")
		}
	}
	require.Empty(t, n.store.called())
}

func TestPlacementsComeInPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		const count = 250
		ids := make([]string, count)
		for i := range ids {
			ids[i] = fmt.Sprint("id", i)
		}
		n.reclaim(w, "/a", ids...)
		placed := float64(time.Now().UnixMilli())
		walk := func(query string, most int) map[string]bool {
			t.Helper()
			seen := map[string]bool{}
			for cursor, pages := "", 0; ; pages++ {
				require.Less(t, pages, 2*count)
				a := n.get("/registry/placements?namespace=%2Fa&more=ignored"+query+"&cursor="+cursor, tokenOperator)
				require.Equal(t, http.StatusOK, a.status, a.text)
				var page struct {
					Placements []map[string]any
					Cursor     string
				}
				a.into(t, &page)
				require.LessOrEqual(t, len(page.Placements), most)
				for _, row := range page.Placements {
					require.Equal(t, w.client, row["clientId"])
					require.Positive(t, row["epoch"])
					require.InDelta(t, placed, row["placedAt"], 0)
					require.Equal(t, w.session, row["sessionId"])
					require.Equal(t, "/a", row["namespace"])
					require.Equal(t, map[string]any{"cause": "reclaimed"}, row["why"])
					require.Len(t, row, 7)
					seen[row["id"].(string)] = true
				}
				if cursor = page.Cursor; cursor == "" {
					return seen
				}
			}
		}
		require.Len(t, walk("", 100), count)
		require.Len(t, walk("&limit=7", 7), count)
		require.Len(t, walk("&limit=1000", 1000), count)
		require.Equal(t, `{"placements":[]}`, n.get("/registry/placements?namespace=/b", tokenOperator).text)
	})
}

func TestAPageIsAskedForWithGoodParameters(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	n.workerAt("http://127.0.0.1:1").record("/a")
	for query, has := range map[string]string{
		"?cursor=%21bad":                "cursor",
		"?cursor=L2E":                   "cursor", // "/a"
		"?cursor=L2EgYmFk":              "cursor", // "/a bad"
		"?namespace=":                   "namespace",
		"?namespace=a":                  "namespace",
		"?namespace=/a/b":               "namespace",
		"?namespace=/a&limit=0":         "limit",
		"?namespace=/a&limit=1001":      "limit",
		"?namespace=/a&limit=-1":        "limit",
		"?namespace=/a&limit=ten":       "limit",
		"?namespace=/a&cursor=%21bad":   "cursor",
		"?namespace=/a;limit=1":         "query",
		"?namespace=%zz":                "query",
		"?namespace=/a&cursor=x&limit=": "cursor",
	} {
		n.get("/registry/placements"+query, tokenOperator).requireRefusal(t, http.StatusBadRequest, has)
	}
}

func TestOperatorsCallsAre503WhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	body := fields{"clientId": "c", "namespace": "/a", "id": "x", "deadline": 1}
	calls := map[string]any{
		"workers": nil, "health": nil, "placements?namespace=/a": nil, "placements": nil, "placement?namespace=/a&id=x": nil,
		"overview": nil, "stats": nil, "events": nil, "drain": body, "undrain": body, "wind_down": body,
	}
	call := func(n *regNode, path string, body any) regAnswer {
		if body == nil {
			return n.get("/registry/"+path, tokenOperator)
		}
		return n.post("/registry/"+path, tokenOperator, body)
	}
	for path, body := range calls {
		synctest.Test(t, func(t *testing.T) {
			n := newRegNode(t, Options{}, nil)
			n.store.fail(errStoreTest)
			call(n, path, body).requireRefusal(t, http.StatusServiceUnavailable, "store")
			require.Contains(t, n.said.String(), errStoreTest.Error())
			n.store.freeze()
			began := time.Now()
			call(n, path, body).requireRefusal(t, http.StatusServiceUnavailable, "store")
			require.Less(t, time.Since(began), 5*time.Second, path) // virtual time
		})
	}
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/a")
	for _, op := range []string{"Drain", "Undrain"} {
		n.store.fail(errStoreTest, op)
		n.post("/registry/"+strings.ToLower(op), tokenOperator, fields{"clientId": w.client}).
			requireRefusal(t, http.StatusServiceUnavailable, "store")
		n.store.fail(store.ErrNoClient, op) // forgotten just now
		n.post("/registry/"+strings.ToLower(op), tokenOperator, fields{"clientId": w.client}).
			requireRefusal(t, http.StatusNotFound, "clientId")
	}
}
