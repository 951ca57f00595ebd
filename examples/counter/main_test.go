package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/examples/internal/silent"
	"github.com/pinboard-go/pinboard/worker"
)

func TestAnInstanceCounts(t *testing.T) {
	t.Parallel()
	handler, err := newCounter(&worker.Instance{})
	require.NoError(t, err)
	for _, want := range []string{" 1\n", " 2\n"} {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/increment", nil))
		require.Equal(t, want, rec.Body.String())
	}
}

// A pinboard that can't be told is no reason to end with a failure, which would end this
// process, too. Not parallel: environment and signals are the process's.
func TestTheProgramEndsWellAlsoWhenPinboardIsNotTold(t *testing.T) {
	beats := silent.Start(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		main()
	}()
	<-beats
	self, err := os.FindProcess(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, self.Signal(os.Interrupt))
	<-ended
}

// The README shows this very program, without its first comment.
func TestTheREADMEShowsThisProgram(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(source), "package main\n")
	require.True(t, found)
	require.Contains(t, string(readme), "package main\n"+program)
}
