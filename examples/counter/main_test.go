package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
