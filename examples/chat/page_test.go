package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

func get(t *testing.T, target string) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	req.URL.Path = "/" // what the worker leaves of it; RequestURI is as it was sent
	openRoom(place{t.Context()}, "worker-1").ServeHTTP(rec, req)
	return rec
}

func TestARoomWithoutASlashIsRedirectedToTheOneWith(t *testing.T) {
	t.Parallel()
	for asked, location := range map[string]string{
		"/chat/lobby":          "lobby/",
		"/chat/lobby?x=/":      "lobby/?x=/",
		"/below/base/x/lobby":  "lobby/",
		"/chat/lobby/":         "",
		"/chat/lobby/?x=y":     "",
		"/below/base/x/lobby/": "",
	} {
		res := get(t, asked)
		if location == "" {
			require.Equal(t, http.StatusOK, res.Code, asked)
			continue
		}
		require.Equal(t, http.StatusTemporaryRedirect, res.Code, asked)
		require.Equal(t, location, res.Header().Get("Location"), asked)
	}
}

func TestThePageMayRunNothingButItself(t *testing.T) {
	t.Parallel()
	res := get(t, "/chat/lobby/")
	require.Equal(t, policy, res.Header().Get("Content-Security-Policy"))
	require.NotContains(t, policy, "unsafe")
	require.NotContains(t, policy, "*")
	require.Regexp(t, `^default-src 'none'; script-src 'sha256-[^ ]+'; style-src 'sha256-[^ ]+'; `, policy)
	require.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write|src=|\son\w+="`, res.Body.String())
}
