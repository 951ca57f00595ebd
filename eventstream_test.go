package pinboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// watching is one watcher of events, in a bubble.
type watching struct {
	t      *testing.T
	mu     sync.Mutex
	head   http.Header
	status int
	said   bytes.Buffer
	stop   context.CancelFunc
	done   chan struct{}
}

func (w *watching) Header() http.Header    { return w.head }
func (w *watching) WriteHeader(status int) { w.status = status }
func (w *watching) Flush()                 {}
func (w *watching) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.said.Write(p)
}

// take returns what was said since the last time.
func (w *watching) take() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.said.String()
	w.said.Reset()
	return text
}

func (n *regNode) watch(t *testing.T, token, query, last string) *watching {
	ctx, stop := context.WithCancel(t.Context())
	w := &watching{t: t, head: http.Header{}, stop: stop, done: make(chan struct{})}
	r := httptest.NewRequest(http.MethodGet, "/registry/events"+query, nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "text/event-stream")
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	go func() {
		defer close(w.done)
		n.pb.ServeHTTP(w, r)
	}()
	synctest.Wait()
	return w
}

// dataOf returns the events of a part of a stream.
func dataOf(t *testing.T, text string) (events []seenEvent) {
	t.Helper()
	id := ""
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "data":
			var e seenEvent
			require.NoError(t, json.Unmarshal([]byte(value), &e))
			require.Equal(t, id, strconv.FormatInt(e.Event, 10))
			events = append(events, e)
		}
	}
	return events
}

func drainedEvent(client string, namespaces ...string) store.Event {
	return store.Event{Kind: store.EventDrained, Namespaces: namespaces, ClientID: client}
}

func TestEventsAreStreamedAsTheyHappenAndResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.told(drainedEvent("before", "/a"))
		w, viewer := n.watch(t, tokenOperator, "", ""), n.watch(t, tokenViewer, "?clientId=mine", "")
		require.Equal(t, http.StatusOK, w.status)
		require.Equal(t, "text/event-stream", w.head.Get("Content-Type"))
		require.Equal(t, "no-store", w.head.Get("Cache-Control"))
		require.Equal(t, "retry: 2000\n\n", w.take(), "only what is new")
		n.told(drainedEvent("one", "/a"), drainedEvent("two", "/b"), drainedEvent("mine", "/a", "/b"), drainedEvent("mine", "/b"))
		time.Sleep(eventsEvery) // virtual time
		seen := dataOf(t, w.take())
		require.Len(t, seen, 4)
		require.Equal(t, "one", seen[0].ClientID)
		mine := dataOf(t, viewer.take())
		require.Len(t, mine, 1)
		require.Equal(t, []string{"/a"}, mine[0].Namespaces)
		w.stop()
		<-w.done
		n.told(drainedEvent("missed", "/a"))
		again := n.watch(t, tokenOperator, "", strconv.FormatInt(seen[1].Event, 10))
		resumed := dataOf(t, again.take())
		require.Len(t, resumed, 3)
		require.Equal(t, "missed", resumed[2].ClientID)
		// More than fits into one look.
		var many []store.Event
		for i := range 3000 {
			many = append(many, drainedEvent(strconv.Itoa(i), "/a"))
		}
		n.told(many...)
		time.Sleep(10 * eventsEvery) // virtual time
		seen = dataOf(t, again.take())
		require.Len(t, seen, len(many))
		for i, e := range seen {
			require.Equal(t, strconv.Itoa(i), e.ClientID)
		}
		again.stop()
		viewer.stop()
	})
}

func TestAQuietStreamOfEventsHasCommentsAndEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.watch(t, tokenOperator, "", "")
		w.take()
		time.Sleep(eventsQuiet - eventsEvery) // virtual time
		require.Empty(t, w.take())
		time.Sleep(2 * eventsEvery)
		require.Equal(t, ":\n\n", w.take())
		time.Sleep(eventsQuiet)
		require.Equal(t, ":\n\n", w.take())
		// A store that is away for a while is waited for.
		n.store.fail(errStoreTest, "Events")
		time.Sleep(5 * eventsEvery)
		n.store.fail(nil)
		n.told(drainedEvent("one", "/a"))
		time.Sleep(2 * eventsEvery)
		require.Len(t, dataOf(t, w.take()), 1)
		time.Sleep(watchTime)
		synctest.Wait()
		select {
		case <-w.done:
		default:
			require.Fail(t, "the stream goes on for ever")
		}
	})
}

func TestWatchersOfEventsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		var open []*watching
		for range maxWatchers / 2 {
			open = append(open, n.watch(t, tokenOperator, "", ""))
		}
		one := n.watch(t, tokenOperator, "", "")
		<-one.done
		require.Equal(t, http.StatusServiceUnavailable, one.status)
		require.NotEmpty(t, one.head.Get("Retry-After"))
		viewer := n.watch(t, tokenViewer, "", "") // another credential's share
		require.Equal(t, http.StatusOK, viewer.status)
		open[0].stop()
		<-open[0].done
		open[0] = n.watch(t, tokenOperator, "", "")
		require.Equal(t, http.StatusOK, open[0].status)
		// The node ends them when it shuts down.
		require.NoError(t, n.pb.Shutdown(context.Background()))
		for _, w := range append(open, viewer) {
			<-w.done
		}
	})
}

func TestAStreamOfEventsIsRefusedAsAPageIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		for _, tc := range []struct {
			token, query, last string
			status             int
		}{
			{tokenOperator, "", "x", http.StatusBadRequest},
			{tokenOperator, "", "0", http.StatusBadRequest},
			{tokenOperator, "?namespace=a", "", http.StatusBadRequest},
			{tokenViewer, "?namespace=/b", "", http.StatusNotFound},
			{tokenWorker, "", "", http.StatusForbidden},
			{tokenUnknown, "", "", http.StatusUnauthorized},
		} {
			w := n.watch(t, tc.token, tc.query, tc.last)
			<-w.done
			require.Equal(t, tc.status, w.status, tc)
		}
		n.store.fail(errStoreTest, "Events")
		w := n.watch(t, tokenOperator, "", "")
		<-w.done
		require.Equal(t, http.StatusServiceUnavailable, w.status)
	})
}

// Through a real server, whose own limit of writing is shorter than the stream.
func TestAStreamOfEventsOutlivesTheHostsWriteTimeout(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	server := httptest.NewUnstartedServer(n.pb)
	server.Config.WriteTimeout = 300 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/registry/events", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+tokenOperator)
	r.Header.Set("Accept", "text/event-stream")
	res, err := server.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewReader(res.Body)
	for i := range 2 {
		n.told(drainedEvent(strconv.Itoa(i), "/a"))
		for {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			if strings.HasPrefix(line, "data: ") {
				require.Contains(t, line, fmt.Sprintf(`"clientId":"%d"`, i))
				break
			}
		}
	}
	require.NoError(t, n.pb.Close())
	_, err = io.Copy(io.Discard, lines)
	require.NoError(t, err, "ends in an orderly way")
}
