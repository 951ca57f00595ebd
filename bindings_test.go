package pinboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

const chat = "chat.example"

// resolveFor is resolve for a client that asked a host name.
func (n *regNode) resolveFor(host, id string) (route, error) {
	return n.pb.placer.resolve(context.Background(), ask{
		instance: instance{"/a", id}, host: host, key: func() (string, bool) { return "k", true },
	})
}

// under binds a registration under a host name.
func under(hostname string) func(*store.Registration) {
	return func(r *store.Registration) { r.Hostname = hostname }
}

// inBindingBubble runs f in virtual time, on a node where /a is out of
// quarantine without a host name and under chat.
func inBindingBubble(t *testing.T, f func(t *testing.T, n *regNode)) {
	t.Helper()
	inPlacingBubble(t, Options{}, func(t *testing.T, n *regNode) {
		w := n.workerAt("http://127.0.0.1:2")
		w.recordAs(under(chat))
		_, err := n.resolveFor(chat, "first")
		ref := requireRefusal(t, err, http.StatusServiceUnavailable)
		time.Sleep(ref.retryAfter) // virtual time
		time.Sleep(time.Minute)    // virtual time: its lease, and the time that the name is held
		n.store.called()
		f(t, n)
	})
}

func TestARequestIsForTheExactHostNameFirst(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		plain, bound := n.ready(10, "/a"), n.workerAt("http://127.0.0.1:3")
		for _, host := range []string{"", chat, "other.example"} {
			rt, err := n.resolveFor(host, "x")
			require.NoError(t, err)
			require.Equal(t, plain.session, rt.lease.ID, host)
		}
		bound.recordAs(under(chat))
		for _, host := range []string{"", "other.example"} {
			rt, err := n.resolveFor(host, "x")
			require.NoError(t, err)
			require.Equal(t, plain.session, rt.lease.ID, host)
		}
		for _, id := range []string{"x", "y"} {
			rt, err := n.resolveFor(chat, id)
			require.NoError(t, err)
			require.Equal(t, bound.session, rt.lease.ID, id)
		}
	})
}

// Once a node knows which binding it is, a look-up is one question, and one that
// it recalls is none.
func TestABindingCostsNoSecondQuestion(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		n.ready(10, "/a")
		n.workerAt("http://127.0.0.1:3").recordAs(under(chat))
		for _, host := range []string{"", "other.example", chat} {
			for range 2 { // the first hears what the second goes by
				_, err := n.resolveFor(host, "x")
				require.NoError(t, err)
			}
			n.store.called()
			for range 3 {
				_, err := n.resolveFor(host, "x")
				require.NoError(t, err)
				require.Empty(t, n.store.called(), host)
			}
			n.store.fail(store.ErrNotTracked, "Known")
			for range 3 {
				_, err := n.resolveFor(host, "x")
				require.NoError(t, err)
				require.Equal(t, []string{"Resolve"}, n.store.called(), host)
			}
			n.store.intercept(nil)
		}
	})
}

func TestAHostNameWithoutAWorkerFallsBackOneLeaseLater(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		bound := n.workerAt("http://127.0.0.1:3")
		bound.recordAs(under(chat))
		_, err := n.resolveFor(chat, "x")
		require.NoError(t, err)
		require.NoError(t, n.store.Deregister(t.Context(), bound.session))
		n.pb.leases.end(bound.session)
		time.Sleep(14 * time.Second) // virtual time
		plain := n.ready(10, "/a")
		for _, host := range []string{chat, ""} {
			rt, err := n.resolveFor(host, "x")
			if host == chat {
				requireRefusal(t, err, http.StatusNotFound)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, plain.session, rt.lease.ID)
		}
		time.Sleep(time.Second) // virtual time
		for range 2 {
			rt, err := n.resolveFor(chat, "x")
			require.NoError(t, err)
			require.Equal(t, plain.session, rt.lease.ID)
		}
		bound.recordAs(under(chat))
		rt, err := n.resolveFor(chat, "x")
		require.NoError(t, err)
		require.Equal(t, bound.session, rt.lease.ID)
	})
}

// Simultaneous look-ups of one id share a question only if they ask the same.
func TestLookUpsForSeveralHostNamesAreNotMixedUp(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		plain, bound := n.ready(10, "/a"), n.workerAt("http://127.0.0.1:3")
		bound.recordAs(under(chat))
		n.pb.placer.bound.note(store.Bind(chat, "/a"), false)
		asked := make(chan struct{})
		n.store.intercept(func(context.Context, string) error {
			<-asked
			return nil
		})
		found := map[string]chan string{"": make(chan string, 1), chat: make(chan string, 1)}
		for _, host := range []string{"", chat} {
			answer := found[host]
			go func() {
				rt, err := n.resolveFor(host, "x")
				if err != nil {
					answer <- err.Error()
					return
				}
				answer <- rt.lease.ID
			}()
			synctest.Wait()
		}
		close(asked)
		require.Equal(t, plain.session, <-found[""])
		require.Equal(t, bound.session, <-found[chat])
	})
}

// While the store is away a node serves what it knows, of the right binding.
func TestKnownPlacementsOfABindingAreServedWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	inBindingBubble(t, func(t *testing.T, n *regNode) {
		plain, bound := n.ready(10, "/a"), n.workerAt("http://127.0.0.1:3")
		bound.recordAs(under(chat))
		for _, host := range []string{"", chat} {
			_, err := n.resolveFor(host, "x")
			require.NoError(t, err)
		}
		n.store.intercept(func(context.Context, string) error { return errors.New("away") })
		for host, want := range map[string]string{"": plain.session, chat: bound.session} {
			rt, err := n.resolveFor(host, "x")
			require.NoError(t, err)
			require.Equal(t, want, rt.lease.ID)
		}
		n.store.intercept(nil)
	})
}

// The store could say both by turns; a request must come to an end.
func TestBindingsThatChangeAllTheTimeEndARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.pb.placer.store = fickle{n.store}
		_, err := n.resolveFor(chat, "x")
		require.Error(t, err)
		require.Contains(t, []int{http.StatusNotFound, http.StatusServiceUnavailable}, asRefusal(err).status)
	})
}

type fickle struct{ store.Store }

func (f fickle) Resolve(_ context.Context, req store.Request) (store.Result, error) {
	if req.Hostname == "" {
		return store.Result{Outcome: store.Elsewhere}, nil
	}
	return store.Result{Outcome: store.UnknownNamespace}, nil
}

func TestNamesAreForgottenBeforeTheyPileUp(t *testing.T) {
	t.Parallel()
	var b boundNames
	for i := range 3 * maxBound {
		b.note(fmt.Sprint(i), true)
	}
	require.LessOrEqual(t, len(b.names), maxBound)
	require.True(t, b.has(fmt.Sprint(3*maxBound-1)))
	b.note(fmt.Sprint(3*maxBound-1), false)
	require.False(t, b.has(fmt.Sprint(3*maxBound-1)))
}

func TestTheRequestsHostPicksTheWorker(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.primeUnder(chat)
	plain, bound := newFake(t, nil), newFake(t, nil)
	f.register(plain, "plain")
	sb := f.register(bound, "bound", under(chat))
	ask := func(host string, headers ...string) int {
		t.Helper()
		before := len(bound.seen())
		resp, _ := f.ask("GET /counters/alice HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" + lines(headers) + "\r\n").whole("GET")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		return len(bound.seen()) - before
	}
	for _, host := range []string{"p", "", "chat.example.org", "a.chat.example", "xchat.example"} {
		require.Zero(t, ask(host, "X-Forwarded-Host: chat.example", "Forwarded: host=chat.example"), host)
	}
	for _, host := range []string{"chat.example", "CHAT.example", "chat.example:8080", "chat.example.", "Chat.Example.:80"} {
		require.Equal(t, 1, ask(host, "X-Forwarded-Host: p"), host)
	}
	got := bound.seen()[2]
	require.Contains(t, strings.ToLower(got.head), "\r\nhost: chat.example:8080", "it stays the client's")
	got.claims(sb)
	row, err := f.store.Lookup(t.Context(), store.Bind(chat, counters_), "alice")
	require.NoError(t, err)
	require.Equal(t, sb.SessionID, row.SessionID)
}

// What somebody could read as the name of a binding does not go past it.
func TestAHostThatIsNoneGoesToNoBinding(t *testing.T) {
	t.Parallel()
	f := newFront(t, h2c)
	f.primeUnder(chat)
	plain, bound := newFake(t, nil), newFake(t, nil)
	f.register(plain, "plain")
	f.register(bound, "bound", under(chat))
	for _, host := range []string{
		"chat.example:b", "chat.example:80:90", "chat.example:-1", "chat.example..", "chat..example", ".chat.example", "chat.example,",
		"chat.example, p", "chat.example;", "chat.example=", "(chat.example)", "*.example", "!", ".", ":", ":80", "::1", "[::1", "::1]", "[]", "[::1]x", "[::1]:x",
		strings.Repeat("a", 254),
	} {
		resp, _ := f.ask("GET /counters/alice HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n").whole("GET")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, host)
		resp, _ = f.ask("GET http://" + host + "/counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n").whole("GET")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode, host)
		h := f.frames()
		h.open(true, ":method: GET", ":scheme: http", ":authority: "+host, ":path: /counters/alice")
		require.NotEqual(t, "200", h.status(), host)
	}
	require.Empty(t, plain.seen())
	require.Empty(t, bound.seen())
	for i, host := range []string{"p:", "p:80", "a_b.example", "_dmarc.example.", "xn--bcher-kva.example", "127.0.0.1:8080", "[::1]", "[2001:DB8::1]:8080"} {
		resp, _ := f.ask("GET /counters/alice HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n").whole("GET")
		require.Equal(t, http.StatusOK, resp.StatusCode, host)
		require.Equal(t, host, plain.seen()[i].header.Get("Host"), "it stays the client's")
	}
}

// primeUnder has the quarantine of the test's namespace under a host name over.
func (f *front) primeUnder(hostname string) {
	f.t.Helper()
	ctx := f.t.Context()
	w := newFake(f.t, nil)
	s := f.register(w, "prime", under(hostname))
	hasty := f.pb.opts.Store.backend.Open(store.Config{Prefix: "pinboard", LeaseTTL: time.Millisecond, Shards: 1})
	require.Eventually(f.t, func() bool {
		res, err := hasty.Resolve(ctx, store.Request{
			Hostname: hostname, Namespace: counters_, ID: "prime", View: store.AnyView, BalanceFactor: 1,
		})
		return err == nil && res.Outcome != store.Quarantined
	}, patience, time.Millisecond)
	require.NoError(f.t, f.store.Deregister(ctx, s.SessionID))
}

// A worker's calls name its own host name, and prove the placement there.
func TestAClusterCallGoesByHostName(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.primeUnder(chat)
	plain, bound := newFake(t, nil), newFake(t, nil)
	sp, sb := f.register(plain, "plain"), f.register(bound, "bound", under(chat))
	sp.place("caller")
	res, err := f.store.Resolve(t.Context(), store.Request{
		Hostname: chat, Namespace: counters_, ID: "caller", View: store.AnyView, BalanceFactor: 1,
	})
	require.NoError(t, err)
	require.Equal(t, sb.SessionID, res.SessionID)
	call := func(host, id string, s *session) int {
		t.Helper()
		resp, _ := f.ask("GET /counters/" + id + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n" +
			lines(caller("/counters/caller", s)) + "\r\n").whole("GET")
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, call(chat, "x", sb))
	require.Equal(t, "/counters/caller", bound.only().claims(sb).Caller)
	require.Equal(t, http.StatusOK, call("p", "x", sp))
	require.Equal(t, http.StatusOK, call("p", "y", sb), "it may call those without a host name")
	require.Len(t, plain.seen(), 2)
	require.NoError(t, f.store.Deregister(t.Context(), sp.SessionID))
	require.Equal(t, http.StatusForbidden, call(chat, "x", sp))
}

func TestARefusalFreesTheRowOfItsBinding(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.primeUnder(chat)
	plain := newFake(t, nil)
	refusing := newFake(t, func(h *hit) { h.body(); h.refuse() })
	f.register(plain, "plain").place("alice")
	f.register(refusing, "refusing", under(chat))
	resp, _ := f.ask("GET /counters/alice HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\n\r\n").whole("GET")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	_, err := f.store.Lookup(t.Context(), store.Bind(chat, counters_), "alice")
	require.ErrorIs(t, err, store.ErrNotPlaced)
	require.NotEmpty(t, f.owner("alice"), "the other one is not touched")

	// The second worker's refusal is passed on, and gives its row up, too.
	again := newFake(t, func(h *hit) { h.body(); h.refuse() })
	f.register(again, "again", under(chat))
	resp, _ = f.ask("GET /counters/alice HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\n\r\n").whole("GET")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Len(t, again.seen(), 1)
	_, err = f.store.Lookup(t.Context(), store.Bind(chat, counters_), "alice")
	require.ErrorIs(t, err, store.ErrNotPlaced)

	// Too long a body to be sent twice: the row is freed all the same.
	body := strings.Repeat("x", 1<<20)
	c := f.ask(fmt.Sprintf("POST /counters/alice HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	resp, _ = c.whole("POST")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	_, err = f.store.Lookup(t.Context(), store.Bind(chat, counters_), "alice")
	require.ErrorIs(t, err, store.ErrNotPlaced)
	require.NotEmpty(t, f.owner("alice"))
	require.Empty(t, plain.seen())
}
