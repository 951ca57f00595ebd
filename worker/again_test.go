package worker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// unlessRefused keeps refusals back.
type unlessRefused struct {
	http.ResponseWriter
	refused bool
}

func (u *unlessRefused) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *unlessRefused) WriteHeader(status int) {
	if u.refused = status == http.StatusServiceUnavailable; !u.refused {
		u.ResponseWriter.WriteHeader(status)
	}
}

func (u *unlessRefused) Write(p []byte) (int, error) {
	if u.refused {
		return len(p), nil
	}
	return u.ResponseWriter.Write(p)
}

// again lets a request in once more, a second after it was refused. With whole it has
// read the body before.
func again(whole bool) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if whole {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					w.WriteHeader(http.StatusBadRequest)
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			first := &unlessRefused{ResponseWriter: w}
			if next.ServeHTTP(first, r); first.refused {
				clear(w.Header())
				<-time.After(time.Second)
				next.ServeHTTP(w, r)
			}
		})
	}
}

// The body is still the middleware's then, and the client is still there.
func TestARefusedRequestMayBeLetInAgainWithItsBody(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		whole bool
		after time.Duration // the body comes
	}{
		"the body was there":      {},
		"the body was read":       {whole: true},
		"the body comes later on": {after: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := false
			inBubble(t, Options{}, nil, func(t *testing.T, h *harness) {
				require.NoError(t, h.w.HostWith("/c", HostOptions{Middleware: again(c.whole)}, func(*Instance) (http.Handler, error) {
					if !failed {
						failed = true
						return nil, errors.New("not yet")
					}
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						body, err := io.ReadAll(r.Body)
						_, _ = fmt.Fprintf(w, "%s, %v, %v", body, err, r.Context().Err())
					}), nil
				}))
				h.start()
				l := memnet.NewListener()
				server := &http.Server{Handler: h.w}
				go func() { _ = server.Serve(l) }()
				defer func() { _ = server.Close() }()
				conn, err := l.Dial(t.Context())
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				token := h.request("POST", "/").Header.Get(wire.HeaderAttestation)
				_, err = io.WriteString(conn, "POST /c/1 HTTP/1.1\r\nHost: w\r\nContent-Length: 2\r\npinboard-attestation: "+token+"\r\n\r\n")
				require.NoError(t, err)
				h.after(c.after)
				_, err = io.WriteString(conn, "xx")
				require.NoError(t, err)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, "xx, <nil>, <nil>", string(body), "status %d", resp.StatusCode)
				_ = conn.Close()
				h.after(time.Second)
			})
		})
	}
}
