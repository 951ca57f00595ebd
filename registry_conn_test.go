package pinboard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipeConn is a client's connection to a node's server, in virtual time.
type pipeConn struct {
	net.Conn
	t       *testing.T
	answers *bufio.Reader
}

// inServedBubble runs f in virtual time, with a connection to a server of the
// node. Workers' answers come at once.
func inServedBubble(t *testing.T, f func(t *testing.T, n *regNode, w *regWorker, conn pipeConn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		workers := newPipeListener()
		n := newRegNode(t, Options{}, func(ctx context.Context, _, _ string) (net.Conn, error) { return workers.dial(ctx) })
		w := n.workerAt("http://127.0.0.1:1")
		clients := newPipeListener()
		for listener, handler := range map[*pipeListener]http.Handler{workers: w, clients: n.pb} {
			server := &http.Server{Handler: handler}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
		}
		conn, err := clients.dial(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		f(t, n, w, pipeConn{conn, t, bufio.NewReader(conn)})
	})
}

// head sends a request's head, and what more is given of it.
func (c pipeConn) head(path, token string, length int, more ...byte) {
	c.t.Helper()
	_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", path, token, length, more)
	require.NoError(c.t, err)
}

func (c pipeConn) answer() *http.Response {
	c.t.Helper()
	res, err := http.ReadResponse(c.answers, nil)
	require.NoError(c.t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, res.Body.Close())
	return res
}

func (c pipeConn) requireClosed() {
	c.t.Helper()
	_, err := c.answers.ReadByte()
	require.ErrorIs(c.t, err, io.EOF)
}

func encoded(t *testing.T, body any) []byte {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return text
}

func TestABadCredentialIsAnsweredAtOnceAndItsBodyNotWaitedFor(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, _ *regNode, _ *regWorker, c pipeConn) {
		began := time.Now()
		c.head("/registry/register", tokenUnknown, 100)
		res := c.answer()
		require.Equal(t, http.StatusUnauthorized, res.StatusCode)
		require.Zero(t, time.Since(began)) // virtual time
		require.True(t, res.Close)
		c.requireClosed()
		require.LessOrEqual(t, time.Since(began), 2*refusedLinger)
	})
}

func TestABodyThatDoesNotComeHoldsNobodyForEver(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, _ *regNode, _ *regWorker, c pipeConn) {
		began := time.Now()
		c.head("/registry/register", tokenWorker, 100, '{')
		res := c.answer()
		require.Equal(t, http.StatusRequestTimeout, res.StatusCode)
		require.Equal(t, bodyTime, time.Since(began)) // virtual time
		require.True(t, res.Close)
		c.requireClosed()
	})
}

// The time for the body must not run out under the work that follows it.
func TestABodyThatComesLateIsServed(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, n *regNode, w *regWorker, c pipeConn) {
		w.record("/a")
		w.answers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }) // 2 s
		body := encoded(t, w.beat())
		c.head("/registry/heartbeat", tokenWorker, len(body), body[:10]...)
		time.Sleep(bodyTime - time.Millisecond) // virtual time
		require.Less(t, time.Duration(0), n.leaseLeft(w))
		_, err := c.Write(body[10:])
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, c.answer().StatusCode)
		// And the connection goes on.
		time.Sleep(bodyTime)
		body = encoded(t, w.beat())
		c.head("/registry/heartbeat", tokenWorker, len(body), body...)
		require.Equal(t, http.StatusOK, c.answer().StatusCode)
	})
}

// leaseLeft returns what is left of the worker's lease.
func (n *regNode) leaseLeft(w *regWorker) time.Duration {
	n.t.Helper()
	s, err := n.store.Session(context.Background(), w.session)
	require.NoError(n.t, err)
	return s.TTL
}

func TestAWorkerThatDoesNotReadItsAnswerHoldsNoLockAndTakesNoPlacements(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, n *regNode, w *regWorker, c pipeConn) {
		body := encoded(t, w.registration())
		c.head("/registry/register", tokenWorker, len(body), body...)
		time.Sleep(answerTime / 2) // virtual time
		require.Equal(t, 1, n.pb.registry.clients.waiting(w.client))
		time.Sleep(answerTime)
		require.Zero(t, n.pb.registry.clients.waiting(w.client))
		require.Equal(t, []string{"CheckRegister", "Register"}, n.store.called())
		require.Empty(t, n.pb.leases.pending)
		w.register()
	})
}

func TestAConnectionServesOnLongAfterARegistration(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, _ *regNode, w *regWorker, c pipeConn) {
		for range 2 {
			body := encoded(t, w.registration())
			c.head("/registry/register", tokenWorker, len(body), body...)
			require.Equal(t, http.StatusOK, c.answer().StatusCode)
			time.Sleep(2 * answerTime) // virtual time
		}
	})
}
