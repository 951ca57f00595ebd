package pinboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// workerStats are a worker's, as the Python client writes them.
const workerStats = `{"draining":false,"leaseFlaps":1,"reregistrations":2,"namespaces":{"/a":{"activations":3,"evictions":0},"/b":{"activations":1,"evictions":1}},` +
	`"instances":[{"namespace":"/a","id":"x","connections":1,"tasks":0,"idleMs":0},{"namespace":"/b","id":"hidden","connections":0,"tasks":0,"idleMs":5}],` +
	`"process":{"uptimeMs":1000},"later":"/b"}`

// statsSeen returns what each worker answers, by clientId.
func (n *regNode) statsSeen(token, query string) map[string]json.RawMessage {
	n.t.Helper()
	a := n.get("/registry/stats"+query, token)
	require.Equal(n.t, http.StatusOK, a.status, a.text)
	var seen map[string]json.RawMessage
	a.into(n.t, &seen)
	return seen
}

func (w *regWorker) says(text string) {
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(rw, text) })
}

func TestWorkersAreAskedForTheirStatsWithTheirSecretAndAnAttestation(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	require.Empty(t, n.statsSeen(tokenOperator, ""))
	w := n.worker()
	w.register(fields{"namespaces": []string{"/a", "/b"}})
	var mu sync.Mutex
	var asked *http.Request
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = r
		_, _ = fmt.Fprint(rw, workerStats)
	})
	require.JSONEq(t, workerStats, string(n.statsSeen(tokenOperator, "")[w.client]))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, http.MethodGet, asked.Method)
	require.Equal(t, "/_pinned/stats", asked.RequestURI)
	require.Equal(t, w.secret, asked.Header.Get("Pinboard-Proxy-Secret"))
	claims, err := attest.Verify(asked.Header.Get("Pinboard-Attestation"), wire.NewSecret(w.secret),
		func(aud string) bool { return aud == w.session }, time.Now())
	require.NoError(t, err)
	require.Equal(t, attest.Claims{Audience: w.session}, claims)
}

func TestStatsShowNothingOfHiddenNamespaces(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	partly, hidden, rude := n.worker(), n.worker(), n.worker()
	partly.register(fields{"namespaces": []string{"/a", "/b"}})
	hidden.register(fields{"namespaces": []string{"/b"}})
	rude.register(fields{"namespaces": []string{"/a", "/b"}})
	partly.says(workerStats)
	hidden.says(workerStats)
	rude.says(`{"instances":[1,{"namespace":"/b"},{"namespace":null},{},{"namespace":{}},"/b"],"namespaces":{"/b":{}},"draining":true}`)
	seen := n.statsSeen(tokenViewer, "")
	require.Len(t, seen, 2)
	require.JSONEq(t, `{"draining":false,"leaseFlaps":1,"reregistrations":2,"namespaces":{"/a":{"activations":3,"evictions":0}},`+
		`"instances":[{"namespace":"/a","id":"x","connections":1,"tasks":0,"idleMs":0}],"process":{"uptimeMs":1000}}`, string(seen[partly.client]))
	require.JSONEq(t, `{"draining":true,"namespaces":{},"instances":[]}`, string(seen[rude.client]))
	for _, w := range []*regWorker{partly, hidden} {
		a := n.get("/registry/stats?clientId="+w.client, tokenViewer)
		require.Equal(t, map[*regWorker]int{partly: 200, hidden: 404}[w], a.status, a.text)
	}
	require.Len(t, n.statsSeen(tokenOperator, "?clientId="+hidden.client), 1)
	n.get("/registry/stats?clientId=", tokenOperator).requireRefusal(t, http.StatusNotFound, "clientId")
	rude.says(`{"instances":{},"namespaces":[]}`)
	require.JSONEq(t, `{"error":"the worker's stats are malformed"}`, string(n.statsSeen(tokenViewer, "")[rude.client]))
}

func TestAWorkerWithoutStatsIsAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	elsewhere := n.worker() // where no secret may be sent
	asked := false
	elsewhere.answers(func(http.ResponseWriter, *http.Request) { asked = true })
	good := n.worker()
	good.register()
	good.says(`{}`)
	want := map[string]string{good.client: `{}`}
	for answer, message := range map[string]string{
		"500":                                "the worker answers with status 500", // pinned 0.16.0, where a class has no stats()
		"403":                                "the worker answers with status 403",
		"302":                                "the worker answers with status 302",
		"hang up":                            "the advertise URL does not answer",
		"cut":                                "the advertise URL does not answer",
		strings.Repeat(" ", maxStats) + "{}": "the worker's stats are larger than 4194304 bytes",
		`[]`:                                 "the worker's stats are malformed",
		`null`:                               "the worker's stats are malformed",
		`{"draining":`:                       "the worker's stats are malformed",
		`{}{}`:                               "the worker's stats are malformed",
		"":                                   "the worker's stats are malformed",
	} {
		w := n.worker()
		w.register()
		want[w.client] = `{"error":"` + message + `"}`
		w.answers(func(rw http.ResponseWriter, r *http.Request) {
			switch answer {
			case "500", "403":
				http.Error(rw, `{"detail":"no"}`, map[string]int{"500": 500, "403": 403}[answer])
			case "302":
				http.Redirect(rw, r, elsewhere.url+"/_pinned/stats", http.StatusFound)
			case "hang up":
				panic(http.ErrAbortHandler)
			case "cut":
				rw.Header().Set("Content-Length", "100")
				_, _ = fmt.Fprint(rw, "{")
			default:
				_, _ = fmt.Fprint(rw, answer)
			}
		})
	}
	seen := n.statsSeen(tokenOperator, "")
	require.Len(t, seen, len(want))
	for client, text := range want {
		require.JSONEq(t, text, string(seen[client]))
	}
	require.False(t, asked)
}

func TestStatsOfManyAreAskedSideBySideAndInBoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open := 0
		var counted []int
		n := newRegNode(t, Options{}, hanging(&mu, &open))
		const workers = 3 * asksAtOnce
		for i := range workers {
			n.workerAt(fmt.Sprintf("http://127.0.0.1:%d", i+1)).record("/a")
		}
		began := time.Now()
		go func() {
			time.Sleep(time.Second / 2)
			for range 2 {
				time.Sleep(time.Second) // virtual time: within a round
				mu.Lock()
				counted = append(counted, open)
				mu.Unlock()
			}
		}()
		seen := n.statsSeen(tokenOperator, "")
		require.Equal(t, statsWithin, time.Since(began))
		require.Len(t, seen, workers)
		messages := map[string]int{}
		for _, text := range seen {
			messages[string(text)]++
		}
		require.Equal(t, map[string]int{
			`{"error":"the advertise URL does not answer"}`:      2 * asksAtOnce,
			`{"error":"not asked: other workers took too long"}`: asksAtOnce,
		}, messages)
		mu.Lock()
		require.Equal(t, []int{asksAtOnce, asksAtOnce}, counted)
		mu.Unlock()

		// Nor may operators pile up.
		var group sync.WaitGroup
		statuses := make(chan int, statsAtOnce+1)
		for range statsAtOnce + 1 {
			group.Go(func() { statuses <- n.get("/registry/stats", tokenOperator).status })
		}
		synctest.Wait()
		require.Equal(t, http.StatusServiceUnavailable, <-statuses)
		group.Wait()
		for range statsAtOnce {
			require.Equal(t, http.StatusOK, <-statuses)
		}
	})
}

// Where a worker lost its advertise URL another process is, which must not get its
// secret.
func TestStatsAreNotAskedWhereAnotherProcessIs(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	first, second := n.worker(), n.worker()
	first.register()
	second.url = first.url
	var mu sync.Mutex
	var secrets []string
	first.answers(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		secrets = append(secrets, r.Header.Get("Pinboard-Proxy-Secret"))
		_, _ = fmt.Fprint(rw, `{}`)
	})
	_, err := n.store.Register(context.Background(), store.Registration{
		SessionID: "taker", ClientID: second.client, Secret: wire.NewSecret(second.secret), Namespaces: []string{"/a"},
		AdvertiseURL: first.url, BackendHosts: []string{"*"},
	})
	require.NoError(t, err)
	seen := n.statsSeen(tokenOperator, "")
	require.Len(t, seen, 1)
	require.Contains(t, seen, second.client)
	require.Equal(t, []string{second.secret}, secrets)
}

// What is dialled is checked as by a probe: a name may have been pointed elsewhere.
func TestStatsAreNotAskedOutsideTheRules(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	asked := false
	w.answers(func(http.ResponseWriter, *http.Request) { asked = true })
	w.session = "s"
	url := strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	r := w.at(url, "192.0.2.7")
	r.BackendHosts = []string{"192.0.2.0/24"}
	_, err := n.store.Register(t.Context(), r)
	require.NoError(t, err)
	require.Contains(t, string(n.statsSeen(tokenOperator, "")[w.client]), "address outside the credential's claims")
	require.False(t, asked)
}

func TestTheStatsOfAllWorkersAreBounded(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	const text, fit, more = `{"x":"twenty-five bytes"}`, 2, 3
	n.pb.registry.asking.most = fit * int64(len(text))
	for range fit + more {
		w := n.worker()
		w.register()
		w.says(text)
	}
	tooLarge := 0
	for _, text := range n.statsSeen(tokenOperator, "") {
		if strings.Contains(string(text), "ask for this one with clientId") {
			tooLarge++
		}
	}
	require.Equal(t, more, tooLarge)
}

// hanging dials workers that accept and say nothing, and counts them.
func hanging(mu *sync.Mutex, open *int) regDial {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		near, far := net.Pipe()
		mu.Lock()
		*open++
		mu.Unlock()
		go func() {
			_, _ = io.Copy(io.Discard, far)
			mu.Lock()
			*open--
			mu.Unlock()
		}()
		return near, nil
	}
}
