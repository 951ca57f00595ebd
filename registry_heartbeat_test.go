package pinboard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var errStoreTest = errors.New("the store is away, says the test")

func TestAHeartbeatRenewsAndReports(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	a := w.heartbeat(fields{"headroom": 7, "draining": true, "more": "ignored"})
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Greater(t, a.field(t, "expiresInMs"), 0.0)
	require.LessOrEqual(t, a.field(t, "expiresInMs"), 15_000.0)
	require.Equal(t, false, a.field(t, "draining"), "the operator's drain, not the worker's own flag sent back")
	for _, absent := range []string{"drainDeadline", "degraded", "messages"} {
		require.Nil(t, a.field(t, absent))
	}
	s, err := n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.InDelta(t, 7, s.Headroom, 0)
	require.True(t, s.Draining)
	require.EqualValues(t, 2, w.probes.Load())
	require.NotContains(t, n.store.called(), "SetDegraded", "nothing has changed")

	require.Equal(t, http.StatusOK, n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": 600}).status)
	a = w.heartbeat()
	require.Equal(t, true, a.field(t, "draining"))
	require.InDelta(t, 600, a.field(t, "drainDeadline"), 100)
}

// C54, and every other field that is wrong: the previous value and the lease
// are unharmed.
func TestAHeartbeatWithAWrongFieldIs400AndChangesNothing(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"headroom": 42})
	n.store.called()
	for _, c := range []struct {
		field string
		value any
	}{
		{"headroom", -1}, {"headroom", "12"}, {"headroom", nil}, {"headroom", missing}, {"headroom", []int{1}},
		{"sessionId", missing}, {"sessionId", 1}, {"sessionId", ""}, {"draining", missing}, {"draining", 0},
		{"challenge", missing}, {"challengeValue", nil}, {"acks", "m1"}, {"acks", []any{nil}}, {"acks", []int{1}},
	} {
		w.heartbeat(fields{c.field: c.value}).requireRefusal(t, http.StatusBadRequest, c.field)
	}
	n.post("/registry/heartbeat", tokenWorker, `{"sessionId":"`+w.session+`","headroom":1e400}`).
		requireRefusal(t, http.StatusBadRequest, "headroom")
	for _, number := range []string{
		"NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x10", "1_0", "1e999999999", "-1e-300", `"NaN"`, "true", "{}", `[1]`,
	} {
		n.post("/registry/heartbeat", tokenWorker, `{"sessionId":"`+w.session+`","draining":false,"challenge":"c","challengeValue":"v","headroom":`+number+`}`).
			requireRefusal(t, http.StatusBadRequest, "")
	}
	require.Empty(t, n.store.called())
	require.InDelta(t, 42, w.listed()["headroom"], 0)
	for _, fine := range []any{0, 1.5, 1e18, 1e308} {
		require.Equal(t, http.StatusOK, w.heartbeat(fields{"headroom": fine}).status)
		require.InDelta(t, fine, w.listed()["headroom"], 0)
	}
}

func TestAHeartbeatOfASessionThatIsOverTellsTheWorkerToReRegister(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		over := func(w *regWorker) {
			t.Helper()
			for range 2 { // it never comes back
				a := w.heartbeat()
				a.requireRefusal(t, http.StatusConflict, "session")
				require.Equal(t, true, a.field(t, "reregister"))
				require.Nil(t, a.field(t, "superseded"))
				require.Nil(t, w.listed())
			}
		}
		unknown := n.workerAt("http://127.0.0.1:1")
		unknown.session = "nobody's"
		over(unknown)
		lapsed := n.workerAt("http://127.0.0.1:2")
		lapsed.record("/a")
		time.Sleep(15*time.Second + time.Millisecond) // virtual time
		over(lapsed)
		gone := n.workerAt("http://127.0.0.1:3")
		gone.record("/a")
		require.Equal(t, http.StatusOK, n.post("/registry/deregister", tokenWorker, fields{"sessionId": gone.session}).status)
		over(gone)
		require.Zero(t, n.dials.Load(), "nobody is probed for a session that is over")
	})
}

func TestAHeartbeatInFlightDoesNotBringBackWhatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	// The worker deregisters while its beat's probe is under way, and the
	// probe fails.
	w.answers(func(rw http.ResponseWriter, _ *http.Request) {
		_, err := n.try(context.Background(), "POST", "/registry/deregister", tokenWorker, fields{"sessionId": w.session})
		if err != nil {
			t.Error(err)
		}
		rw.WriteHeader(http.StatusInternalServerError)
	})
	a := w.heartbeat()
	a.requireRefusal(t, http.StatusConflict, "session")
	require.Equal(t, true, a.field(t, "reregister"))
	require.Nil(t, w.listed())
}

func TestAFailedProbeDegradesUntilOnePasses(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	n.store.called()
	beat := func(degraded any, ops ...string) {
		t.Helper()
		a := w.heartbeat()
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.Equal(t, degraded, a.field(t, "degraded"))
		require.Greater(t, a.field(t, "expiresInMs"), 0.0)
		require.Equal(t, ops, n.store.called())
		require.Equal(t, degraded == true, w.listed()["degraded"])
		n.store.called()
	}
	// The session's record is read once, and what changes is told to the
	// store.
	beat(nil, "Session", "Heartbeat")
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusForbidden) })
	beat(true, "Heartbeat", "SetDegraded")
	beat(true, "Heartbeat")
	w.answers(nil)
	beat(nil, "Heartbeat", "SetDegraded")
	beat(nil, "Heartbeat")
	require.Equal(t, 1, strings.Count(n.said.String(), "worker degraded"))
	require.Equal(t, 1, strings.Count(n.said.String(), "worker no longer degraded"))
}

func TestARenewalStandsAlsoWhenTheProbesOutcomeCannotBeRecorded(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNotFound) })
	n.store.fail(errStoreTest, "SetDegraded")
	a := w.heartbeat()
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, true, a.field(t, "degraded"))
	require.Equal(t, false, w.listed()["degraded"])
	n.store.intercept(nil)
	w.heartbeat() // the next one tries again
	require.Equal(t, true, w.listed()["degraded"])
}

func TestAStoreThatFailsCostsNoWorkerItsSession(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w, other := n.worker(), n.worker()
	w.register()
	w.heartbeat() // this node knows the session
	other.record("/a")
	for _, op := range []string{"Session", "Heartbeat"} {
		n.store.fail(errStoreTest, op)
		a := other.heartbeat() // this node does not
		a.requireRefusal(t, http.StatusServiceUnavailable, "store")
		require.Nil(t, a.field(t, "reregister"))
	}
	a := w.heartbeat()
	a.requireRefusal(t, http.StatusServiceUnavailable, "store")
	require.Nil(t, a.field(t, "reregister"))
	n.store.intercept(nil)
	require.Equal(t, http.StatusOK, w.heartbeat().status)
	require.Equal(t, http.StatusOK, other.heartbeat().status)
}

func TestAHeartbeatIsAnsweredBeforeTheClientGivesUpWhateverHangs(t *testing.T) {
	t.Parallel()
	const clientTimeout = 5 * time.Second
	silent := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, ops := range [][]string{{"Session"}, {"Heartbeat"}, {"SetDegraded"}, {}} {
		synctest.Test(t, func(t *testing.T) {
			n := newRegNode(t, Options{}, silent)
			w := n.workerAt("http://127.0.0.1:1")
			w.record("/a")
			n.store.freeze(ops...)
			began := time.Now()
			a := w.heartbeat()
			took := time.Since(began)
			require.Less(t, took, clientTimeout, "%v", ops) // virtual time
			if len(ops) == 1 && ops[0] == "SetDegraded" {
				require.Equal(t, http.StatusOK, a.status, a.text)
				require.Equal(t, true, a.field(t, "degraded"))
				return
			}
			a.requireRefusal(t, http.StatusServiceUnavailable, "store")
			require.Equal(t, storeTimeout, took)
		})
	}
	// Slow all along, but not too slow: even the probe's outcome is recorded.
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, silent)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		n.store.intercept(func(_ context.Context, op string) error {
			if op == "Session" || op == "Heartbeat" {
				time.Sleep(storeTimeout - time.Millisecond) // virtual time
			}
			return nil
		})
		began := time.Now()
		a := w.heartbeat()
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.Equal(t, true, a.field(t, "degraded"))
		require.Equal(t, true, w.listed()["degraded"])
		require.Less(t, time.Since(began), clientTimeout)
	})
}

func TestASlowProbeDelaysNoOtherWorker(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	slow, quick := n.worker(), n.worker()
	slow.register()
	quick.register()
	hanging, goOn := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	slow.answers(func(rw http.ResponseWriter, _ *http.Request) {
		close(hanging)
		<-goOn
		rw.WriteHeader(http.StatusInternalServerError)
	})
	answer := make(chan regAnswer, 1)
	body := slow.beat()
	go func() {
		a, _ := n.try(t.Context(), "POST", "/registry/heartbeat", tokenWorker, body)
		answer <- a
	}()
	<-hanging
	require.Equal(t, http.StatusOK, quick.heartbeat().status)
	require.Equal(t, http.StatusOK, n.worker().register().status)
	require.Empty(t, answer, "the slow probe is still under way")
	release()
	a := <-answer
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, true, a.field(t, "degraded"))
}

// The client compares deadlines as points in time: what is left is told as of
// the answer, not as of the store's.
func TestWhatIsLeftOfADeadlineDoesNotJumpWithASlowProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		_, err := n.store.Drain(t.Context(), w.client, new(60*time.Second))
		require.NoError(t, err)
		n.reclaim(w, "/a", "x", "y")
		require.Equal(t, http.StatusOK, n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": "x", "deadline": 40}).status)
		require.Equal(t, http.StatusOK, n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": "y", "deadline": nil}).status)
		a := w.heartbeat() // its probe takes 2 s of virtual time
		require.InDelta(t, 58, a.field(t, "drainDeadline"), 0.01)
		require.InDelta(t, 15_000, a.field(t, "expiresInMs"), 0, "from when it was renewed")
		var beat wire.Beat
		a.into(t, &beat)
		require.Len(t, beat.Messages, 2)
		x, y := beat.Messages[0], beat.Messages[1]
		require.Equal(t, wire.Message{MsgID: x.MsgID, Type: "wind_down", Namespace: "/a", ID: "x", Deadline: x.Deadline}, x)
		require.InDelta(t, 38, *x.Deadline, 0.01)
		require.Equal(t, wire.Message{MsgID: y.MsgID, Type: "wind_down", Namespace: "/a", ID: "y"}, y)
		require.Contains(t, a.text, `"deadline":null`)

		// Delivered again until acked.
		a = w.heartbeat(fields{"acks": []string{x.MsgID}})
		a.into(t, &beat)
		require.Len(t, beat.Messages, 1)
		require.Equal(t, y, beat.Messages[0])
		a = w.heartbeat(fields{"acks": []string{y.MsgID}})
		require.Nil(t, a.field(t, "messages"))
	})
}

// reclaim gives ids to the worker's session, in a new session.
func (n *regNode) reclaim(w *regWorker, namespace string, ids ...string) {
	n.t.Helper()
	s, err := n.store.Session(context.Background(), w.session)
	require.NoError(n.t, err)
	w.session += "+"
	done, err := n.store.Register(context.Background(), store.Registration{
		SessionID: w.session, ClientID: w.client, Secret: s.Secret, Namespaces: s.Namespaces, AdvertiseURL: w.url,
		BackendHosts: s.BackendHosts, Instances: map[string][]string{namespace: ids},
	})
	require.NoError(n.t, err)
	require.Empty(n.t, done.Duplicates)
}

func TestAWorkersCallsNeedClaimsThatCoverItsSession(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"namespaces": []string{"/a", "/b"}})
	for path, body := range map[string]fields{
		"/registry/heartbeat":  w.beat(),
		"/registry/deregister": {"sessionId": w.session},
	} {
		n.store.called()
		n.post(path, tokenSome, body).requireRefusal(t, http.StatusForbidden, "/b")
		n.post(path, tokenBare, body).requireRefusal(t, http.StatusForbidden, "claims")
		require.NotContains(t, n.store.called(), "Heartbeat")
	}
	require.NotNil(t, w.listed())
	elsewhere := n.workerAt("http://localhost:1")
	elsewhere.record("/a")
	n.post("/registry/heartbeat", tokenHost, elsewhere.beat()).requireRefusal(t, http.StatusForbidden, "host")
}

func TestAWorkerThatHangsUpIsNotDegradedForIt(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	ctx, hangUp := context.WithCancel(t.Context())
	probed := make(chan struct{})
	w.answers(func(_ http.ResponseWriter, r *http.Request) {
		hangUp()
		<-r.Context().Done() // the probe is given up with the beat
		close(probed)
	})
	_, err := n.try(ctx, "POST", "/registry/heartbeat", tokenWorker, w.beat())
	require.ErrorIs(t, err, context.Canceled)
	<-probed
	w.answers(nil)
	require.Nil(t, w.heartbeat().field(t, "degraded"))
	require.NotContains(t, n.store.called(), "SetDegraded")
}

func TestThisNodeKnowsOfTheLeaseThatABeatHasWon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		s, err := n.pb.leases.get(t.Context(), w.session)
		require.NoError(t, err)
		time.Sleep(10 * time.Second) // virtual time
		require.Equal(t, 5*time.Second, n.pb.leases.left(s))
		require.Equal(t, http.StatusOK, w.heartbeat().status)
		require.Greater(t, n.pb.leases.left(s), 10*time.Second)
	})
}
