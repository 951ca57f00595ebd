package pinboard

import (
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// requireSuperseded checks the answer that stops a worker for good.
func (a regAnswer) requireSuperseded(t testing.TB, by *regWorker, epoch string) {
	t.Helper()
	a.requireRefusal(t, http.StatusConflict, by.client)
	require.Contains(t, a.text, "epoch "+epoch)
	require.Equal(t, true, a.field(t, "superseded"))
	require.Nil(t, a.field(t, "reregister"))
}

// requirePlain409 checks an answer that a worker tries again after.
func (a regAnswer) requirePlain409(t testing.TB, has string) {
	t.Helper()
	a.requireRefusal(t, http.StatusConflict, has)
	require.Nil(t, a.field(t, "superseded"))
	require.Nil(t, a.field(t, "reregister"))
}

func TestAHigherWorkerEpochDisplacesAndALowerOneWaits(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	old := n.worker()
	old.register(fields{"namespaces": []string{"/a", "/b"}, "instances": fields{"/a": []string{"alice"}}})
	next := n.worker()
	next.register(fields{"epoch": 2})

	res, err := n.store.Resolve(t.Context(), n.ask("/a", "alice"))
	require.NoError(t, err)
	require.Equal(t, old.session, res.SessionID)
	require.True(t, res.Stopped)
	require.Nil(t, old.listed())
	require.EqualValues(t, 2, next.listed()["epoch"])
	for range 2 {
		old.heartbeat().requireSuperseded(t, next, "2")
	}
	// It may still give up what it has.
	a := n.post("/registry/release", tokenWorker, fields{"sessionId": old.session, "namespace": "/a", "id": "alice"})
	require.EqualValues(t, 1, a.field(t, "released"))

	dials := n.dials.Load()
	old.n.post("/registry/register", tokenWorker, old.registration(fields{"epoch": 1})).requirePlain409(t, "above 1")
	require.Equal(t, dials, n.dials.Load(), "a conflict is found before the probe")
	require.Equal(t, http.StatusOK, n.post("/registry/deregister", tokenWorker, fields{"sessionId": old.session}).status)
	require.Equal(t, http.StatusOK, n.post("/registry/deregister", tokenWorker, fields{"sessionId": next.session}).status)
	old.heartbeat().requireSuperseded(t, next, "2")
	fresh := n.worker()
	fresh.register(fields{"epoch": 1})
}

// The probe takes a while, in which another one may come first.
func TestAConflictThatComesUpDuringTheProbeIsFound(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	low, high := n.worker(), n.worker()
	low.answers(func(rw http.ResponseWriter, r *http.Request) {
		low.answers(nil)
		high.register(fields{"epoch": 2})
		low.ServeHTTP(rw, r)
	})
	n.post("/registry/register", tokenWorker, low.registration(fields{"epoch": 1})).requirePlain409(t, "above 1")
	require.Nil(t, low.listed())
	require.Equal(t, http.StatusOK, high.heartbeat().status)
}

func TestADisplacedWorkerIsToldForAnHourPastItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		old, next := n.ready(1, "/a"), n.workerAt("http://127.0.0.1:1")
		known, err := n.pb.leases.get(t.Context(), old.session)
		require.NoError(t, err)
		next.recordAs(func(r *store.Registration) { r.Epoch = 7 })
		time.Sleep(16 * time.Second)
		n.pb.leases.mu.Lock()
		n.pb.leases.cut(known) // as a watch round does: this node knows that it is over
		n.pb.leases.mu.Unlock()
		old.heartbeat().requireSuperseded(t, next, "7")
		time.Sleep(time.Hour - 2*time.Second)
		old.heartbeat().requireSuperseded(t, next, "7")
		require.Zero(t, n.dials.Load())

		// Where the store does not answer, nothing is known.
		n.store.intercept(func(context.Context, string) error { return context.DeadlineExceeded })
		old.heartbeat().requireRefusal(t, http.StatusServiceUnavailable, "")
		n.store.intercept(nil)
	})
}

// recordAs is record with changes.
func (w *regWorker) recordAs(changes ...func(*store.Registration)) {
	w.n.t.Helper()
	w.session = rand.Text()
	r := store.Registration{
		SessionID: w.session, ClientID: w.client, Secret: wire.NewSecret(w.secret), Namespaces: []string{"/a"},
		AdvertiseURL: w.url, BackendHosts: []string{"*"}, Headroom: 10,
	}
	for _, change := range changes {
		change(&r)
	}
	_, err := w.n.store.Register(context.Background(), r)
	require.NoError(w.n.t, err)
	require.NoError(w.n.t, w.n.store.Activate(context.Background(), w.session))
}

func TestAnotherEnvIsRefusedOrTakesOver(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	bound := func(env string, more fields) fields {
		f := fields{"hostname": "Chat.Example.:443", "env": env}
		maps.Copy(f, more)
		return f
	}
	blue := n.worker()
	blue.register(bound("blue", fields{"namespaces": []string{"/a", "/b"}, "envs": fields{"/b": "old", "/c": "stranger"}}))
	listed := blue.listed()
	require.Equal(t, "chat.example", listed["hostname"])
	require.Equal(t, "blue", listed["env"])
	require.Equal(t, map[string]any{"/b": "old"}, listed["envs"])
	s, err := n.store.Session(t.Context(), blue.session)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"/b": "old"}, s.Envs, "what is not registered is not kept")
	require.NotContains(t, n.worker().listedAfter(fields{"namespaces": []string{"/d"}}), "hostname")

	green := n.worker()
	for _, takeover := range []any{missing, "deny"} {
		n.post("/registry/register", tokenWorker, green.registration(bound("green", fields{"takeover": takeover}))).
			requirePlain409(t, `env "blue"`)
	}
	n.post("/registry/register", tokenWorker, green.registration(fields{"hostname": "chat.example"})).
		requirePlain409(t, `env "blue", not ""`)
	require.Equal(t, false, blue.listed()["draining"])
	green.register(bound("green", fields{"takeover": "wind_down"}))
	beat := blue.heartbeat()
	require.Equal(t, true, beat.field(t, "draining"))
	require.LessOrEqual(t, beat.field(t, "drainDeadline"), 30.0)
	require.Greater(t, beat.field(t, "drainDeadline"), 20.0)
	require.Equal(t, false, green.heartbeat().field(t, "draining"))
	// It may lose its session and come back, to end what it has.
	blue.register(bound("blue", fields{"takeover": "wind_down"}))
	require.Equal(t, false, green.heartbeat().field(t, "draining"))
}

// listedAfter registers and returns what operators see.
func (w *regWorker) listedAfter(changes ...fields) map[string]any {
	w.n.t.Helper()
	w.register(changes...)
	return w.listed()
}

func TestReleasesBelongToTheBindingOfTheirSession(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	plain, bound := n.worker(), n.worker()
	plain.register(fields{"instances": fields{"/a": []string{"x"}}})
	bound.register(fields{"hostname": "chat.example", "instances": fields{"/a": []string{"x", "y"}}})
	one := fields{"sessionId": bound.session, "namespace": "/a", "id": "x"}
	a := n.post("/registry/release", tokenWorker, []fields{
		one, {"sessionId": plain.session, "namespace": "/a", "id": "x"},
		{"sessionId": plain.session, "namespace": "/a", "id": "y"}, {"sessionId": "nobody's", "namespace": "/a", "id": "y"}, one,
	})
	require.EqualValues(t, 2, a.field(t, "released"))
	rows, _, err := n.store.Rows(t.Context(), "chat.example/a", "", 10)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, "y", rows[0].ID)
}

func TestOperatorsNameTheHostname(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	plain, bound := n.worker(), n.worker()
	plain.register(fields{"instances": fields{"/a": []string{"plain"}}})
	bound.register(fields{"hostname": "chat.example", "instances": fields{"/a": []string{"x"}}})
	ids := func(query string) (ids []string) {
		t.Helper()
		var page struct{ Placements []struct{ ID string } }
		n.get("/registry/placements?namespace=/a"+query, tokenOperator).into(t, &page)
		for _, p := range page.Placements {
			ids = append(ids, p.ID)
		}
		return ids
	}
	require.Equal(t, []string{"plain"}, ids(""))
	require.Equal(t, []string{"x"}, ids("&hostname=CHAT.example."))
	require.Empty(t, ids("&hostname=other.example"))
	n.get("/registry/placements?namespace=/a&hostname=", tokenOperator).requireRefusal(t, http.StatusBadRequest, "hostname")

	body := fields{"namespace": "/a", "id": "x", "deadline": 60}
	n.post("/registry/wind_down", tokenOperator, body).requireRefusal(t, http.StatusNotFound, "not placed")
	body["hostname"] = "Chat.example:80"
	require.Equal(t, http.StatusOK, n.post("/registry/wind_down", tokenOperator, body).status)
	require.Nil(t, plain.heartbeat().field(t, "messages"))
	messages := bound.heartbeat().field(t, "messages").([]any)
	require.Len(t, messages, 1)
	require.Equal(t, "/a", messages[0].(map[string]any)["ns"])
}
