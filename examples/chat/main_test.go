package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pinboard-go/pinboard/examples/internal/silent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The command alone is enough: it prints a URL that serves the page.
func TestTheCommandPrintsAURLThatServesThePage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	keys, press := io.Pipe()
	output, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		defer func() { _ = out.Close() }()
		done <- runAll(ctx, "127.0.0.1:0", keys, out)
	}()
	url := regexp.MustCompile(`http://\S+`)
	printed := make([]byte, 4096)
	text := ""
	for !strings.Contains(text, "Enter") {
		n, err := output.Read(printed)
		require.NoError(t, err)
		text += string(printed[:n])
	}
	go func() { _, _ = io.Copy(io.Discard, output) }()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url.FindString(text), nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, string(page), string(body))

	cancel()
	require.NoError(t, <-done)
	require.NoError(t, press.Close())
	http.DefaultClient.CloseIdleConnections()
}

// Not parallel: the environment is the process's.
func TestAWorkerEndsWellAlsoWhenPinboardIsNotTold(t *testing.T) {
	beats := silent.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- runWorker(ctx) }()
	<-beats
	cancel()
	require.NoError(t, <-ended)
}
