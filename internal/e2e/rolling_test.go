package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

const (
	callers = 40 // clients that get and post
	streams = 5  // clients with event streams, and as many with WebSockets
	ids     = 10 // what the callers share
	// calm is how many calls are answered between two restarts.
	calm = 300
	// thinkTime is what a caller lets pass between two calls.
	thinkTime = 20 * time.Millisecond
)

// Three Go workers are replaced one after the other under load, and no client
// notices but by streams that end and are opened again. It is the recipe of
// docs/deploying.md.
func TestARollingRestartOfTheWorkersIsUnnoticed(t *testing.T) {
	t.Parallel()
	for _, store := range []string{redis, memory} {
		for order, startFirst := range map[string]bool{"the new one first": true, "the old one first": false} {
			t.Run(store+", "+order, func(t *testing.T) {
				t.Parallel()
				f := emptyFleet(t, store)
				// Clients of many addresses, so that their ids are everywhere.
				f.settings = []string{"PINBOARD_PLACEMENT_HOLD_MS=10000", "PINBOARD_TRUSTED_PROXIES=127.0.0.1"}
				f.startNode(t)
				// Longer than a worker has a request wait for it.
				p := plan{kind: golang, drain: "5", closing: "1.5"}
				if startFirst {
					p.rate = "10" // as docs/deploying.md advises
				}
				old := f.startWorkers(t, p, p, p)
				l := f.startLoad(t)
				for _, w := range old {
					l.await(t, calm)
					if startFirst {
						f.startWorkers(t, p)
					}
					w.signal(t, syscall.SIGTERM)
					require.Zero(t, w.awaitEnd(t))
					if !startFirst {
						f.startWorkers(t, p)
					}
				}
				l.await(t, calm)
				l.end(t)
			})
		}
	}
}

// load is what many clients do to a fleet, and what they see.
type load struct {
	f       *fleet
	client  *caller
	stop    context.CancelFunc
	clients sync.WaitGroup

	calls   atomic.Int64 // that were answered
	reopens atomic.Int64 // of streams

	mu     sync.Mutex
	faults []string
	lives  map[life][]state // the answers to add, of each life
}

// life is one instance: no process has two of an id here.
type life struct {
	id  string
	pid int
}

func (f *fleet) startLoad(t *testing.T) *load {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: callers + 2*streams, DisableCompression: true}
	l := &load{f: f, client: &caller{http.Client{Transport: transport}}, lives: map[life][]state{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l.stop = sync.OnceFunc(func() {
		cancel()
		l.clients.Wait()
		transport.CloseIdleConnections()
	})
	t.Cleanup(l.stop)
	for i := range callers {
		l.clients.Go(func() { l.call(ctx, fmt.Sprintf("shared-%d", i%ids), i) })
	}
	for i := range streams {
		l.clients.Go(func() { l.listen(ctx, fmt.Sprintf("events-%d", i)) })
		l.clients.Go(func() { l.talk(ctx, fmt.Sprintf("socket-%d", i)) })
	}
	return l
}

// await waits until so many more calls were answered.
func (l *load) await(t *testing.T, calls int64) {
	t.Helper()
	goal := l.calls.Load() + calls
	awaitTrue(t, "the load goes on", func() bool { return l.calls.Load() >= goal })
}

// end stops the clients and checks what they have seen.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	t.Logf("%d calls, %d streams opened again, %d lives", l.calls.Load(), l.reopens.Load(), len(l.lives))
	require.Empty(t, l.faults)
	require.GreaterOrEqual(t, len(l.lives), 2*ids, "every id has moved")
	require.GreaterOrEqual(t, l.reopens.Load(), int64(2*streams), "and so has every stream's")
	epochs := map[string]map[int64]bool{}
	for of, states := range l.lives {
		seen := map[int]bool{}
		for _, s := range states {
			require.Equal(t, states[0].Epoch, s.Epoch, "%s in %d", of.id, of.pid)
			require.False(t, seen[s.Count], "%s counted %d twice", of.id, s.Count)
			seen[s.Count] = true
		}
		for count := range len(states) {
			require.True(t, seen[count+1], "%s in %d never answered %d of %d", of.id, of.pid, count+1, len(states))
		}
		if epochs[of.id] == nil {
			epochs[of.id] = map[int64]bool{}
		}
		require.False(t, epochs[of.id][states[0].Epoch], "%s lived twice in one placement", of.id)
		epochs[of.id][states[0].Epoch] = true
	}
}

// address is where the clients of an id say that they are.
func address(id string) string {
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("192.0.2.%d", sum[0])
}

func from(id string) callOption { return header("X-Forwarded-For", address(id)) }

func (l *load) fault(ctx context.Context, format string, args ...any) {
	if ctx.Err() != nil {
		return // the clients leave
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// call gets and posts in turn.
func (l *load) call(ctx context.Context, id string, number int) {
	tick := time.NewTicker(thinkTime)
	defer tick.Stop()
	for turn := number; ctx.Err() == nil; turn++ {
		// A call is not given up when the load ends: it would be counted, and
		// not seen.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), waitLimit)
		l.callOnce(bounded, id, turn)
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (l *load) callOnce(ctx context.Context, id string, turn int) {
	if turn%2 == 0 {
		a, err := l.client.try(ctx, http.MethodGet, room(l.f.url(), id, "state"), from(id))
		if err != nil || a.status != http.StatusOK {
			l.fault(context.Background(), "GET %s: %d %s %v", id, a.status, a.body, err)
		}
		l.calls.Add(1)
		return
	}
	body := bytes.Repeat([]byte("b"), turn%1000)
	a, err := l.client.try(ctx, http.MethodPost, room(l.f.url(), id, "add"), content(body), from(id))
	var s state
	if err == nil && a.status == http.StatusOK {
		err = json.Unmarshal(a.body, &s)
	}
	if err != nil || a.status != http.StatusOK {
		l.fault(context.Background(), "POST %s: %d %s %v", id, a.status, a.body, err)
	} else {
		l.mu.Lock()
		l.lives[life{id, s.PID}] = append(l.lives[life{id, s.PID}], s)
		l.mu.Unlock()
	}
	l.calls.Add(1)
}

// listen keeps an event stream open.
func (l *load) listen(ctx context.Context, id string) {
	for ; ctx.Err() == nil; l.reopens.Add(1) {
		a, err := l.client.try(ctx, http.MethodGet, room(l.f.url(), id, "events"), from(id)) // returns when it ends
		switch {
		case err != nil:
			l.fault(ctx, "events of %s: %v", id, err)
			return
		case a.status != http.StatusOK || !strings.HasPrefix(string(a.body), "data: 0\n"):
			l.fault(ctx, "events of %s: %d %s", id, a.status, a.body)
			return
		}
	}
}

// talk keeps a WebSocket open, and echoes one message on each.
func (l *load) talk(ctx context.Context, id string) {
	for ; ctx.Err() == nil; l.reopens.Add(1) {
		conn, res, err := websocket.Dial(ctx, room(l.f.url(), id, "socket"), &websocket.DialOptions{
			HTTPClient: &l.client.Client, HTTPHeader: http.Header{"X-Forwarded-For": {address(id)}},
		})
		if err != nil {
			text := ""
			if res != nil && res.Body != nil {
				body, _ := io.ReadAll(res.Body)
				text = string(body)
			}
			l.fault(ctx, "open a WebSocket to %s: %v %s", id, err, text)
			return
		}
		// An error from here on ends the stream, as a restart may.
		err = conn.Write(ctx, websocket.MessageText, []byte("hello"))
		for err == nil {
			_, _, err = conn.Read(ctx)
		}
		if errors.Is(err, syscall.ECONNRESET) {
			l.fault(ctx, "a WebSocket to %s was reset: %v", id, err)
		}
		_ = conn.CloseNow()
	}
}
