package pinboard

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// age returns how old a request's attestation is.
func (h *hit) age() time.Duration {
	h.t.Helper()
	parts := strings.Split(h.header.Get(wire.HeaderAttestation), ".")
	require.Len(h.t, parts, 3)
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	require.NoError(h.t, err)
	var said struct{ Iat int64 }
	require.NoError(h.t, json.Unmarshal(text, &said))
	return time.Duration(time.Now().Unix()-said.Iat) * time.Second
}

// To a worker whose clock is ahead, an attestation is too old after half a minute. So
// whatever a request has waited for was there before it was attested.
func TestARequestIsAttestedWhenItIsSent(t *testing.T) {
	t.Parallel()
	const wait = 40 * time.Second // virtual time
	const get = "GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n"
	for name, c := range map[string]struct {
		dial   time.Duration          // how long it takes
		most   int                    // connections
		handle func(*hit) (ends bool) // the connection, without an answer
		ask    func(b *limited) *client
		hits   int
	}{
		"after its body": {
			ask: func(b *limited) *client {
				c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\n")
				time.Sleep(wait)        // virtual time
				b.ask(get).whole("GET") // so that there is a connection
				c.send("body")
				return c
			},
			hits: 2,
		},
		"on a connection that was long in coming": {
			dial: wait,
			ask:  func(b *limited) *client { return b.ask(get) },
			hits: 1,
		},
		"on a connection that was in use": {
			most:   1,
			handle: func(*hit) bool { time.Sleep(wait); return false }, // virtual time
			ask: func(b *limited) *client {
				b.ask(get)
				time.Sleep(time.Second) // virtual time
				return b.ask(get)
			},
			hits: 2,
		},
		"after a connection that ended": {
			handle: func(h *hit) bool {
				if len(h.w.seen()) != 2 {
					return false
				}
				time.Sleep(wait) // virtual time
				return true
			},
			ask: func(b *limited) *client {
				b.ask(get).whole("GET")
				return b.ask(get)
			},
			hits: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var b *limited
				dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
					time.Sleep(c.dial) // virtual time
					return b.worker.listener.(*memnet.Listener).Dial(ctx)
				}
				b = newLimited(t, Options{Transport: &http.Transport{DialContext: dial, MaxConnsPerHost: c.most}, Limits: Limits{DialTimeout: time.Minute}}, func(h *hit) {
					assert.Zero(t, h.age())
					h.body()
					if c.handle != nil && c.handle(h) {
						h.last = true
						return
					}
					h.ok("")
				})
				resp, _ := c.ask(b).whole("GET")
				require.Equal(t, http.StatusOK, resp.StatusCode)
				require.Len(t, b.worker.seen(), c.hits)
			})
		})
	}
}
