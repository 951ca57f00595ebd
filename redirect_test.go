package pinboard_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/passport"
	"github.com/pinboard-go/pinboard/worker"
)

// newBoard makes a board. Its handler does not know that the client sees /boards/a/files/
// where it sees /files/: all that it sends a client to is relative.
func newBoard(in *worker.Instance) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, in.ID(), r.URL.Path)
	})
	// Without a handler for /files the mux would redirect it, to /files/ of the host.
	mux.HandleFunc("GET /files", func(w http.ResponseWriter, _ *http.Request) { redirect(w, "files/") })
	mux.HandleFunc("GET /old/{name}", func(w http.ResponseWriter, r *http.Request) {
		redirect(w, "../files/"+url.PathEscape(r.PathValue("name")))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if path, _, _ := strings.Cut(r.RequestURI, "?"); !strings.HasSuffix(path, "/") {
			redirect(w, in.ID()+"/") // from /boards/a, where the path is / as well
			return
		}
		redirect(w, "files/")
	})
	return mux, nil
}

// redirect sends a client to a URL relative to the one that it has asked for.
// http.Redirect would make it an absolute path of what the handler sees.
func redirect(w http.ResponseWriter, relative string) {
	w.Header().Set("Location", relative)
	w.WriteHeader(http.StatusSeeOther)
}

// newAstray makes what the page warns of, and what it says is well.
func newAstray(*worker.Instance) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files/", http.NotFound)
	mux.HandleFunc("GET /by-hand", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "files/", http.StatusSeeOther) })
	mux.Handle("GET /", http.FileServerFS(fstest.MapFS{"docs/a.txt": {}, "docs/index.html": {}}))
	return mux, nil
}

// Pinboard and the worker are both below a base path of their own, which no instance sees.
func TestRedirectsOfAnInstanceLeadBackToItIfTheyAreRelative(t *testing.T) {
	t.Parallel()
	keys, err := passport.Parse([]byte(networkPassport), func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	const lease = time.Second
	pb, err := pinboard.New(pinboard.Options{Passport: keys, Store: pinboard.MemoryStore(), LeaseTTL: lease, PlacementHold: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, pb.Shutdown(t.Context())) }()
	public := http.NewServeMux()
	public.Handle("/pins/", http.StripPrefix("/pins", pb))
	front := httptest.NewServer(public)
	defer front.Close()

	below := http.NewServeMux()
	behind := httptest.NewServer(below)
	defer behind.Close()
	w, err := worker.New(worker.Options{
		PinboardURL: front.URL + "/pins", Token: "fleet-token", AdvertiseURL: behind.URL + "/workers",
		HeartbeatInterval: lease / 6, LeaseBuffer: lease / 3, LeaseTTL: lease,
	})
	require.NoError(t, err)
	below.Handle("/workers/", w)
	require.NoError(t, w.Host("/boards", newBoard))
	require.NoError(t, w.Host("/astray", newAstray))
	require.NoError(t, w.Start())
	defer func() { require.NoError(t, w.Shutdown(t.Context())) }()
	require.NoError(t, w.AwaitReady(t.Context()))

	for path, leads := range map[string]string{
		"/boards/a":              "/boards/a/files/",
		"/boards/a?q=1/2":        "/boards/a/files/",
		"/boards/a/":             "/boards/a/files/",
		"/boards/a/files":        "/boards/a/files/",
		"/boards/a/old/x%20y":    "/boards/a/files/x%20y",
		"/boards/a/old/b%2Fc%3F": "/boards/a/files/b%2Fc%3F",
	} {
		res, err := front.Client().Get(front.URL + "/pins" + path)
		require.NoError(t, err)
		text, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode, "%s: %s", path, text)
		require.Equal(t, "/pins"+leads, res.Request.URL.EscapedPath(), path)
		require.Regexp(t, "^a/files/", string(text))
	}
	once := &http.Client{
		Transport:     front.Client().Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	for path, location := range map[string]string{
		"/astray/a/files":           "/files/",
		"/astray/a/by-hand":         "/files/",
		"/astray/a/docs":            "docs/",
		"/astray/a/docs/index.html": "./",
	} {
		res, err := once.Get(front.URL + "/pins" + path)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, location, res.Header.Get("Location"), path)
	}
	// Not through this server, whose own muxes do the same.
	astray, err := newAstray(nil)
	require.NoError(t, err)
	rec := httptest.NewRecorder()
	astray.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "//docs/", nil))
	require.Equal(t, "/docs/", rec.Header().Get("Location"))
}
