package pinboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// rawRequest is a request as a server hands it over, of whatever shape.
func rawRequest(method, target string, header http.Header) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Method, r.RequestURI, r.Header = method, target, header
	r.URL.Path = target
	r.RemoteAddr = "192.0.2.1:4000"
	return r
}

func TestWhatClientsMakeUpMakesNoSeries(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	f := newFront(t, metered(registry), func(s *setup) { s.opts.Logger = nil })
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice")
	before := scrape(t, registry)
	ask := func(r *http.Request) { f.pb.ServeHTTP(httptest.NewRecorder(), r) }
	hostile := []string{
		"/counters", "/counters/", "/registry", "/registry/x", "/metrics/x", "/%2Fcounters/x", "/%00/x", "/%ff%fe/x", "/%0a{a=\"b\"}/x",
		"/other/x", "/counters%20/x", "/" + strings.Repeat("n", 200) + "/x", "/" + strings.Repeat("n", 20_000), "*", "", "/../x", "/#",
	}
	for i := range 10_000 {
		method := []string{"GET", "POST", "BREW", fmt.Sprintf("M%d", i)}[i%4]
		ask(rawRequest(method, fmt.Sprintf("/invented%d/id%d", i, i), http.Header{
			"X-Request-Id": {fmt.Sprint("r", i)}, "Origin": {fmt.Sprint("https://o", i)}, "X-Forwarded-For": {fmt.Sprintf("198.51.100.%d", i%256)},
		}))
		if i < 200 { // these are of a namespace that is there
			ask(rawRequest(http.MethodGet, fmt.Sprintf("/counters/id%d", i), http.Header{}))
			r := rawRequest(http.MethodGet, fmt.Sprintf("/invented%d/x", i), http.Header{})
			r.Host = fmt.Sprintf("host%d.example", i)
			ask(r)
		}
		ask(rawRequest(method, hostile[i%len(hostile)], http.Header{"Pinboard-From": {fmt.Sprint(i)}}))
	}
	fresh := []string{}
	for name := range scrape(t, registry) {
		if _, there := before[name]; !there {
			fresh = append(fresh, name)
		}
	}
	require.ElementsMatch(t, []string{ // of whatever path below /registry that does not exist
		"pinboard_registry_calls_total{call=unknown,code=404}", "pinboard_registry_call_seconds_count{call=unknown}",
	}, fresh)
}

// Workers, too, make names up, if their claims let them.
func TestSeriesOfNamespacesAreBoundAndEndWithThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		n := newRegNode(t, Options{Metrics: registry, LeaseTTL: time.Hour}, nil)
		namespaces := func() (out []string) {
			for name := range only(scrape(t, registry), "pinboard_namespace_workers") {
				if strings.Contains(name, "state=registering") {
					out = append(out, strings.TrimPrefix(strings.Split(name, ",")[0], "pinboard_namespace_workers{namespace="))
				}
			}
			return out
		}
		var names []string
		for i := range maxNamespaces + 7 {
			names = append(names, fmt.Sprintf("/made%03d", i))
		}
		w := n.workerAt("http://127.0.0.1:1")
		w.record(append([]string{"/\xff"}, names[1:]...)...) // no registration can, but a store might
		require.Len(t, namespaces(), maxNamespaces+1)
		require.InDelta(t, 7, scrape(t, registry)["pinboard_namespace_workers{namespace=other,state=registering}"], 0)
		series := len(scrape(t, registry))
		require.Less(t, series, 100*maxNamespaces)

		require.NoError(t, n.store.Deregister(t.Context(), w.session))
		time.Sleep(fleetEvery)
		require.Contains(t, scrape(t, registry), "pinboard_namespace_workers{namespace=/made001,state=ready}", "so that somebody can be told")
		require.Empty(t, namespaces())
		time.Sleep(namespaceMemory)
		n.workerAt("http://127.0.0.1:2").record("/fresh")
		scrape(t, registry) // the one that forgets
		time.Sleep(fleetEvery)
		require.Equal(t, []string{"/fresh"}, namespaces())
		for name := range scrape(t, registry) {
			require.NotContains(t, name, "/made")
		}
	})
}
