package worker

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// greets echoes what comes over a WebSocket, after a greeting of its own.
func greets(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	message := []byte("welcome")
	for kind := websocket.MessageText; conn.Write(r.Context(), kind, message) == nil; {
		if kind, message, err = conn.Read(r.Context()); err != nil {
			return
		}
	}
}

func TestAWebSocketCarriesBothWays(t *testing.T) {
	t.Parallel()
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/socket" {
			greets(w, r)
		}
	}, greets, func(t *testing.T, c *cluster) {
		a := c.open("a")
		for _, path := range []string{"/c/a/socket", "/c/else/socket"} {
			conn, _, err := websocket.Dial(t.Context(), ClusterURL+path, &websocket.DialOptions{HTTPClient: a.Client()})
			require.NoError(t, err)
			for _, got := range []string{"welcome", "one", "two"} {
				_, message, err := conn.Read(t.Context())
				require.NoError(t, err)
				require.Equal(t, got, string(message))
				next := map[string]string{"welcome": "one", "one": "two", "two": "three"}[got]
				require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(next)))
			}
			require.NoError(t, conn.Close(websocket.StatusNormalClosure, ""))
		}
		require.Len(t, c.seen(), 1)
		synctest.Wait()
		require.Zero(t, c.w.Stats().Instances[0].Connections)
	})
}

// Over a real network it is no matter who writes first.
func TestBothSidesOfAWebSocketMayWriteFirst(t *testing.T) {
	t.Parallel()
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/socket" {
			greets(w, r)
		}
	}, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		conn, _, err := websocket.Dial(t.Context(), ClusterURL+"/c/a/socket", &websocket.DialOptions{HTTPClient: a.Client()})
		require.NoError(t, err)
		synctest.Wait() // the other side's greeting is under way
		require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte("hello")))
		for _, want := range []string{"welcome", "hello"} {
			_, message, err := conn.Read(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, string(message))
		}
		require.NoError(t, conn.CloseNow())
	})
}

func TestAStreamFlowsWhileItIsWrittenAndEndsWithItsReader(t *testing.T) {
	t.Parallel()
	turns := make(chan string)
	left := make(chan struct{})
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			return
		}
		for {
			select {
			case line := <-turns:
				_, _ = io.WriteString(w, line)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				close(left)
				return
			}
		}
	}, nil, func(t *testing.T, c *cluster) {
		turns, left = make(chan string), make(chan struct{})
		a := c.open("a")
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/c/a/stream", nil)
		require.NoError(t, err)
		go func() { turns <- "first\n" }()
		res, err := a.Client().Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		lines := bufio.NewReader(res.Body)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "first\n", line)
		c.after(time.Hour)
		require.True(t, c.live("/c", "a"), "an open stream holds it")
		turns <- "second\n"
		line, err = lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "second\n", line)
		cancel()
		<-left
		_, err = lines.ReadString('\n')
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A call of an application that does not obey its context must not keep the
// worker from shutting down.
func TestCallsEndWithTheWorker(t *testing.T) {
	t.Parallel()
	inCluster(t, func(_ *Instance, _ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			<-r.Context().Done()
		}
	}, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		done := make(chan struct{})
		go func() {
			defer close(done)
			// The server waits a moment with a connection of which it leaves so much.
			if res, err := a.Client().Post("/c/b/forever", "", strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
				_ = res.Body.Close()
			}
		}()
		synctest.Wait()
		require.NoError(t, c.w.Shutdown(t.Context()))
		<-done
		_, err := a.Client().Get("/c/b")
		require.ErrorIs(t, err, ErrReleased)
	})
}
