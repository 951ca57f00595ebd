package passport

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests talk to a real server over a socket.

func TestKeysRotateWhileRequestsRun(t *testing.T) {
	t.Parallel()
	const rotations = 5
	keys := make([]signer, rotations+2)
	for i := range keys {
		keys[i] = newSigner("ES256", "k"+string(rune('0'+i)))
	}
	id := newIDP(t, keys[0].jwk(), keys[1].jwk())
	p := parseJWT(t, jwtDocument(id.URL))
	set := jwtOf(p).keys
	var current atomic.Int64
	var known atomic.Int64
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// The key in use is always one of those that were published
				// before the last fetch.
				i := current.Load()
				if knowsToken(t, p, keys[i].token()) == nil {
					// It was withdrawn between the two lines above.
					require.Less(t, i, current.Load())
				}
				known.Add(1)
			}
		})
	}
	for i := range rotations {
		before := known.Load()
		require.Eventually(t, func() bool { return known.Load() > before+20 }, 20*time.Second, time.Millisecond)
		id.publish(keys[i].jwk(), keys[i+1].jwk(), keys[i+2].jwk())
		refetch(t, set)
		current.Store(int64(i + 1))
		id.publish(keys[i+1].jwk(), keys[i+2].jwk())
		refetch(t, set)
		require.Nil(t, knowsToken(t, p, keys[i].token()), "withdrawn")
	}
	close(stop)
	group.Wait()
	require.NotNil(t, knowsToken(t, p, keys[rotations].token()))
}

// refetch fetches the keys, however short ago they were fetched.
func refetch(t *testing.T, k *keySet) {
	t.Helper()
	k.mu.Lock()
	k.next = time.Time{}
	done := k.fetch()
	k.mu.Unlock()
	<-done
	require.NoError(t, k.fault)
}

func TestAServerThatIsGoneIsNotNow(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t, s.jwk())
	p, kept := parseJWT(t, jwtDocument(id.URL)), parseJWT(t, jwtDocument(id.URL))
	require.Equal(t, "known", answers(t, kept, s.token()))
	id.Close()
	require.Equal(t, "not now", answers(t, p, s.token()))
	require.Equal(t, "known", answers(t, kept, s.token()))
}

func TestAnEndlessAnswerIsCut(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t)
	var sent atomic.Int64
	id.serve(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(set(s.jwk())))
		for {
			n, err := w.Write([]byte(strings.Repeat(" ", 64<<10)))
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	p := parseJWT(t, jwtDocument(id.URL))
	require.Equal(t, "not now", answers(t, p, s.token()))
	id.Close() // waits for the handler
	require.Less(t, sent.Load(), int64(64<<20), "what sockets hold, and no more")
}

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	evil, id := newIDP(t, s.jwk()), newIDP(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		id.serve(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, evil.URL, status) })
		require.Equal(t, "not now", answers(t, parseJWT(t, jwtDocument(id.URL)), s.token()), status)
	}
	require.Zero(t, evil.asked())
}

func TestTheServersCertificateIsVerified(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := &idp{}
	id.publish(s.jwk())
	server := httptest.NewUnstartedServer(id)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	p := parseJWT(t, jwtDocument(server.URL))
	require.Equal(t, "not now", answers(t, p, s.token()))
	require.Zero(t, id.asked())
	trusting := parseJWT(t, jwtDocument(server.URL))
	jwtOf(trusting).keys.client.Transport = server.Client().Transport
	require.Equal(t, "known", answers(t, trusting, s.token()))
}

func TestTheServerSeesAPlainRequest(t *testing.T) {
	t.Parallel()
	s := newSigner("ES256", "k")
	id := newIDP(t)
	var seen *http.Request
	id.serve(func(w http.ResponseWriter, r *http.Request) {
		seen = r
		_, _ = w.Write([]byte(set(s.jwk())))
	})
	p := parseJWT(t, jwtDocument(id.URL+"/keys?tenant=a"))
	require.NotNil(t, knows(t, p, ask("/", "Authorization: Bearer "+s.token(), "Cookie: a=b")))
	require.Equal(t, http.MethodGet, seen.Method)
	require.Equal(t, "/keys?tenant=a", seen.RequestURI)
	require.Equal(t, "pinboard", seen.Header.Get("User-Agent"))
	require.True(t, seen.Close, "no connection is held for minutes")
	require.NotContains(t, seen.Header, "Authorization")
	require.NotContains(t, seen.Header, "Cookie")
}
