// Package silent has, for the tests of the examples, a pinboard that lets a worker in
// and never answers when it says goodbye.
package silent

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Start points the environment of a worker at such a pinboard. The channel gets a value
// with each heartbeat: the worker knows its session then.
func Start(t *testing.T) (beats <-chan struct{}) {
	t.Helper()
	beat := make(chan struct{}, 100)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /registry/register", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"sessionId": "a-session", "expiresInMs": 15000, "draining": false}`))
	})
	mux.HandleFunc("POST /registry/heartbeat", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"expiresInMs": 15000, "draining": false}`))
		beat <- struct{}{}
	})
	mux.HandleFunc("POST /registry/deregister", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Setenv("PINBOARD_URL", server.URL)
	t.Setenv("PINBOARD_TOKEN", "a-token")
	t.Setenv("ADVERTISE_URL", "http://127.0.0.1:1")
	t.Setenv("LISTEN", "127.0.0.1:0")
	return beat
}
