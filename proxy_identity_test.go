package pinboard

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

func TestAnAccountIsAttestedAndItsCredentialHidden(t *testing.T) {
	t.Parallel()
	who := &passport.Identity{
		Provider: "p", Subject: "ann", Scopes: []string{"chat"}, Claims: map[string]any{"team": "x"},
		HideHeaders: []string{"authorization"}, HideQuery: []string{"access_token"},
	}
	f := newFront(t, withPassport(anyone{tokens: map[string]*passport.Identity{"Bearer good": who, "good": who}}))
	w := newFake(t, nil)
	s := f.register(w, "a")

	f.get("/counters/alice", "authorization: Bearer good", "X-Kept: 1")
	h := w.seen()[0]
	require.Equal(t, &attest.Account{Subject: "ann", Scopes: []string{"chat"}, Claims: map[string]any{"team": "x"}}, h.claims(s).Account)
	require.NotContains(t, h.header, "Authorization")
	require.Equal(t, "1", h.header.Get("X-Kept"))

	for i, c := range []struct{ sent, got string }{
		{"?access_token=good", ""},
		{"?a=%zz;&access_token=good&&b", "?a=%zz;&&b"},
		{"?access%5Ftoken=good&access_tokens=1&x=access_token", "?access_tokens=1&x=access_token"},
		{"?access_token=good&access_token=other", ""},
	} {
		f.get("/counters/alice" + c.sent)
		h := w.seen()[i+1]
		require.Equal(t, "/counters/alice"+c.got, h.target)
		require.NotNil(t, h.claims(s).Account)
	}

	f.get("/counters/alice?", "Authorization: Bearer unknown")
	h = w.seen()[5]
	require.Nil(t, h.claims(s).Account)
	require.Equal(t, "Bearer unknown", h.header.Get("Authorization"), "not ours")
	require.Equal(t, "/counters/alice?", h.target)
}

func TestTheHostsCallbacksSeeNoHeaderThatIsOurs(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []*http.Request
	f := newFront(t, func(s *setup) {
		s.handler = func(h http.Handler) http.Handler { return http.StripPrefix("/base", h) }
		s.opts.Affinity.Key = func(r *http.Request, _ Client) (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, r)
			n, _ := r.Body.Read(make([]byte, 1)) // which it must not, and which does no harm
			return fmt.Sprint(n), true
		}
	})
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	_, body := f.post("/base/counters/a%2Db/x?q=1;2", "whole", "X-Kept: 1", "pinboard-epoch: 1", "PINNED_x: 2")
	require.Contains(t, body, "error", "an escaped id is none")
	_, body = f.post("/base/counters/alice/%78?q=1;2", "whole", "X-Kept: 1", "pinboard-epoch: 1", "PINNED_x: 2")
	require.Equal(t, "whole", body)
	require.Len(t, seen, 1)
	require.Equal(t, "/base/counters/alice/%78", seen[0].URL.EscapedPath())
	require.Equal(t, "q=1;2", seen[0].URL.RawQuery)
	require.Equal(t, "1", seen[0].Header.Get("X-Kept"))
	for name := range seen[0].Header {
		require.False(t, wire.Reserved(name), name)
	}
}

// clients is the addresses that Affinity.Key got.
func recordClients(into chan<- netip.Addr) func(*setup) {
	return func(s *setup) {
		s.opts.Affinity.Key = func(_ *http.Request, c Client) (string, bool) {
			into <- c.Addr
			return c.Addr.String(), true
		}
	}
}

func TestTheClientsAddressIsWhatTrustedProxiesSay(t *testing.T) { // C27
	t.Parallel()
	trust := func(s *setup) {
		s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	}
	nobody := func(*setup) {}
	for i, c := range []struct {
		trust             func(*setup)
		headers           []string
		addr, forwarded   string
		proto, host, real string
	}{
		{nobody, []string{"X-Forwarded-For: 6.6.6.1", "X-Real-IP: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil"},
			"127.0.0.1", "127.0.0.1", "http", "p", "6.6.6.6"},
		{trust, []string{"X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 198.51.100.7, 10.1.2.3", "X-Forwarded-Proto: https", "X-Forwarded-Host: app"},
			"198.51.100.7", "6.6.6.6, 198.51.100.7, 10.1.2.3, 127.0.0.1", "https", "app", ""},
		{trust, []string{"X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 198.51.100.7, 10.1.2.3, unknown"},
			"127.0.0.1", "6.6.6.6, 198.51.100.7, 10.1.2.3, unknown, 127.0.0.1", "http", "p", ""},
		{trust, []string{"X-Forwarded-For: 6.6.6.6, , 198.51.100.7"},
			"198.51.100.7", "6.6.6.6, , 198.51.100.7, 127.0.0.1", "http", "p", ""},
		{trust, nil, "127.0.0.1", "127.0.0.1", "http", "p", ""},
	} {
		got := make(chan netip.Addr, 10)
		f := newFront(t, recordClients(got), c.trust)
		w := newFake(t, nil)
		f.register(w, "a")
		f.get("/counters/alice", c.headers...)
		require.Equal(t, c.addr, (<-got).String(), i)
		h := w.only()
		require.Equal(t, []string{c.forwarded}, h.header["X-Forwarded-For"], i)
		require.Equal(t, []string{c.proto}, h.header["X-Forwarded-Proto"], i)
		require.Equal(t, []string{c.host}, h.header["X-Forwarded-Host"], i)
		require.Equal(t, c.real, h.header.Get("X-Real-Ip"), i)
	}
}

func TestIDsOfOneClientPreferOneWorker(t *testing.T) { // C27
	t.Parallel()
	f := newFront(t)
	a, b := newFake(t, nil), newFake(t, nil)
	f.register(a, "a")
	f.register(b, "b")
	for i := range 64 {
		f.get(fmt.Sprint("/counters/id-", i), fmt.Sprint("X-Forwarded-For: 6.6.6.", i),
			fmt.Sprint("X-Real-IP: 7.7.7.", i), fmt.Sprint("Forwarded: for=8.8.8.", i))
	}
	require.ElementsMatch(t, []int{0, 64}, []int{len(a.seen()), len(b.seen())})
}

// caller is the headers of a cluster call.
func caller(from string, s *session, more ...string) []string {
	return append([]string{"pinboard-from: " + from, "pinboard-session: " + s.SessionID, "pinboard-session-secret: " + s.Secret.Reveal()}, more...)
}

func TestAClusterCallIsAttestedWithItsCallerAndPrefersItsWorker(t *testing.T) {
	t.Parallel()
	for i := range 8 { // more often than luck would have it
		who := &passport.Identity{Provider: "p", Subject: "deployment", HideHeaders: []string{"Authorization"}}
		f := newFront(t, withPassport(anyone{
			refuse: passport.ErrUnauthenticated, tokens: map[string]*passport.Identity{"Bearer static": who},
		}))
		a, b := newFake(t, nil), newFake(t, nil)
		sa, sb := f.register(a, "a"), f.register(b, "b")
		from, w := sa, a
		if i%2 == 0 {
			from, w = sb, b
		}
		from.place("caller")
		resp, _ := f.get("/counters/callee", caller("/counters/caller", from, "pinboard-subrequest-depth: 7", "Authorization: Bearer static")...)
		require.Equal(t, 200, resp.StatusCode)
		h := w.only()
		require.Equal(t, attest.Claims{Audience: from.SessionID, Caller: "/counters/caller", Depth: 7}, h.claims(from))
		require.NotContains(t, h.header, "Authorization")
		require.NotContains(t, h.head, from.Secret.Reveal())
		for _, name := range []string{wire.HeaderFrom, wire.HeaderSession, wire.HeaderSessionSecret, wire.HeaderDepth} {
			require.NotContains(t, h.header, name)
		}
		resp, _ = f.get("/counters/callee", caller("/counters/caller", from)...)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, 1, w.seen()[1].claims(from).Depth)
	}
}

func TestAClusterCallMustProveItself(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	a, b := newFake(t, nil), newFake(t, nil)
	sa, sb := f.register(a, "a"), f.register(b, "b")
	sa.place("caller")
	good := caller("/counters/caller", sa)
	const secret, mismatch = "invalid session secret", "caller placement mismatch"
	for _, c := range []struct {
		headers []string
		status  int
		message string
	}{
		{good[:1], 403, secret},
		{good[:2], 403, secret},
		{good[1:2], 403, secret},
		{good[2:], 403, secret},
		{[]string{good[0], good[2]}, 403, secret},
		{[]string{"pinboard-session:"}, 403, secret},
		{[]string{good[0], good[1], "pinboard-session-secret: " + sb.Secret.Reveal()}, 403, secret},
		{[]string{good[0], "pinboard-session: unknown", good[2]}, 403, secret},
		{good[1:], 403, mismatch},
		{caller("/counters/caller", sb), 403, mismatch},
		{caller("/counters/unplaced", sa), 403, mismatch},
		{caller("counters/caller", sa), 403, mismatch},
		{caller("/counters", sa), 403, mismatch},
		{caller("/counters/caller/", sa), 403, mismatch},
		{caller("/counters/%63aller", sa), 403, mismatch},
		{append(good[:3:3], good[0]), 403, ""},
		{append(good[:3:3], good[1]), 403, ""},
		{append(good[:3:3], good[2]), 403, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: 1", "pinboard-subrequest-depth: 1"), 403, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: x"), 400, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: -1"), 400, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: +1"), 400, ""},
		{append(good[:3:3], "pinboard-subrequest-depth:"), 400, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: 1.0"), 400, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: 51"), 508, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: 99999999999999999999"), 508, ""},
		{append(good[:3:3], "pinboard-subrequest-depth: 50"), 200, ""},
		{good, 200, ""},
	} {
		before := len(a.seen()) + len(b.seen())
		resp, body := f.get("/counters/alice", c.headers...)
		require.Equal(t, c.status, resp.StatusCode, c.headers)
		if c.message != "" {
			require.Equal(t, c.message, errorOf(t, body), c.headers)
		}
		if c.status != 200 {
			require.Equal(t, before, len(a.seen())+len(b.seen()))
		}
	}

	require.NoError(t, f.store.Deregister(t.Context(), sa.SessionID))
	resp, _ := f.get("/counters/alice", good...)
	require.Equal(t, 403, resp.StatusCode, "the session has ended")
}

func TestOtherSpellingsOfClusterHeadersAreNotRead(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, nil)
	s := f.register(w, "a")
	s.place("caller")
	for _, spell := range []string{"_", "."} {
		var headers []string
		for _, h := range caller("/counters/caller", s) {
			name, value, _ := strings.Cut(h, ": ")
			headers = append(headers, strings.ReplaceAll(name, "-", spell)+": "+value)
		}
		resp, _ := f.get("/counters/alice", headers...)
		require.Equal(t, 200, resp.StatusCode)
	}
	for _, h := range w.seen() {
		require.Empty(t, h.claims(s).Caller)
		require.NotContains(t, h.head, s.Secret.Reveal())
	}
}

func TestTheSecretIsNeverOnTheDataPlane(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) { h.body(); h.ok("") })
	s := f.register(w, "a", func(r *store.Registration) { r.Secret = wire.NewSecret("planted-secret-of-a") })
	s.place("caller")
	f.get("/counters/alice")
	f.get("/counters/alice", caller("/counters/caller", s)...)
	f.post("/counters/alice/_wake", "")
	f.ask(upgradeRequest("/counters/alice")).answer("GET")
	require.Len(t, w.seen(), 4)
	require.NotContains(t, w.bytes(), "planted-secret-of-a")
}

func TestACallerThatIsKnownIsNotLookedUp(t *testing.T) {
	t.Parallel()
	broken := &stuck{}
	f := newFront(t, func(s *setup) {
		s.store = func(inner store.Store) store.Store { broken.Store = inner; return broken }
	})
	a, b := newFake(t, nil), newFake(t, nil)
	sa, sb := f.register(a, "a"), f.register(b, "b")
	sa.place("caller")
	require.Eventually(t, func() bool { // until both are recalled
		broken.set(nil)
		resp, _ := f.get("/counters/caller")
		require.Equal(t, 200, resp.StatusCode)
		resp, _ = f.get("/counters/callee", caller("/counters/caller", sa)...)
		require.Equal(t, 200, resp.StatusCode)
		broken.set(errPlanted)
		resp, _ = f.get("/counters/callee", caller("/counters/caller", sa)...)
		return resp.StatusCode == 200
	}, patience, time.Millisecond)
	resp, _ := f.get("/counters/callee", caller("/counters/other", sa)...)
	require.Equal(t, 503, resp.StatusCode, "who is not known is looked up")
	broken.set(nil)
	for _, stranger := range [][]string{caller("/counters/other", sa), caller("/counters/caller", sb)} {
		resp, _ = f.get("/counters/callee", stranger...)
		require.Equal(t, 403, resp.StatusCode)
	}
	_, err := f.store.Release(t.Context(), []wire.Release{{SessionID: sa.SessionID, Namespace: counters_, ID: "caller"}})
	require.NoError(t, err)
	sb.place("caller")
	resp, _ = f.get("/counters/callee", caller("/counters/caller", sa)...)
	require.Equal(t, 403, resp.StatusCode, "it lives elsewhere now")
	resp, _ = f.get("/counters/callee", caller("/counters/caller", sb)...)
	require.Equal(t, 200, resp.StatusCode)
}
