package worker

import (
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
)

// upload makes a request with one file of a form.
func (h *harness) upload(path string) *http.Request {
	h.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	file, err := form.CreateFormFile("file", "a.txt")
	require.NoError(h.t, err)
	_, err = io.WriteString(file, "what is sent")
	require.NoError(h.t, err)
	require.NoError(h.t, form.Close())
	r := h.outgoing(h.t.Context(), path)
	r.Method, r.Body, r.ContentLength = http.MethodPost, io.NopCloser(&body), int64(body.Len())
	r.Header.Set("Content-Type", form.FormDataContentType())
	return r
}

// parse has the form's file put on disk, and returns where; "" if it is not there.
func parse(r *http.Request) string {
	if r.ParseMultipartForm(0) != nil {
		return ""
	}
	opened, err := r.MultipartForm.File["file"][0].Open()
	if err != nil {
		return ""
	}
	defer func() { _ = opened.Close() }()
	file, ok := opened.(*os.File)
	if !ok {
		return ""
	}
	return file.Name()
}

// The server removes the files of the request that it knows, which is not the one
// that an instance sees.
func TestFilesOfAFormAreRemovedBehindTheRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		middleware bool // there is one
		parses     bool // and it parses the form
		own        bool // the worker has a server of its own
	}{
		"its own server":                     {own: true},
		"a server of the host's":             {},
		"behind a middleware":                {own: true, middleware: true},
		"by a middleware":                    {own: true, middleware: true, parses: true},
		"by a middleware, the host's server": {middleware: true, parses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names := make(chan string, 1)
			hosted := HostOptions{}
			if c.middleware {
				hosted.Middleware = func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if c.parses {
							names <- parse(r)
						}
						next.ServeHTTP(w, r)
					})
				}
			}
			inBubble(t, Options{}, nil, func(t *testing.T, h *harness) {
				require.NoError(t, h.w.HostWith("/c", hosted, serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
					if !c.parses {
						names <- parse(r)
					}
					file, _, err := r.FormFile("file")
					if err == nil {
						_, _ = io.Copy(w, file)
					}
				})))
				h.start()
				handler := http.Handler(h.w)
				if c.own {
					handler = http.HandlerFunc(h.w.serveOwn)
				}
				l := memnet.NewListener()
				server := &http.Server{Handler: handler}
				go func() { _ = server.Serve(l) }()
				transport := &http.Transport{
					DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) },
					DisableKeepAlives: true,
				}
				client := &http.Client{Transport: transport}
				res, err := client.Do(h.upload("/c/1"))
				require.NoError(t, err)
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, "what is sent", string(body))
				require.NoError(t, server.Shutdown(context.Background()))
				name := <-names
				require.NotEmpty(t, name)
				require.NoFileExists(t, name)
			})
		})
	}
}
