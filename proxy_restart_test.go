package pinboard

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// restartAt starts a worker at the address of one that was stopped.
func (w *fake) restartAt(handler func(*hit)) *fake {
	w.t.Helper()
	listener, err := net.Listen("tcp", w.addr)
	require.NoError(w.t, err)
	next := &fake{t: w.t, addr: w.addr, handler: handler, listener: listener, conns: map[net.Conn]struct{}{}}
	next.serving.Go(func() { next.accept(listener) })
	w.t.Cleanup(next.stop)
	return next
}

// C45: a new process on the address of one that was killed, with a secret of its
// own. What the dead one's ids get is no error of the new one's.
func TestANewProcessAtAnOldAddressServesNothingOfTheDeadOne(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	old := newFake(t, nil)
	was := f.register(old, "old")
	was.place("alice")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	old.stop()

	notNow := func() {
		t.Helper()
		for _, raw := range []string{
			"GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n",
			"POST /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody",
		} {
			resp, body := f.ask(raw).whole("GET")
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			errorOf(t, body)
		}
		require.Equal(t, was.SessionID, f.owner("alice"))
	}
	notNow() // nobody listens

	var fresh *session
	registered := make(chan struct{})
	next := old.restartAt(func(h *hit) {
		h.body()
		select {
		case <-registered:
			if _, err := attest.Verify(h.header.Get(wire.HeaderAttestation), fresh.Secret,
				func(aud string) bool { return aud == fresh.SessionID }, time.Now()); err == nil {
				h.ok("fresh")
				return
			}
		default:
		}
		h.reply(http.StatusForbidden, `{"detail":"invalid attestation"}`, "Content-Type: application/json")
	})
	notNow() // it does not know the secret

	fresh = f.register(next, "next")
	close(registered)
	before := len(next.seen())
	notNow()
	require.Len(t, next.seen(), before, "and now it is not asked")
	live, err := f.store.Live(t.Context())
	require.NoError(t, err)
	at := 0
	for _, s := range live {
		if s.AdvertiseURL == fresh.AdvertiseURL && !s.Stopped {
			at++
		}
	}
	require.Equal(t, 1, at, "one live session at the address")
	resp, body := f.get("/counters/bob")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "fresh", body)

	require.NoError(t, f.store.Deregister(t.Context(), was.SessionID)) // the lease's end
	resp, body = f.get("/counters/alice")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "fresh", body)
}
