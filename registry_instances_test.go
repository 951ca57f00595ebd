package pinboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestARegistrationTakesOverTheIdsItLists(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, other := n.worker(), n.worker()
	other.register(fields{"instances": fields{"/a": []string{"taken"}}})
	long := strings.Repeat("x", 257)
	a := w.register(fields{"instances": fields{
		"/a":    []string{"free", "free", "taken", "", "..", long, "a/b", "a/b"},
		"/b":    []string{"x", "x"},
		"bad":   []string{"y"},
		"/none": []string{},
	}})
	var answer wire.Registered
	a.into(t, &answer)
	require.ElementsMatch(t, []wire.Ref{
		{Namespace: "/a", ID: "taken"}, {Namespace: "/a", ID: ""}, {Namespace: "/a", ID: ".."},
		{Namespace: "/a", ID: long}, {Namespace: "/a", ID: "a/b"},
		{Namespace: "/b", ID: "x"}, {Namespace: "bad", ID: "y"},
	}, answer.Duplicates, "each once")
	owner, epoch := n.owner("/a", "free")
	require.Equal(t, w.session, owner)
	require.Equal(t, map[string]map[string]string{"/a": {"free": strconv.FormatInt(epoch, 10)}}, answer.Epochs)
	owner, _ = n.owner("/a", "taken")
	require.Equal(t, other.session, owner)
	_, err := n.store.Lookup(t.Context(), "/b", "x")
	require.ErrorIs(t, err, store.ErrNotPlaced)
}

func TestAHundredThousandInstancesRegisterInOneBody(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{LeaseTTL: time.Hour}) // it takes what it takes
	w, other := n.worker(), n.worker()
	const count = 100_000
	ids := make([]string, count)
	for i := range ids {
		ids[i] = fmt.Sprintf("instance-%06d", i)
	}
	other.register(fields{"instances": fields{"/a": ids[:count/2]}})
	a := w.register(fields{"instances": fields{"/a": ids}})
	var answer wire.Registered
	a.into(t, &answer)
	require.Len(t, answer.Duplicates, count/2)
	require.Len(t, answer.Epochs["/a"], count/2)
	owner, _ := n.owner("/a", ids[count-1])
	require.Equal(t, w.session, owner)
}

// A worker reads 32 MiB of an answer at most, in 5 s.
func TestTheEpochsThatARegistrationTellsAreBounded(t *testing.T) {
	t.Parallel()
	epochs := store.Epochs{}
	for i := range 50_000 {
		id := fmt.Sprintf("%0256d", i)
		epochs.Set(wire.Ref{Namespace: "/a", ID: id}, 1<<53-1)
		epochs.Set(wire.Ref{Namespace: "/b", ID: id}, 1<<53-1)
	}
	told := toldEpochs(epochs)
	require.Equal(t, maxEpochBytes/(256+epochBytes), len(told["/a"])+len(told["/b"]))
	text, err := json.Marshal(told)
	require.NoError(t, err)
	require.LessOrEqual(t, len(text), maxEpochBytes+100)
	require.Nil(t, toldEpochs(nil))
}

// answerWriter is a client's end that notes when its answer has been sent, and
// may fail.
type answerWriter struct {
	*httptest.ResponseRecorder
	sent func() error
}

func (w answerWriter) FlushError() error {
	w.Flush()
	return w.sent()
}

// registerTo registers with a writer of the test's own.
func (w *regWorker) registerTo(ctx context.Context, rw http.ResponseWriter) {
	w.n.t.Helper()
	body, err := w.n.request(ctx, "POST", "/registry/register", tokenWorker, w.registration())
	require.NoError(w.n.t, err)
	w.n.pb.ServeHTTP(rw, body)
}

func TestASessionTakesPlacementsOnlyOnceItsAnswerIsWritten(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.worker()
	rec := httptest.NewRecorder()
	flushed := false
	w.registerTo(t.Context(), answerWriter{rec, func() error {
		require.Equal(t, []string{"CheckRegister", "Register"}, n.store.called())
		require.Contains(t, rec.Body.String(), "sessionId", "all of the answer")
		view, err := n.store.Store.Candidates(t.Context(), "/a", "x")
		require.NoError(t, err)
		require.Empty(t, view.Candidates)
		require.True(t, n.pb.leases.pending["/a"] != nil, "requests wait for it")
		flushed = true
		return nil
	}})
	require.True(t, flushed)
	require.Equal(t, []string{"Activate"}, n.store.called())
	require.Empty(t, n.pb.leases.pending)
	view, err := n.store.Candidates(t.Context(), "/a", "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)
}

func TestASessionWhoseAnswerCouldNotBeWrittenTakesNoPlacements(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.worker()
	w.registerTo(t.Context(), answerWriter{httptest.NewRecorder(), func() error { return errors.New("broken pipe") }})
	require.Equal(t, []string{"CheckRegister", "Register"}, n.store.called())
	require.Empty(t, n.pb.leases.pending)

	// Nor one whose client has left before there was anything to write.
	ctx, leave := context.WithCancel(t.Context())
	n.store.intercept(func(inner context.Context, op string) error {
		if op == "Register" {
			leave()
			require.NoError(t, inner.Err(), "what has begun is done whole")
		}
		return nil
	})
	w.registerTo(ctx, answerWriter{httptest.NewRecorder(), func() error { t.Error("answered nobody"); return nil }})
	require.Equal(t, []string{"CheckRegister", "Register"}, n.store.called())
	require.Empty(t, n.pb.leases.pending)
}

func TestASessionIsActivatedAlsoWhenItsClientHangsUpAfterReading(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.worker()
	ctx, leave := context.WithCancel(t.Context())
	w.registerTo(ctx, answerWriter{httptest.NewRecorder(), func() error { leave(); return nil }})
	view, err := n.store.Candidates(t.Context(), "/a", "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)
}

func TestAReRegistrationKeepsTheDrainAndItsDeadline(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	require.Equal(t, http.StatusOK, n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": 600}).status)
	a := w.register()
	require.Equal(t, true, a.field(t, "draining"))
	left := a.field(t, "drainDeadline").(float64)
	require.Greater(t, left, 500.0)
	require.LessOrEqual(t, left, 600.0)

	// 0 once it has passed, but there.
	require.Equal(t, http.StatusOK, n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": 0}).status)
	require.InDelta(t, 0, w.register().field(t, "drainDeadline"), 0)
	require.Equal(t, http.StatusOK, n.post("/registry/drain", tokenOperator, fields{"clientId": w.client}).status)
	a = w.register()
	require.Equal(t, true, a.field(t, "draining"))
	require.Nil(t, a.field(t, "drainDeadline"))
	require.Equal(t, http.StatusOK, n.post("/registry/undrain", tokenOperator, fields{"clientId": w.client}).status)
	require.Equal(t, false, w.register().field(t, "draining"))
}

// openFlow opens a request to the session, as the data plane does.
func (n *regNode) openFlow(sessionID string) *flow {
	n.t.Helper()
	s, err := n.pb.leases.get(n.t.Context(), sessionID)
	require.NoError(n.t, err)
	f := n.pb.leases.opened(n.t.Context(), s)
	n.t.Cleanup(f.close)
	return f
}

func TestAReRegistrationCutsNothingAndIsKnownAtOnce(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, other := n.worker(), n.worker()
	w.register()
	other.register()
	first := w.session
	open, bystander := n.openFlow(first), n.openFlow(other.session)
	w.register()
	second := w.session
	require.NoError(t, open.Err())
	replaced, err := n.pb.leases.get(t.Context(), first)
	require.NoError(t, err)
	require.Zero(t, n.pb.leases.left(replaced), "no new request goes to the old session")

	// A late message about the old session does not cut the new one's clients.
	a := n.post("/registry/deregister", tokenWorker, fields{"sessionId": first})
	require.Equal(t, http.StatusOK, a.status)
	require.NoError(t, open.Err())
	require.NotNil(t, w.listed())
	// The end of the new one does, also those of the old.
	a = n.post("/registry/deregister", tokenWorker, fields{"sessionId": second})
	require.Equal(t, http.StatusOK, a.status)
	require.Eventually(t, func() bool { return open.Err() != nil }, patience, time.Millisecond)
	require.ErrorIs(t, open.cause(), errOwnerEnded)
	require.NoError(t, bystander.Err())
}

func TestANewSecretAfterTheOldSessionsEndCutsWhatIsOpenToTheOld(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{LeaseTTL: minLease})
	w := n.worker()
	w.register()
	open := n.openFlow(w.session)
	require.Eventually(t, func() bool {
		_, err := n.store.Session(t.Context(), w.session)
		return errors.Is(err, store.ErrNoSession)
	}, 5*time.Second, 10*time.Millisecond)
	w.secret = "planted-secret-new"
	w.register()
	require.ErrorIs(t, open.cause(), errOwnerEnded)
}

func TestInstancesAreSplitWithoutLoss(t *testing.T) {
	t.Parallel()
	rows, strangers := splitInstances(&wire.Register{
		Namespaces: []string{"/a", "/c"},
		Instances:  map[string][]string{"/a": {"2", "1", "2", "bad id"}, "/b": {"1"}, "/c": {"bad id"}},
	})
	require.Equal(t, map[string][]string{"/a": {"1", "2"}}, rows)
	slices.SortFunc(strangers, func(a, b wire.Ref) int { return strings.Compare(a.Namespace, b.Namespace) })
	require.Equal(t, []wire.Ref{{Namespace: "/a", ID: "bad id"}, {Namespace: "/b", ID: "1"}, {Namespace: "/c", ID: "bad id"}}, strangers)
}
