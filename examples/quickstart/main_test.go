package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/worker"
)

func TestAnIDIsPlacedCalledKeptAndMovedOn(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, false))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 9, out.String())
	held := func(line string) string { _, by, _ := strings.Cut(line, "held by "); return by }
	require.Contains(t, lines[3], "alice is 1")
	require.Contains(t, lines[4], "alice is 2")
	require.Contains(t, lines[5], "alice is 3")
	require.Equal(t, held(lines[3]), held(lines[5]))
	require.Contains(t, lines[6], "bob is 1")
	require.Contains(t, lines[8], "alice is 1", "a new instance starts anew")
	require.NotEqual(t, held(lines[3]), held(lines[8]))
}

// With what it prints, a worker with default settings gets a lease that it can serve by.
func TestServeTellsAWorkerWhatItNeeds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	output, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, out, true)
		_ = out.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(output)
	var needs []string
	for needs == nil && lines.Scan() {
		needs = regexp.MustCompile(`export PINBOARD_URL=(\S+) PINBOARD_TOKEN=(\S+)$`).FindStringSubmatch(lines.Text())
	}
	require.NotNil(t, needs)
	go func() { _, _ = io.Copy(io.Discard, output) }()

	var w *worker.Worker
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.ServeHTTP(rw, r) }))
	defer server.Close()
	w, err := worker.New(worker.Options{PinboardURL: needs[1], Token: worker.Token(needs[2]), AdvertiseURL: server.URL})
	require.NoError(t, err)
	require.NoError(t, w.Host("/own", newCounter("own")))
	require.NoError(t, w.Start())
	require.NoError(t, w.AwaitReady(ctx))
	require.True(t, w.Lease().Healthy)
	res, err := http.Post(needs[1]+"/own/alice/increment", "", nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode, "the quarantine, not the policy")
	require.NoError(t, w.Shutdown(ctx))
	cancel()
	<-ended
}
