package pinboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

// A client that does not send the rest of its body must not keep what it counts for,
// nor be kept from its answer, which the server sends when it has that rest.
func TestABodyThatDoesNotComeHoldsNoAnswerBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		target  string
		unknown bool // the worker has gone
		status  int
	}{
		"nobody serves the namespace":  {"POST /counters/alice", true, 404},
		"the owner can't be reached":   {"POST /counters/alice", false, 503},
		"the namespace is not open":    {"POST /closed/alice", false, 401},
		"a preflight":                  {"OPTIONS /closed/alice", false, 204},
		"a probe":                      {"POST /healthz", false, 405},
		"a probe that is answered":     {"GET /healthz", false, 200},
		"the registry":                 {"POST /registry/release", false, 401},
		"a registry path that is none": {"POST /registry/x", false, 404},
		"no id":                        {"POST /counters/", false, 400},
	} {
		for _, body := range []string{
			"Content-Length: 100\r\n\r\nx",
			"Content-Length: 100\r\n\r\n",
			"Content-Length: 100000\r\n\r\nx",
			"Content-Length: 100000\r\n\r\n",
			"Content-Length: 1000000\r\n\r\nx",
			"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
			"Transfer-Encoding: chunked\r\n\r\n",
		} {
			if !c.unknown && c.status == 503 && strings.HasSuffix(body, "100\r\n\r\n") {
				continue // it is waited for, by another bound
			}
			dial := func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
			inBubble(t, Options{Transport: &http.Transport{DialContext: dial}}, nil, func(t *testing.T, b *limited) {
				b.pb.opts.Passport = closed{}
				if c.unknown {
					all, err := b.store.Live(t.Context())
					require.NoError(t, err)
					for _, s := range all {
						require.NoError(t, b.store.Deregister(t.Context(), s.ID))
					}
				}
				began := time.Now()
				client := b.ask(c.target + " HTTP/1.1\r\nHost: p\r\nOrigin: https://x\r\nAccess-Control-Request-Method: PUT\r\n" + body)
				require.NoError(t, client.SetReadDeadline(began.Add(time.Hour)))
				resp, _ := client.whole("POST")
				require.Equal(t, c.status, resp.StatusCode, "%s %q", name, body)
				require.LessOrEqual(t, time.Since(began), refusedLinger, "%s %q", name, body)
				_, err := client.rest()
				require.NoError(t, err, "and the connection ends")
				time.Sleep(lingerTime + time.Second) // the server's own pause before that
				total, _ := b.pb.limiter.requests.Use()
				require.Zero(t, total)
			})
		}
	}
}

// closed is a passport with a namespace that lets nobody in but trusts an origin.
type closed struct{ anyone }

func (closed) Admit(_ context.Context, namespace string, _ *passport.Identity) error {
	if namespace == "/closed" {
		return passport.ErrUnauthenticated
	}
	return nil
}

func (closed) AllowsOrigin(string, string) bool { return true }
