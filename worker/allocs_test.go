//go:build !race && !leakcheck

package worker

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Not parallel: it counts what the whole process allocates. Nothing of it is
// net/http's server's or the handler's.
func TestARequestIsOneAllocationMoreThanAPlainOne(t *testing.T) {
	w, stop := bareWorker(t, Options{}, serving(func(_ *Instance, rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/caller":
			_, _ = CallerFrom(r.Context())
		case "/context":
			_ = r.Context().Done()
		}
		rw.Header()["Content-Type"] = []string(nil)
		_, _ = io.WriteString(rw, "hello")
	}))
	defer stop()
	account := attest.Claims{Account: &attest.Account{Subject: "ada", Scopes: []string{"chat"}, Claims: map[string]any{"tenant": "a"}}}
	for name, c := range map[string]struct {
		path   string
		claims attest.Claims
		mine   bool // the host's server
		want   float64
	}{
		"anonymous":                  {"/c/1/plain", attest.Claims{}, false, 1},
		"an account":                 {"/c/1/plain", account, false, 1},
		"an instance":                {"/c/1/plain", attest.Claims{Caller: "/c/2", Depth: 1}, false, 1},
		"a query":                    {"/c/1/plain?a=b", account, false, 1},
		"an account that is asked":   {"/c/1/caller", account, false, 6},
		"a context that is asked":    {"/c/1/context", account, false, 4},
		"a server of the host's own": {"/c/1/plain", account, true, 4},
	} {
		r := browserRequest(t, w, c.path, c.claims)
		epoch, attested := r.Header[wire.HeaderEpoch], r.Header[wire.HeaderAttestation]
		rw := &sink{header: http.Header{}}
		u := *r.URL
		serve := func() {
			*r.URL = u
			r.Header[wire.HeaderEpoch], r.Header[wire.HeaderAttestation] = epoch, attested // its own server takes them out
			if c.mine {
				w.ServeHTTP(rw, r)
			} else {
				w.serveOwn(rw, r)
			}
		}
		serve()
		require.InDelta(t, c.want, allocs.PerCall(t, serve), 0, name)
	}
}
