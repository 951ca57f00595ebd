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
	"github.com/pinboard-go/pinboard/internal/redistest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// The command prints calls that work, and the balance outlives a restart.
func TestWhatTheCommandPrintsWorks(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	keys, press := io.Pipe()
	output, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		defer func() { _ = out.Close() }()
		done <- runAll(ctx, newStore(server.Client(t)), keys, out)
	}()
	text := ""
	readUntil := func(word string) {
		for chunk := make([]byte, 4096); !strings.Contains(text, word); {
			n, err := output.Read(chunk)
			require.NoError(t, err)
			text += string(chunk[:n])
		}
	}
	readUntil("press Enter")
	calls := regexp.MustCompile(`curl -d (\S+) (http://\S+)`).FindAllStringSubmatch(text, -1)
	require.Len(t, calls, 2)
	client := newClient(t)
	status, deposited := client.post(t, calls[0][2], calls[0][1])
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 10, deposited.Balance)

	_, err := press.Write([]byte("\n"))
	require.NoError(t, err)
	readUntil("has released")
	go func() { _, _ = io.Copy(io.Discard, output) }()
	withdrawn := client.await(t, calls[1][2], calls[1][1])
	require.EqualValues(t, 7, withdrawn.Balance)
	require.Greater(t, withdrawn.Epoch, deposited.Epoch)

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
	go func() { ended <- runWorker(ctx, newStore(nil)) }()
	<-beats
	cancel()
	require.NoError(t, <-ended)
}
