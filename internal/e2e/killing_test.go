package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// lastingKeys are the keys that may live for ever, and mortalKeys those that
// may outlive a lease, as docs/operating.md lists them; all others belong to a
// lease.
var (
	lastingKeys = regexp.MustCompile(`}:(r:\d+|leaves|meta|sessions|candidates|clients|generation|live|namespaces|floor|lapses|events|moves)$`)
	mortalKeys  = regexp.MustCompile(`}:(g:.*|m:.*|x:.*|hosts|c:.*|w:.*|sweep|layout|ping)$`)
	leasedKeys  = regexp.MustCompile(`}:(s:.*|u:.*)$`)
)

// ttls returns what is left of each key's life, negative for those that live
// for ever.
func ttls(t *testing.T, client rueidis.Client) map[string]time.Duration {
	t.Helper()
	left := map[string]time.Duration{}
	for cursor := uint64(0); ; {
		page, err := client.Do(t.Context(), client.B().Scan().Cursor(cursor).Count(1000).Build()).AsScanEntry()
		require.NoError(t, err)
		for _, key := range page.Elements {
			ms, err := client.Do(t.Context(), client.B().Pttl().Key(key).Build()).AsInt64()
			require.NoError(t, err)
			if ms != -2 { // gone meanwhile
				left[key] = time.Duration(ms) * time.Millisecond
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			return left
		}
	}
}

// hammered is a worker that registers, beats, and leaves as fast as it can, for
// whatever becomes of it.
type hammered struct {
	f              *fleet
	url            string
	clientID       string
	session, value string
}

func (f *fleet) hammer(t *testing.T, number int) *hammered {
	t.Helper()
	h := &hammered{f: f, clientID: fmt.Sprintf("%032x", number+1), value: "value"}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(rw, `{"value":%q}`, h.value)
	}))
	t.Cleanup(server.Close)
	h.url = server.URL
	return h
}

func (h *hammered) post(ctx context.Context, base, route string, body map[string]any) map[string]any {
	text, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	a, err := h.f.client.try(ctx, http.MethodPost, base+"/registry/"+route, bearer(h.f.fleetToken), content(text))
	var told map[string]any
	if err != nil || a.status != http.StatusOK || json.Unmarshal(a.body, &told) != nil {
		return nil
	}
	return told
}

func (h *hammered) register(ctx context.Context, base string, ids ...string) map[string]any {
	body := map[string]any{
		"clientId": h.clientID, "secret": strings.Repeat("5e", 32), "namespaces": []string{"/rooms", "/kept"}, "advertiseUrl": h.url,
		"headroom": 10, "draining": false, "challenge": "c", "challengeValue": h.value, "instances": map[string]any{"/rooms": ids},
	}
	if h.session != "" {
		body["prevSessionId"] = h.session
	}
	told := h.post(ctx, base, "register", body)
	if session, ok := told["sessionId"].(string); ok {
		h.session = session
	}
	return told
}

func (h *hammered) beat(ctx context.Context, base string) map[string]any {
	return h.post(ctx, base, "heartbeat", map[string]any{
		"sessionId": h.session, "headroom": 10, "draining": false, "challenge": "c", "challengeValue": h.value,
	})
}

// run goes on until the node is gone.
func (h *hammered) run(ctx context.Context, base string, round int) {
	for i := 0; ctx.Err() == nil; i++ {
		h.register(ctx, base, fmt.Sprint("own-", h.clientID), fmt.Sprint("id-", round, "-", i))
		h.beat(ctx, base)
		_, _ = h.f.client.try(ctx, http.MethodGet, room(base, fmt.Sprint("fresh-", round, "-", i), "state"))
		_, _ = h.f.client.try(ctx, http.MethodGet, room(base, "own-"+h.clientID, "state"))
		if i%3 == 2 {
			h.post(ctx, base, "deregister", map[string]any{"sessionId": h.session})
		}
	}
}

// C43: a node that is killed between any two steps leaves no key behind that makes a
// worker live for ever.
func TestANodeThatIsKilledLeavesNoImmortalWorker(t *testing.T) {
	t.Parallel()
	const kills, short = 100, 1500 * time.Millisecond
	f := emptyFleet(t, redis)
	f.settings = []string{"PINBOARD_LEASE_TTL_MS=1500"}
	client := f.redisClient(t)
	workers := []*hammered{f.hammer(t, 0), f.hammer(t, 1), f.hammer(t, 2)}
	rng := rand.New(rand.NewPCG(4, 3)) // cases, not secrets
	leased := 0
	for round := range kills {
		n := f.startNode(t)
		f.nodes = f.nodes[:0] // one after the other
		ctx, cancel := context.WithCancel(t.Context())
		var hammering sync.WaitGroup
		for _, w := range workers {
			hammering.Go(func() { w.run(ctx, n.url, round) })
		}
		<-time.After(time.Duration(rng.IntN(40_000)) * time.Microsecond)
		n.kill()
		cancel()
		hammering.Wait()
		if round%10 == 9 {
			leased += requireMortal(t, client, short)
		}
	}
	require.Positive(t, leased, "the kills came too early")

	n := f.startNode(t)
	awaitTrue(t, "all leases end", func() bool {
		for key := range ttls(t, client) {
			if leasedKeys.MatchString(key) {
				return false
			}
		}
		return true
	})
	require.Empty(t, f.listWorkers(t))
	f.client.call(t, http.MethodGet, room(n.url, "own-"+workers[0].clientID, "state")).requireStatus(t, http.StatusNotFound)

	// What a worker is told of its lease is what Redis keeps.
	w := workers[0]
	told := map[string]func() map[string]any{
		"register":  func() map[string]any { return w.register(t.Context(), n.url, "x") },
		"heartbeat": func() map[string]any { return w.beat(t.Context(), n.url) },
	}
	for _, call := range []string{"register", "heartbeat"} {
		asked := time.Now()
		told := told[call]()
		require.NotNil(t, told, call)
		expires := time.Duration(told["expiresInMs"].(float64)) * time.Millisecond
		require.Positive(t, expires, call)
		require.LessOrEqual(t, expires, short, call)
		// The shortest counts: the records are written one after the other.
		shortest := short
		for key, left := range ttls(t, client) {
			if leasedKeys.MatchString(key) {
				require.LessOrEqual(t, left, short, "%s: %s", call, key)
				require.GreaterOrEqual(t, left, expires-time.Since(asked)-time.Millisecond, "%s: %s", call, key)
				shortest = min(shortest, left)
			}
		}
		require.LessOrEqual(t, shortest, expires, call)
	}
}

// requireMortal checks all keys and returns how many belong to leases.
func requireMortal(t *testing.T, client rueidis.Client, lease time.Duration) (leased int) {
	t.Helper()
	for key, left := range ttls(t, client) {
		switch {
		case leasedKeys.MatchString(key):
			require.Positive(t, left, key)
			require.LessOrEqual(t, left, lease, key)
			leased++
		case mortalKeys.MatchString(key):
			require.Positive(t, left, key)
		default:
			require.Regexp(t, lastingKeys, key)
		}
	}
	return leased
}
