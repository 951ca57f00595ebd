package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// answers collects what became of requests that a worker was sent, some of them
// past pinboard, so that nobody but the worker itself can have refused them.
type answers struct {
	client caller
	open   sync.WaitGroup

	mu   sync.Mutex
	list []outcome
}

type outcome struct {
	what string
	answer
	err error
}

// ask sends a request and does not wait for its answer.
func (a *answers) ask(t *testing.T, what, method, url string, opts ...callOption) {
	t.Helper()
	a.open.Go(func() {
		got, err := a.client.try(t.Context(), method, url, opts...)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.list = append(a.list, outcome{what, got, err})
	})
}

// attested makes a request to the worker one that pinboard has routed to it.
func (w *worker) attested(t *testing.T, epoch int64) callOption {
	t.Helper()
	listed, ok := w.listed(t)
	require.True(t, ok)
	token, err := attest.Mint(wire.NewSecret(w.secret), attest.Claims{Audience: listed.SessionID}, time.Now())
	require.NoError(t, err)
	return func(r *http.Request) {
		r.Header.Set(wire.HeaderAttestation, token)
		r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(epoch, 10))
	}
}

// TestAThawedWorkerAnswersNothing freezes a Go worker for longer than its lease
// while requests are in its handlers, in a constructor, in open streams, and on
// the way to it. All of them go on at once when it thaws, and not one is
// answered: the ids live elsewhere.
func TestAThawedWorkerAnswersNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t, memory)
	gate := filepath.Join(t.TempDir(), "gate")
	ws := f.startWorkers(t, plan{kind: golang, gate: gate}, plan{kind: golang, headroom: 1})
	subject, other := ws[0], ws[1]
	before := f.add(t, "room")
	f.requirePlaced(t, before, subject)
	stream, socket := f.openEvents(t, "room"), f.openSocket(t, "room")
	stream.requireNext(t, "0")
	echo(t, socket, websocket.MessageText, []byte("open"))

	got := &answers{client: caller{http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}}
	direct := subject.attested(t, before.Epoch)
	got.ask(t, "in a handler", http.MethodPost, room(subject.url, "room", "linger"), direct)
	got.ask(t, "answered in part", http.MethodPost, room(subject.url, "room", "linger?begun"), direct)
	got.ask(t, "in a handler, through pinboard", http.MethodPost, room(f.url(), "room", "linger"))
	got.ask(t, "in a constructor, through pinboard", http.MethodPost, room(f.url(), "slow", "add"))
	awaitTrue(t, "they are where they wait", func() bool {
		return len(subject.told("linger", "room")) == 3 && len(subject.told("open", "slow")) == 1
	})
	slow, ok := f.placement(t, "slow")
	require.True(t, ok)
	require.Equal(t, subject.clientID, slow.ClientID)
	got.ask(t, "at a constructor", http.MethodPost, room(subject.url, "slow", "add"), subject.attested(t, slow.Epoch))
	f.favour(t, other)

	direct = subject.attested(t, before.Epoch)
	subject.signal(t, freezes)
	for range 10 {
		got.ask(t, "on the way", http.MethodPost, room(subject.url, "room", "add"), direct)
	}
	after := map[string]state{}
	for _, id := range []string{"room", "slow"} {
		after[id] = await(t, id+" is served again", func() (state, bool) { return f.addUnlessFrozen(t, id, subject) })
		require.Equal(t, 1, after[id].Count)
		f.requirePlaced(t, after[id], other)
	}
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	subject.signal(t, thaws)

	got.open.Wait()
	require.Len(t, got.list, 15)
	for _, o := range got.list {
		switch o.what {
		case "answered in part":
			require.Error(t, o.err, "%s: %d %s", o.what, o.status, o.body)
		case "on the way", "at a constructor":
			require.NoError(t, o.err, o.what)
			require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusForbidden}, o.status, "%s: %s", o.what, o.body)
		case "in a handler":
			require.NoError(t, o.err, o.what)
			require.Equal(t, http.StatusServiceUnavailable, o.status, "%s: %s", o.what, o.body)
		default: // pinboard cut them
			require.False(t, o.err == nil && o.status == http.StatusOK, "%s: %s", o.what, o.body)
		}
	}
	require.Len(t, subject.told("answer", "room"), 3, "its handlers did go on")
	require.Error(t, stream.awaitEnd(t), "an event stream that was cut must not look whole")
	require.Error(t, awaitClosed(t, socket))
	subject.awaitTold(t, "close", "room")
	require.Len(t, subject.told("add", "room"), before.Count, "it served a request for an id that was no longer its own")
	require.Empty(t, subject.told("add", "slow"))
	for id, was := range after {
		still := f.add(t, id)
		require.Equal(t, 2, still.Count)
		require.Equal(t, was.Epoch, still.Epoch)
	}
}
