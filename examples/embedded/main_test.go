package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const document = `{"providers": [{"type": "staticToken", "id": "p", "keys": [{"name": "k", "token": {"env": "TOKEN"},
  "scopes": ["pinboard:worker"], "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}}]}],
  "namespaces": {"/counters": {"allow": "anonymous"}}}`

func TestAPinboardBelowAPathOfAServerOfOnesOwn(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	env := map[string]string{"PINBOARD_PASSPORT": document, "TOKEN": "a-token", "REDIS_URL": "memory:", "PINBOARD_LEASE_TTL_MS": "1000"}
	core, logs := observer.New(zap.InfoLevel)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, listener, zap.New(core), func(name string) (string, bool) { value, ok := env[name]; return value, ok })
	}()
	base := "http://" + listener.Addr().String()

	var w *worker.Worker
	backend := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.ServeHTTP(rw, r) }))
	w, err = worker.New(worker.Options{
		PinboardURL: base + "/pins", Token: "a-token", AdvertiseURL: backend.URL,
		HeartbeatInterval: lease / 5, LeaseBuffer: lease / 3, LeaseTTL: lease,
	})
	require.NoError(t, err)
	require.NoError(t, w.Host("/counters", func(in *worker.Instance) (http.Handler, error) {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, in.ID()) }), nil
	}))
	require.NoError(t, w.Start())
	require.NoError(t, w.AwaitReady(ctx))
	client := &http.Client{Transport: &http.Transport{}}
	get := func(path string) (status int, body string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	_, hello := get("/hello")
	require.Equal(t, "hello\n", hello)
	require.Eventually(t, func() bool { // an empty store waits for one lease
		status, body := get("/pins/counters/alice")
		return status == http.StatusOK && body == "alice"
	}, 20*time.Second, 50*time.Millisecond)
	require.NoError(t, w.Shutdown(ctx))
	client.CloseIdleConnections()
	backend.Close()
	stop()
	require.NoError(t, <-ended)
	placed := logs.FilterMessage("placed").All()
	require.Len(t, placed, 1)
	require.Equal(t, "alice", placed[0].ContextMap()["id"])
}

func TestAWrongEnvironmentIsAnError(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	err = serve(t.Context(), listener, zap.NewNop(), func(string) (string, bool) { return "", false })
	require.ErrorContains(t, err, "PINBOARD_PASSPORT")
}
