package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

func TestARegistrationAnswersWithASession(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	a := w.register(fields{"namespaces": []string{"/b", "/a", "/b"}, "headroom": 12.5, "epoch": 0, "more": "ignored"})
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.Equal(t, false, a.field(t, "draining"))
	require.Nil(t, a.field(t, "drainDeadline"))
	require.Nil(t, a.field(t, "duplicates"))
	expires := a.field(t, "expiresInMs").(float64)
	require.Greater(t, expires, 0.0)
	require.LessOrEqual(t, expires, 15_000.0)
	require.GreaterOrEqual(t, len(w.session), 26) // 128 bits in base32

	s, err := n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.Equal(t, w.client, s.ClientID)
	require.Equal(t, w.secret, s.Secret.Reveal())
	require.Equal(t, []string{"/a", "/b"}, s.Namespaces)
	require.Equal(t, w.url, s.AdvertiseURL)
	require.Equal(t, []string{"*"}, s.BackendHosts)
	require.Empty(t, s.BackendAddr, "the URL names an address")
	require.InDelta(t, 12.5, s.Headroom, 0)
	require.False(t, s.Draining)
	require.True(t, s.Active)
	require.EqualValues(t, 1, w.probes.Load())

	first := w.session
	w.register(fields{"draining": true})
	require.NotEqual(t, first, w.session)
	s, err = n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.True(t, s.Draining)
}

func TestARegistrationWithAWrongFieldIs400AndNamesTheField(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	for _, c := range []struct {
		field string
		value any
	}{
		{"clientId", missing}, {"clientId", 1}, {"clientId", ""}, {"clientId", nil},
		{"secret", missing}, {"secret", ""}, {"secret", "new\nline"}, {"secret", "with space"}, {"secret", "ü"},
		{"namespaces", missing}, {"namespaces", []string{}}, {"namespaces", "/a"}, {"namespaces", []any{"/a", 1}},
		{"namespaces", []string{"a"}}, {"namespaces", []string{"/a/b"}}, {"namespaces", []string{"/registry"}},
		{"namespaces", []string{"/healthz"}}, {"namespaces", []string{"/metrics"}}, {"namespaces", []string{"/_x"}},
		{"namespaces", []string{"/.."}}, {"namespaces", []string{"/."}}, {"namespaces", []string{"/a b"}},
		{"namespaces", []string{"/" + strings.Repeat("n", 128)}},
		{"advertiseUrl", missing}, {"advertiseUrl", "127.0.0.1:8000"}, {"advertiseUrl", "http://u:p@127.0.0.1"},
		{"headroom", missing}, {"headroom", -1}, {"headroom", "12"}, {"headroom", nil},
		{"draining", missing}, {"draining", "yes"}, {"draining", nil},
		{"challenge", missing}, {"challenge", 1}, {"challengeValue", missing}, {"challengeValue", ""},
		{"prevSessionId", 1}, {"instances", []string{}}, {"instances", fields{"/a": "x"}}, {"instances", fields{"/a": []any{nil}}},
		{"hostname", ""}, {"hostname", 1}, {"hostname", "https://chat.example"}, {"hostname", "chat.example/a"},
		{"hostname", "bücher.example"},
		// These need a hostname.
		{"env", "blue"}, {"envs", fields{"/a": "blue"}}, {"takeover", "deny"},
		{"epoch", nil}, {"epoch", -1}, {"epoch", 1.5}, {"epoch", "1"},
	} {
		a := n.post("/registry/register", tokenWorker, w.registration(fields{c.field: c.value}))
		a.requireRefusal(t, http.StatusBadRequest, c.field)
	}
	a := n.post("/registry/register", tokenWorker, `{"headroom":1e400}`)
	require.Equal(t, http.StatusBadRequest, a.status)
	for _, body := range []string{"", "null", "[]", "1", "{", "{}x", "\xff{}"} {
		n.post("/registry/register", tokenWorker, body).requireRefusal(t, http.StatusBadRequest, "")
	}
	require.Zero(t, n.dials.Load())
	require.Nil(t, w.listed())
}

func TestAContentTypeIsNotNeeded(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	require.Equal(t, http.StatusOK, n.worker().register().status) // call sends none
}

func TestARegistrationOutsideTheClaimsIs403BeforeAnyDial(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	logged := func() int { return strings.Count(n.said.String(), `"registration refused","client":"`+w.client+`"`) }
	for _, c := range []struct {
		token   string
		changes fields
		has     string
	}{
		{tokenSome, fields{"namespaces": []string{"/a", "/ab", "/b"}}, "/b"},
		{tokenBare, fields{}, "/a"},
		{tokenHost, fields{"advertiseUrl": "http://127.0.0.2:8000"}, "host"},
		{tokenHost, fields{"advertiseUrl": "http://localhost:8000"}, "host"},
		{tokenWorker, fields{"advertiseUrl": "http://0.0.0.0:8000"}, "the advertise URL must have an address that pinboard can reach"},
	} {
		before := logged()
		n.post("/registry/register", c.token, w.registration(c.changes)).requireRefusal(t, http.StatusForbidden, c.has)
		require.Equal(t, before+1, logged())
	}
	require.Zero(t, n.dials.Load())
	require.Empty(t, n.store.called(), "the store is not asked either")
	n.post("/registry/register", tokenSome, w.registration(fields{"namespaces": []string{"/a", "/ab"}}))
	require.NotNil(t, w.listed())
}

// C30: host allow-lists that are checked as text let other spellings through.
func TestNoSpellingOfAHostGetsAroundTheClaims(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	port := w.url[strings.LastIndexByte(w.url, ':'):]
	for url, status := range map[string]int{
		"http://127.0.0.1@169.254.169.254:8000":  400,
		"http://169.254.169.254/":                403,
		"http://7f000001.nip.io:8000":            403,
		"http://0x7f000001:8000":                 400,
		"http://2130706433:8000":                 400,
		"http://127.1:8000":                      400,
		"http://[::ffff:127.0.0.1]:8000":         400,
		"http://127.0.0.1:8000/?x":               400,
		"http://127.0.0.1:8000/#f":               400,
		"ftp://127.0.0.1":                        400,
		`http://127.0.0.1:8000\@evil`:            400,
		"http://127.0.0.1:8000@evil":             400,
		"http://[::1]:8000":                      403,
		"http://0.0.0.0:8000":                    403,
		"http://127.0.0.1.:8000@x":               400,
		"http://127.0.0.1%2e:8000":               400,
		"http://127.0.0.1.nip.io:8000":           403,
		"http://127.0.0.1:8000/..":               400,
		"http://127.0.0.1:8000/%2e%2e/":          400,
		"http://127.0.0.1 :8000":                 400,
		"//127.0.0.1:8000":                       400,
		"http://127.0.0.1:":                      400,
		"http://127.0.0.1:0":                     400,
		"http://127.0.0.1:99999":                 400,
		"gopher://127.0.0.1:6379/_SLAVEOF%20x%2": 400,
	} {
		a := n.post("/registry/register", tokenHost, w.registration(fields{"advertiseUrl": url}))
		require.Equal(t, status, a.status, "%s: %s", url, a.text)
	}
	require.Zero(t, n.dials.Load())

	a := n.post("/registry/register", tokenHost, w.registration(fields{"advertiseUrl": "HTTP://127.0.0.1" + port + "/"}))
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, w.url, w.listed()["advertiseUrl"], "scheme and slash are normalised")
}

func TestTheSameClientWithAnotherSecretIsRefusedAndTheIncumbentUntouched(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"instances": fields{"/a": []string{"x"}}})
	before := w.listed()
	thief := n.worker()
	thief.client = w.client
	dials := n.dials.Load()
	n.post("/registry/register", tokenWorker, thief.registration()).requireRefusal(t, http.StatusConflict, "another secret")
	require.Equal(t, dials, n.dials.Load(), "refused before the probe")
	after := w.listed()
	delete(before, "expiresInMs")
	delete(after, "expiresInMs")
	require.Equal(t, before, after)
	require.Equal(t, http.StatusOK, w.heartbeat().status)
	owner, _ := n.owner("/a", "x")
	require.Equal(t, w.session, owner)
}

func TestAConflictThatComesUpDuringTheProbeIsSeen(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	n.store.fail(store.ErrOtherSecret, "Register")
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusConflict, "another secret")
	n.store.fail(fmt.Errorf("register: %w", store.ErrOvertaken), "Register")
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "later registration")
	require.EqualValues(t, 2, w.probes.Load())
	require.Nil(t, w.listed())
}

func TestARegistrationIs503WhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	for _, op := range []string{"CheckRegister", "Register"} {
		n.store.fail(errStoreTest, op)
		n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "store")
	}
	require.Equal(t, 2, strings.Count(n.said.String(), errStoreTest.Error()), "each logged once")
	// An activation that fails costs nothing: the first beat makes up for it.
	n.store.fail(errStoreTest, "Activate")
	w.register()
	s, err := n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.False(t, s.Active)
	require.Equal(t, http.StatusOK, w.heartbeat().status)
	s, err = n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.True(t, s.Active)
}

// C33: the answer to a registration is lost and the client registers again.
func TestASecondRegistrationReplacesTheFirst(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	held := fields{"instances": fields{"/a": []string{"x", "y"}}}
	w.register(held)
	first := w.session
	_, epoch := n.owner("/a", "x")
	w.register(held, fields{"prevSessionId": first})
	require.Equal(t, w.session, w.listed()["sessionId"])

	require.Equal(t, http.StatusOK, w.heartbeat().status)
	a := w.heartbeat(fields{"sessionId": first})
	a.requireRefusal(t, http.StatusConflict, "")
	require.Equal(t, true, a.field(t, "reregister"))
	for _, id := range []string{"x", "y"} {
		owner, _ := n.owner("/a", id)
		require.Equal(t, w.session, owner)
	}
	_, again := n.owner("/a", "x")
	require.Equal(t, epoch, again, "no other session held it in between")
	require.Equal(t, w.session, w.listed()["sessionId"], "the late beat has changed nothing")
}

func TestARegistrationThatItsClientLeftBeforeTheAnswerIsReplaced(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	n.store.intercept(func(_ context.Context, op string) error {
		if op == "Register" {
			leave()
			<-left
		}
		return nil
	})
	held := fields{"instances": fields{"/a": []string{"x", "y"}}}
	_, err := n.try(ctx, "POST", "/registry/register", tokenWorker, w.registration(held))
	close(left)
	require.Error(t, err)
	n.store.intercept(nil)
	var lost string
	require.Eventually(t, func() bool {
		row, err := n.store.Lookup(t.Context(), "/a", "x")
		lost = row.SessionID
		return err == nil
	}, patience, time.Millisecond, "it was recorded, and its answer is lost")
	a := w.register(held) // it knows of no earlier session
	require.Equal(t, http.StatusOK, a.status)
	require.Nil(t, a.field(t, "duplicates"))
	require.NotEqual(t, lost, w.session)
	require.Equal(t, w.session, w.listed()["sessionId"])
	for _, id := range []string{"x", "y"} {
		owner, _ := n.owner("/a", id)
		require.Equal(t, w.session, owner)
	}
	require.Equal(t, true, w.heartbeat(fields{"sessionId": lost}).field(t, "reregister"))
	require.Equal(t, http.StatusOK, w.heartbeat().status)
}

func TestTwoRegistrationsAtOnceLeaveOneSession(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	body := w.registration(fields{"instances": fields{"/a": []string{"x"}}})
	const times = 8
	answers := make(chan regAnswer, times)
	for range times {
		go func() {
			a, err := n.try(t.Context(), "POST", "/registry/register", tokenWorker, body)
			if err != nil {
				a.text = err.Error()
			}
			answers <- a
		}()
	}
	live := map[any]bool{}
	for range times {
		a := <-answers
		require.Equal(t, http.StatusOK, a.status, a.text)
		live[a.field(t, "sessionId")] = true
	}
	require.Len(t, live, times)
	session := w.listed()["sessionId"].(string)
	require.True(t, live[session])
	owner, _ := n.owner("/a", "x")
	require.Equal(t, session, owner)
	beats := 0
	for id := range live {
		if a := w.heartbeat(fields{"sessionId": id}); a.status == http.StatusOK {
			beats++
		}
	}
	require.Equal(t, 1, beats)
}

func TestRegistrationsOfOneClientWaitForEachOther(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, other := n.worker(), n.worker()
	inside, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	n.store.intercept(func(_ context.Context, op string) error {
		if op == "Register" {
			n.store.intercept(nil)
			close(inside)
			<-goOn
		}
		return nil
	})
	first := make(chan error, 1)
	go func() {
		_, err := n.try(t.Context(), "POST", "/registry/register", tokenWorker, w.registration())
		first <- err
	}()
	<-inside
	n.store.called()

	// The same client has to wait, no longer than its request lives.
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	body := w.registration()
	go func() {
		_, err := n.try(ctx, "POST", "/registry/register", tokenWorker, body)
		second <- err
	}()
	require.Eventually(t, func() bool { return n.pb.registry.clients.waiting(w.client) == 2 }, patience, time.Millisecond)
	other.register() // another client does not wait
	require.Equal(t, []string{"CheckRegister", "Register", "Activate"}, n.store.called(), "the other's")
	cancel()
	require.ErrorIs(t, <-second, context.Canceled)
	require.Eventually(t, func() bool { return n.pb.registry.clients.waiting(w.client) == 1 }, patience, time.Millisecond)
	release()
	require.NoError(t, <-first)
	w.register()
	require.Empty(t, n.pb.registry.clients.locks)
}

// C45: a new process on the address of one that is gone.
func TestOneLiveSessionForEachAdvertiseURL(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	old := n.worker()
	old.register(fields{"instances": fields{"/a": []string{"alice"}}})
	fresh := n.workerAt(old.url)
	old.answers(fresh.ServeHTTP) // the new process has the port
	fresh.register()

	require.Nil(t, old.listed())
	require.Equal(t, fresh.session, fresh.listed()["sessionId"])
	// The old one's ids wait for the end of its lease, and are not served.
	res, err := n.store.Resolve(t.Context(), n.ask("/a", "alice"))
	require.NoError(t, err)
	require.Equal(t, old.session, res.SessionID)
	require.True(t, res.Stopped)
	// It is not renewed, although somebody answers at its URL.
	a := n.post("/registry/heartbeat", tokenWorker, old.beat())
	a.requireRefusal(t, http.StatusConflict, "")
	require.Equal(t, true, a.field(t, "reregister"))
	require.Equal(t, http.StatusOK, fresh.heartbeat().status)
}

// C45, the variant: two processes behind one balancer.
func TestBehindABalancerOnlyWhoAnswersIsLive(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	front := n.worker()
	x, y := n.workerAt(front.url), n.workerAt(front.url)
	front.answers(x.ServeHTTP)
	x.register(fields{"instances": fields{"/a": []string{"alice"}}})
	n.post("/registry/register", tokenWorker, y.registration()).requireRefusal(t, http.StatusConflict, "another process")
	require.Nil(t, y.listed())
	require.NotNil(t, x.listed(), "who fails the probe displaces nobody")
	front.answers(y.ServeHTTP) // the balancer's turn
	a := x.heartbeat()
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, true, a.field(t, "degraded"))
	owner, _ := n.owner("/a", "alice")
	require.Equal(t, x.session, owner, "the id stays")
}
