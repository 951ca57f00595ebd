package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/cli"
)

// following is an "events -f" that runs.
type following struct {
	t      *testing.T
	stop   context.CancelFunc
	status chan int
	mu     sync.Mutex
	out    bytes.Buffer
	errs   bytes.Buffer
}

type half struct {
	f  *following
	to *bytes.Buffer
}

func (h half) Write(p []byte) (int, error) {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	return h.to.Write(p)
}

func (s *site) follow(args ...string) *following {
	ctx, stop := context.WithCancel(s.t.Context())
	f := &following{t: s.t, stop: stop, status: make(chan int, 1)}
	go func() {
		f.status <- cli.Run(ctx, append([]string{"events", "-f"}, args...), s.lookup, half{f, &f.out}, half{f, &f.errs})
	}()
	return f
}

func (f *following) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

func (f *following) await(text string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return strings.Contains(f.said(), text) }, time.Minute, 5*time.Millisecond, text)
}

func (f *following) end() {
	f.t.Helper()
	f.stop()
	require.Equal(f.t, cli.OK, <-f.status)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestEventsAreFollowedAsTheyHappen(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.follow()
	s.worker("one", "x")
	first.await("registered")
	lines := s.follow("-o", "json", "-n", "/a")
	lines.await(`"kind":"registered"`)
	s.good("drain", "one")
	first.await("drained")
	lines.await(`"kind":"drained"`)
	lines.end()
	first.end()
	for line := range strings.Lines(lines.said()) {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e), "a line is an event")
	}
	require.Equal(t, 2, strings.Count(lines.said(), "\n"))
	require.Regexp(t, `^\S+Z  registered    /a /b  one  detail=http://\S+\n\S+Z  drained       /a /b  one  by=operator\n$`, first.said())
	require.NotContains(t, first.said()+lines.said()+first.errs.String(), "planted-token")
}

// A stream that breaks off is taken up behind the last event.
func TestFollowingGoesOnAfterTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var mu sync.Mutex
	var lasts []string
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "text/event-stream" {
			_, _ = io.WriteString(w, `{"events":[{"event":7,"at":0,"kind":"past"}]}`)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		lasts = append(lasts, r.Header.Get("Last-Event-ID"))
		if len(lasts) == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error":"\u001b[2J not now"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "retry: 2000\n\n:\n\nid: %d\ndata: {\"event\":%d,\"kind\":\"now%d\"}\n\n", 7+len(lasts), 7+len(lasts), len(lasts))
	}))
	t.Cleanup(fake.Close)
	s.env["PINBOARD_URL"] = fake.URL
	f := s.follow()
	f.await("now3")
	f.end()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"7", "8", "8"}, lasts[:3])
	require.Contains(t, f.errs.String(), "broke off, trying again")
	require.NotContains(t, f.errs.String(), "\x1b")
}

func TestFollowingEndsWhereItCanNotGoOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"error":"no more"}`)
			return
		}
		_, _ = io.WriteString(w, `{"events":[]}`)
	}))
	t.Cleanup(fake.Close)
	s.env["PINBOARD_URL"] = fake.URL
	status, _, errs := s.run("events", "-f")
	require.Equal(t, cli.Denied, status)
	require.Contains(t, errs, "no more")
}
