package pinboard

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/passport"
)

// The id may live elsewhere once the lease is over, whatever this node is about.
func TestANodeThatClosesGoesOnCuttingAFrozenOwnersClients(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, func(h *hit) {
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ")
		h.gone()
	}, func(t *testing.T, b *limited) {
		began := time.Now()
		c := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		c.answer("GET")
		require.NoError(t, b.pb.Close())
		time.Sleep(time.Minute) // virtual time
		require.EqualValues(t, 1, b.pb.counters.proxying.Load(), "requests in flight run to their end")
		require.NoError(t, b.pb.Shutdown(t.Context()))
		require.Less(t, time.Since(began), b.pb.opts.LeaseTTL+2*watchEvery)
	})
}

// entitled is everybody who may do everything.
type entitled struct{ anyone }

func (entitled) Identify(context.Context, *http.Request) (*passport.Identity, error) {
	return &passport.Identity{
		Provider: "p", Subject: "s", Scopes: []string{passport.ScopeWorker, passport.ScopeOperator},
		Claims: map[string]any{"pinboard": map[string]any{"namespaces": []any{"*"}, "allowedBackendHosts": []any{"*"}}},
	}, nil
}

func TestAShutdownThatIsOverWaitsForNoCallBelowRegistry(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"a body that does not come":     "POST /registry/register HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\n{",
		"an answer that nobody reads":   "GET /registry/events?limit=1000 HTTP/1.1\r\nHost: p\r\n\r\n",
		"a page that nobody reads":      strings.Repeat("GET /registry/ui/style.css HTTP/1.1\r\nHost: p\r\n\r\n", 9),
		"a stream that nobody reads":    "GET /registry/events HTTP/1.1\r\nHost: p\r\nAccept: text/event-stream\r\nLast-Event-ID: 1\r\n\r\n",
		"a refusal that nobody reads":   "POST /registry/drain HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\n",
		"a worker that does not answer": "GET /registry/stats HTTP/1.1\r\nHost: p\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Options{}, func(h *hit) { h.gone() }, func(t *testing.T, b *limited) {
				b.pb.opts.Passport = entitled{}
				for range 1000 {
					require.NoError(t, b.store.Record(t.Context(), []store.Event{{
						Kind: store.EventRegistered, Namespaces: []string{counters_}, ClientID: "a", Detail: strings.Repeat("x", 1500),
					}}))
				}
				b.ask(raw)
				synctest.Wait()
				require.Len(t, b.pb.registry.open.all, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				began := time.Now()
				require.ErrorIs(t, b.pb.Shutdown(ctx), context.DeadlineExceeded)
				require.Less(t, time.Since(began), time.Second)
				require.Empty(t, b.pb.registry.open.all)
			})
		})
	}
}
