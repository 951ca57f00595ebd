package pinboard

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestASessionsRecordIsReadOnce(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/a")
	n.store.called()
	for range 3 {
		s, err := n.pb.leases.get(t.Context(), w.session)
		require.NoError(t, err)
		require.Equal(t, w.client, s.ClientID)
	}
	require.Equal(t, []string{"Session"}, n.store.called())
	_, err := n.pb.leases.get(t.Context(), "unknown")
	require.ErrorIs(t, err, store.ErrNoSession)
	n.store.fail(errStoreTest, "Session")
	_, err = n.pb.leases.get(t.Context(), "another")
	require.ErrorIs(t, err, errStoreTest)
}

func TestASessionsRecordThatTheStoreWithholdsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.store.freeze("Session")
		began := time.Now()
		_, err := n.pb.leases.get(t.Context(), "s")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, storeTimeout, time.Since(began)) // virtual time
	})
}

func TestSimultaneousReadersOfARecordShareOneLease(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/a")
	found := make([]*lease, 16)
	var readers sync.WaitGroup
	for i := range found {
		readers.Go(func() {
			s, err := n.pb.leases.get(t.Context(), w.session)
			if err != nil {
				t.Error(err)
			}
			found[i] = s
		})
	}
	readers.Wait()
	for _, s := range found {
		require.Same(t, found[0], s)
	}
}

func TestWhatANodeKnowsOfALeaseOnlyGrowsAndIsOverAtItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		time.Sleep(time.Second) // virtual time
		l := n.pb.leases
		s, err := l.get(t.Context(), w.session)
		require.NoError(t, err)
		require.Equal(t, 14*time.Second, l.left(s))
		l.extend(s, time.Now().Add(-10*time.Second), 15*time.Second) // a late answer
		require.Equal(t, 14*time.Second, l.left(s))
		l.extend(s, time.Now(), 15*time.Second)
		require.Equal(t, 15*time.Second, l.left(s))
		time.Sleep(15 * time.Second)
		require.LessOrEqual(t, l.left(s), time.Duration(0))
		l.extend(s, time.Now(), time.Second)
		require.Positive(t, l.left(s))
		l.end(w.session)
		require.Zero(t, l.left(s))
		_, err = l.get(t.Context(), w.session)
		require.ErrorIs(t, err, store.ErrNoSession)
	})
}

func TestTheEndOfASessionCutsItsFlowsAndNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w, other := n.workerAt("http://127.0.0.1:1"), n.workerAt("http://127.0.0.1:2")
		w.record("/a")
		other.record("/a")
		one, two, theirs := n.openFlow(w.session), n.openFlow(w.session), n.openFlow(other.session)
		n.pb.leases.end("unknown")
		require.NoError(t, one.Err())
		s := n.pb.leases.byID[w.session]
		n.pb.leases.end(w.session)
		require.Zero(t, n.pb.leases.left(s))
		time.Sleep(endGrace - time.Nanosecond)
		synctest.Wait()
		require.NoError(t, one.Err(), "its answer may be on its way")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, errOwnerEnded, one.cause())
		require.Equal(t, errOwnerEnded, two.cause())
		require.NoError(t, theirs.Err())
		// What is opened just after is cut at once.
		late := n.pb.leases.opened(t.Context(), s)
		defer late.close()
		require.Equal(t, errOwnerEnded, late.cause())
	})
}

// A session that ended because its lease did may be a frozen worker's.
func TestPastItsLeaseASessionsFlowsAreCutAtOnce(t *testing.T) {
	t.Parallel()
	for past, cut := range map[time.Duration]time.Duration{0: 0, -endGrace / 2: endGrace / 2} {
		synctest.Test(t, func(t *testing.T) {
			n := newRegNode(t, Options{}, nil)
			w := n.workerAt("http://127.0.0.1:1")
			w.record("/a")
			open := n.openFlow(w.session)
			time.Sleep(n.pb.opts.LeaseTTL + past)
			n.pb.leases.end(w.session)
			if cut > 0 {
				require.NoError(t, open.Err())
				time.Sleep(cut)
				synctest.Wait()
			}
			require.Equal(t, errOwnerEnded, open.cause())
		})
	}
}

func TestAFlowThatIsDoneIsForgotten(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/a")
	s, err := n.pb.leases.get(t.Context(), w.session)
	require.NoError(t, err)
	client, leave := context.WithCancel(t.Context())
	flow := n.pb.leases.opened(client, s)
	require.Equal(t, 1, s.flows.count)
	leave()
	require.Equal(t, context.Canceled, flow.cause(), "the client's leaving reaches the worker's request")
	flow.close()
	require.Zero(t, s.flows)
}

func TestASuccessorTakesOverTheFlowsAndTheirEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w, other := n.workerAt("http://127.0.0.1:1"), n.workerAt("http://127.0.0.1:2")
		w.record("/a")
		other.record("/a")
		open, theirs := n.openFlow(w.session), n.openFlow(other.session)
		l := n.pb.leases
		l.succeed(w.client, wire.NewSecret(w.secret), "second")
		l.succeed(w.client, wire.NewSecret(w.secret), "third")
		require.NoError(t, open.Err())
		require.Zero(t, l.left(l.byID[w.session]))
		require.Positive(t, l.left(l.byID[other.session]))
		l.end(w.session)
		l.end("second")
		require.NoError(t, open.Err())
		l.end("third")
		time.Sleep(endGrace)
		synctest.Wait()
		require.Equal(t, errOwnerEnded, open.cause())
		require.NoError(t, theirs.Err())
	})
}

func TestShutdownEndsStreamsInOrderAndThenCutsTheRest(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	w := n.workerAt("http://127.0.0.1:1")
	w.record("/a")
	l := n.pb.leases
	s, err := l.get(t.Context(), w.session)
	require.NoError(t, err)
	ended := 0
	stream := l.opened(t.Context(), s)
	l.stream(stream, func() {
		l.extend(s, time.Now(), time.Second) // may use the leases itself
		ended++
	})
	defer stream.close()
	plain := n.openFlow(w.session)
	l.endStreams()
	require.Equal(t, 1, ended)
	require.NoError(t, stream.Err(), "it ends by itself")
	require.NoError(t, plain.Err(), "a plain request runs to its end")
	// One that becomes a stream only now ends at once.
	late := l.opened(t.Context(), s)
	defer late.close()
	l.stream(late, func() { ended++ })
	require.Equal(t, 2, ended)

	l.cutAll()
	require.Equal(t, errNodeStops, stream.cause())
	require.Equal(t, errNodeStops, plain.cause())
	require.Equal(t, errNodeStops, n.openFlow(w.session).cause())
	require.Positive(t, l.left(s), "the directory keeps the session")
}

func TestRequestsWaitForARegistrationThatIsBeingAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		l := n.pb.leases
		require.False(t, l.awaitActivation(t.Context(), "/a"), "there is none")
		first, second := l.activating([]string{"/a", "/b"}), l.activating([]string{"/a"})
		require.False(t, l.awaitActivation(t.Context(), "/c"))
		waited := make(chan bool, 1)
		go func() { waited <- l.awaitActivation(t.Context(), "/a") }()
		first()
		require.False(t, l.awaitActivation(t.Context(), "/b"))
		synctest.Wait()
		require.Empty(t, waited, "another one is under way")
		second()
		require.True(t, <-waited)
		require.Empty(t, l.pending)

		// Not for ever.
		stuck := l.activating([]string{"/a"})
		began := time.Now()
		require.False(t, l.awaitActivation(t.Context(), "/a"))
		require.Equal(t, storeTimeout, time.Since(began)) // virtual time
		left, leave := context.WithCancel(t.Context())
		leave()
		require.False(t, l.awaitActivation(left, "/a"))
		stuck()
	})
}

func (l *leases) opened(client context.Context, s *lease) *flow {
	f := &flow{}
	l.open(client, f, s)
	return f
}
