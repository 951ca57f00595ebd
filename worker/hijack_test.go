package worker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// hijacker is a constructor whose handlers take the connection over.
func hijacker(events *record) Constructor {
	return serving(func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			events.add("hijack: %v", err)
			return
		}
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_ = rw.Flush()
		finish := func() {
			<-inst.Context().Done()
			if r.URL.Path == "/hasty" {
				events.add("closed early: %v", conn.Close())
				_, err := conn.Write([]byte("x"))
				events.add("write fails: %v", err != nil)
			}
		}
		if r.URL.Path == "/returns" {
			return // and leaves the connection open
		}
		finish()
	})
}

// upgraded opens a connection as a proxy would, and returns its raw side.
func (h *harness) upgraded(l *pipeListener, path string) net.Conn {
	h.t.Helper()
	conn, err := l.dial(h.t.Context(), "", "")
	require.NoError(h.t, err)
	r := h.outgoing(h.t.Context(), path)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	require.NoError(h.t, r.Write(conn))
	res, err := http.ReadResponse(bufio.NewReader(conn), r)
	require.NoError(h.t, err)
	require.Equal(h.t, http.StatusSwitchingProtocols, res.StatusCode)
	return conn
}

func TestAHijackedConnectionEndsAfterTheRelease(t *testing.T) {
	t.Parallel()
	for path, grace := range map[string]time.Duration{
		"/hasty":   0,           // closed by its handler, too early
		"/waits":   time.Second, // left by its handler, which returns at the end of the instance
		"/returns": time.Second, // left by its handler, which returned long before
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			var events record
			inBubble(t, Options{}, hosting(hijacker(&events)), func(t *testing.T, h *harness) {
				h.start()
				l := newPipeListener()
				server := &http.Server{Handler: h.w}
				go func() { _ = server.Serve(l) }()
				defer server.Close()
				conn := h.upgraded(l, "/c/1"+path)
				h.after(time.Hour)
				require.True(t, h.live("/c", "1"), "an open connection holds it")
				require.Equal(t, 1, h.w.Stats().Instances[0].Connections)
				h.noteReleases(&events, 2*time.Second)
				closed := make(chan time.Duration, 1)
				began := h.since()
				go func() {
					_, _ = io.Copy(io.Discard, conn)
					closed <- h.since() - began
				}()
				h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
				require.Equal(t, 2*time.Second+grace, <-closed)
				synctest.Wait()
				require.False(t, h.live("/c", "1"))
				if path == "/hasty" {
					require.Contains(t, events.all(), "closed early: <nil>")
					require.Contains(t, events.all(), "write fails: true")
				}
			})
		})
	}
}

// What was released is not ours to claim, although its streams may still end.
func TestARegistrationDoesNotClaimWhatWasReleased(t *testing.T) {
	t.Parallel()
	var events record
	inBubble(t, Options{}, hosting(hijacker(&events)), func(t *testing.T, h *harness) {
		h.start()
		l := newPipeListener()
		server := &http.Server{Handler: h.w}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		defer h.upgraded(l, "/c/1/returns").Close()
		h.after(2500 * time.Millisecond)
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		h.pb.answer(wire.PathHeartbeat, reply{status: 409, body: object{"reregister": true}})
		h.after(900 * time.Millisecond)
		require.Len(t, h.pb.to(wire.PathRelease), 1)
		require.True(t, h.live("/c", "1"), "its connection has a second to end")
		require.Len(t, h.pb.to(wire.PathRegister), 2)
		require.NotContains(t, h.pb.last(t, wire.PathRegister).body, "instances")
	})
}

func TestAClosedConnectionNoLongerHoldsItsInstance(t *testing.T) {
	t.Parallel()
	var events record
	var conn net.Conn
	host := serving(func(_ *Instance, w http.ResponseWriter, _ *http.Request) {
		var rw *bufio.ReadWriter
		conn, rw, _ = http.NewResponseController(w).Hijack()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_ = rw.Flush()
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		l := newPipeListener()
		server := &http.Server{Handler: h.w}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		defer h.upgraded(l, "/c/1").Close()
		h.after(time.Hour)
		require.Equal(t, 1, h.w.Stats().Instances[0].Connections)
		require.NoError(t, conn.Close())
		require.NoError(t, conn.Close(), "twice is fine")
		require.Zero(t, h.w.Stats().Instances[0].Connections)
		h.after(299 * time.Second)
		require.True(t, h.live("/c", "1"))
		h.after(time.Second)
		require.False(t, h.live("/c", "1"))
		require.Empty(t, events.all())
	})
}

func TestAHijackPastTheLeaseIsRefused(t *testing.T) {
	t.Parallel()
	var events record
	var gate chan struct{}
	inner := hijacker(&events)
	host := func(inst *Instance) (http.Handler, error) {
		handler, err := inner(inst)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-gate; handler.ServeHTTP(w, r) }), err
	}
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		gate = make(chan struct{})
		h.start()
		client := h.network()
		go func() { <-time.After(time.Second); h.wallStep.Add(int64(time.Hour)); close(gate) }()
		res, err := client.Do(h.outgoing(t.Context(), "/c/1"))
		require.NoError(t, err)
		defer res.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
		require.Equal(t, []string{"hijack: " + errLate.Error()}, events.all())
	})
}

func TestAWebSocketOfAnotherLibraryEndsWithItsInstance(t *testing.T) {
	t.Parallel()
	var events record
	host := serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			events.add("accept: %v", err)
			return
		}
		defer c.CloseNow()
		for {
			kind, text, err := c.Read(r.Context())
			if err != nil {
				events.add("handler ended: %v", context.Cause(r.Context()))
				return
			}
			_ = c.Write(r.Context(), kind, text)
		}
	})
	inBubble(t, Options{}, hosting(host), func(t *testing.T, h *harness) {
		h.start()
		client := h.network()
		c, _, err := websocket.Dial(t.Context(), "http://worker:8000/c/1", &websocket.DialOptions{
			HTTPClient: client, HTTPHeader: h.outgoing(t.Context(), "/").Header,
		})
		require.NoError(t, err)
		defer c.CloseNow()
		require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte("hello")))
		_, text, err := c.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
		h.noteReleases(&events, time.Second)
		began := h.since()
		h.w.dir.abort(key{"/c", "1"}, errOwnAbort)
		_, _, err = c.Read(t.Context())
		require.Error(t, err)
		require.Equal(t, time.Second, h.since()-began, "not before the release")
		synctest.Wait()
		require.Equal(t, []string{"release sent", "release answered", "handler ended: worker: instance aborted: by itself"}, events.all())
	})
}
