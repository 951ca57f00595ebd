package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/ui"
)

type object = map[string]any

// largeFleet answers as a registry with a thousand workers does, which hold a
// million ids.
func largeFleet(asked *atomic.Int64) http.Handler {
	const workers = 1000
	overview, list := []object{}, []object{}
	for i := range workers {
		client, namespaces := fmt.Sprintf("%032d", i), object{"/chat": 900}
		for ns := range 10 {
			namespaces["/n"+strconv.Itoa(ns)] = 10
		}
		state := "ready"
		if i == 700 {
			state = "degraded"
		}
		overview = append(overview, object{"clientId": client, "sessionId": "S" + client, "state": state, "headroom": i, "placements": 1000, "namespaces": namespaces})
		list = append(list, object{"clientId": client, "sessionId": "S" + client, "advertiseUrl": fmt.Sprintf("http://10.0.%d.%d:8000", i/250, i%250), "expiresInMs": 15000, "namespaces": []string{}})
	}
	spaces := []object{}
	for i := range 300 {
		spaces = append(spaces, object{"namespace": "/n" + strconv.Itoa(i), "placements": 3333, "workers": workers, "ready": workers, "headroom": 1})
	}
	events := []object{}
	for i := range 1000 {
		events = append(events, object{"event": 1000 - i, "at": 1795992240957, "kind": "failover", "namespaces": []string{"/chat"}, "id": fmt.Sprint("t-", i), "clientId": "x"})
	}
	answers := map[string]any{
		"/registry/overview": object{"placements": 1_000_000, "namespaces": spaces, "workers": overview},
		"/registry/workers":  object{"workers": list},
		"/registry/health":   object{"quarantineMs": 0},
		"/registry/events":   object{"events": events[:100], "before": 900},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asset := ui.Find(r.URL.Path); asset != nil {
			asset.ServeHTTP(w, r)
			return
		}
		if r.Header.Get("Accept") == "text/event-stream" {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range events {
				text, _ := json.Marshal(e)
				_, _ = fmt.Fprintf(w, "id: %v\ndata: %s\n\n", e["event"], text)
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/registry/placements" {
			n := asked.Add(1)
			// Most pages are empty, as with a prefix that few ids have.
			rows := []object{}
			if n%20 == 0 {
				rows = append(rows, object{"namespace": "/chat", "id": fmt.Sprint("t-", n), "clientId": fmt.Sprintf("%032d", 1), "epoch": n, "placedAt": 1795992240957})
			}
			_ = json.NewEncoder(w).Encode(object{"placements": rows, "cursor": fmt.Sprint(n)})
			return
		}
		_ = json.NewEncoder(w).Encode(answers[r.URL.Path])
	})
}

func TestAFleetOfAThousandWorkersMakesASmallDocument(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(largeFleet(&asked))
	defer func() { server.CloseClientConnections(); server.Close() }()
	s := &site{t: t, server: server, url: server.URL}
	p := open(t, newBrowser(t), s.url)
	p.awaitFleet()
	elements := func() int { return ask[int](p, `document.querySelectorAll("*").length`) }
	require.Equal(t, "1,000,000", p.text("#placements"))
	require.Equal(t, "999 ready", p.text("#ready"))
	require.Equal(t, "1–50 of 1,000 workers", p.text("#worker-pages .told"))
	require.Equal(t, "1–10 of 300 namespaces", p.text("#namespace-pages .told"))
	require.Less(t, elements(), 2500)
	require.Contains(t, ask[string](p, `document.querySelector("#worker-rows tr").innerText`), "degraded", "what needs attention comes first")

	p.do(chromedp.Click("#worker-pages button:last-child"))
	p.await("it turns", `document.querySelector("#worker-pages .told").innerText === "51–100 of 1,000 workers"`)
	p.do(chromedp.SendKeys("#filter", "10.0.3.249"))
	p.await("it finds", `document.querySelectorAll("#worker-rows tr").length === 1 && document.querySelector("#worker-pages .told").innerText === "1 of 1,000 workers"`)

	p.goTo("#/events")
	p.await("events are there", `document.querySelectorAll("#event-rows li").length === 100`)
	require.Less(t, elements(), 3500)

	// A search among a million ends when it has done its part, and goes on when told.
	p.goTo("#/ids?namespace=/chat&prefix=t-")
	p.await("it ends", `document.querySelector("#rows-told").textContent === "Not all ids have been looked at yet: Next goes on."`)
	require.EqualValues(t, 100, asked.Load())
	require.Equal(t, 5, ask[int](p, `document.querySelectorAll("#rows tr").length`))
	p.do(chromedp.Click("#rows-next"))
	p.await("it has gone on", `document.querySelector("#rows th")?.textContent === "/chat/t-120" && document.querySelector("#rows-stop").hidden`)
	require.EqualValues(t, 200, asked.Load())
	p.wellBehaved(s)
}
