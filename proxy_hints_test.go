package pinboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// statuses is a writer that keeps the status of each head.
type statuses struct {
	http.ResponseWriter
	all []int
}

func (w *statuses) WriteHeader(status int) { w.all = append(w.all, status) }

// net/http leaves out its 100 where anything else came first, and a busy node may pass
// a worker's hint on before it has begun to read the body. The client would wait.
func TestAHintThatComesBeforeTheBodyIsReadInvitesItOverHTTP2(t *testing.T) { // C14
	t.Parallel()
	for _, proto := range []int{1, 2} {
		body := hop.NewBody(strings.NewReader("body"), 100)
		w := &statuses{ResponseWriter: httptest.NewRecorder()}
		e := &exchange{
			x: &proxy{p: &Pinboard{}}, w: w, body: body,
			r: &http.Request{ProtoMajor: proto, ProtoMinor: 2 - proto},
		}
		e.inform(http.StatusEarlyHints, nil)
		e.inform(http.StatusEarlyHints, nil)
		_, _ = body.ReadOnce(4)
		e.inform(http.StatusEarlyHints, nil)
		want := []int{http.StatusContinue, http.StatusEarlyHints, http.StatusEarlyHints, http.StatusEarlyHints}
		require.Equal(t, want[2-proto:], w.all) // over HTTP/1.1 the server says it in any case
	}
}

func TestManyEarlyHintsPassInTheirOrder(t *testing.T) { // C14
	t.Parallel()
	const hints = 100
	f := newFront(t)
	var all, want strings.Builder
	for i := range hints {
		fmt.Fprintf(&all, "HTTP/1.1 103 Early Hints\r\nLink: </%d>\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n", i)
		fmt.Fprintf(&want, "HTTP/1.1 103 Early Hints\r\nLink: </%d>\r\n\r\n", i)
	}
	w := newFake(t, func(h *hit) {
		h.send(all.String()[:all.Len()/2])
		h.body()
		h.send(all.String()[all.Len()/2:])
		h.ok("done")
	})
	f.register(w, "a")
	var clients sync.WaitGroup
	for range 20 {
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
		clients.Go(func() {
			got, err := c.rest()
			assert.NoError(t, err)
			assert.True(t, strings.HasPrefix(got, want.String()+"HTTP/1.1 200 OK\r\n"), got)
			assert.True(t, strings.HasSuffix(got, "\r\n\r\ndone"), got)
		})
	}
	clients.Wait()
}
