package upstream

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An answer that has shed its head goes on where it was, is cancelled by its new
// context only, and gives its connection back.
func TestAnAnswerThatHasShedItsHeadGoesOn(t *testing.T) {
	t.Parallel()
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		step := make(chan struct{})
		w := start(t, func(p *peer) {
			for head := p.head(); head != ""; head = p.head() {
				_, _, _ = p.body(head)
				p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
				<-step
				p.send("3\r\ntwo\r\n")
				<-step
				p.send("0\r\nX-Sum: 1\r\n\r\n")
			}
		})
		pool := w.pool()
		for _, req := range []*Request{w.request("GET", "/"), w.post("/", "body")} {
			first, forget := context.WithCancel(t.Context())
			resp, err := pool.Do(first, req)
			require.NoError(t, err)
			require.True(t, resp.Sent())
			next, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := resp.Shed(next)
			resp.Close()
			forget()
			for _, want := range []string{"one", "two"} {
				body.Await()
				piece, err := body.Next()
				require.NoError(t, err)
				require.Equal(t, want, string(piece))
				step <- struct{}{}
			}
			body.Await()
			_, err = body.Next()
			require.Equal(t, io.EOF, err)
			require.Equal(t, Header{{"X-Sum", "1"}}, body.Trailer)
			body.Close()
			requireIdle(t, pool, 1)
		}

		resp, err := pool.Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		next, cancel := context.WithCancel(t.Context())
		body := resp.Shed(next)
		_, err = body.Next()
		require.NoError(t, err)
		cancel()
		body.Await()
		_, err = body.Next()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		body.Close()
		close(step)
	})
}

// ending is a context that has ended, of which nobody has been told yet.
type ending struct {
	context.Context
	tell func()
}

func (e *ending) AfterFunc(tell func()) (stop func() bool) {
	e.tell = tell
	return func() bool { return false }
}

// The abort that is under way would hit whoever has the connection next.
func TestAConnectionThatIsBeingAbortedIsNotKeptForWhatWasShed(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, echo)
	pool := w.pool()
	first := &ending{Context: t.Context()}
	resp, err := pool.Do(first, w.request("GET", "/"))
	require.NoError(t, err)
	body := resp.Shed(t.Context())
	for err == nil {
		_, err = body.Next()
	}
	require.Equal(t, io.EOF, err)
	body.Close()
	requireIdle(t, pool, 0)
	first.tell()
	_, err = do(t.Context(), pool, w.request("GET", "/"))
	require.NoError(t, err)
}

// What comes with the head is taken without a look at the connection. Whoever was told
// meanwhile must not miss what that was of.
func TestAPollLooksOnceAfterWhatCameWithTheHead(t *testing.T) {
	t.Parallel()
	w := newTCPWorker(t, func(p *peer) {
		p.head()
		p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
		p.head()
	})
	resp, err := w.pool().Do(t.Context(), w.request("GET", "/"))
	require.NoError(t, err)
	require.NotZero(t, resp.c.in.len(), "one segment")
	ctx, cancel := context.WithCancel(t.Context())
	body := resp.Shed(ctx)
	told := make(chan struct{})
	body.OnAbort(func() { close(told) })
	cancel()
	<-told
	require.True(t, body.Poll(true))
	piece, err := body.Next()
	require.NoError(t, err)
	require.Equal(t, "one", string(piece))
	require.True(t, body.Poll(false), "the abort shows")
	_, err = body.Next()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	body.Close()
}

// Poll reads what is there and waits for nothing, wherever pieces end; and it shows an
// abort to whoever is told of that.
func TestAnAnswerIsPolledWithoutWaiting(t *testing.T) {
	t.Parallel()
	open := func(ctx context.Context) (body *Response, step chan string) {
		step = make(chan string)
		w := newTCPWorker(t, func(p *peer) {
			p.head()
			p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
			for text := range step {
				p.send(text)
			}
		})
		resp, err := w.pool().Do(t.Context(), w.request("GET", "/"))
		require.NoError(t, err)
		body = resp.Shed(ctx)
		require.NotNil(t, body.Socket())
		return body, step
	}
	ready := func(r *Response) {
		t.Helper()
		require.Eventually(t, func() bool { return r.Poll(true) }, patience, time.Millisecond)
	}
	body, step := open(t.Context())
	ready(body)
	piece, err := body.Next()
	require.NoError(t, err)
	require.Equal(t, "one", string(piece))
	require.False(t, body.Poll(true))
	require.Nil(t, body.c.in.buf)
	for _, half := range []string{"3", "\r", "\n"} {
		step <- half
		require.False(t, body.Poll(false), "it does not look")
		require.False(t, body.Poll(true), "there is no piece yet")
	}
	step <- "tw"
	ready(body)
	piece, err = body.Next()
	require.NoError(t, err)
	require.Equal(t, "tw", string(piece))
	step <- "o\r\n0\r\n\r\n"
	ready(body)
	piece, err = body.Next()
	require.Equal(t, "o", string(piece))
	for err == nil { // the end may come later
		ready(body)
		_, err = body.Next()
	}
	require.Equal(t, io.EOF, err)
	require.True(t, body.Poll(false))
	body.Close()
	require.Nil(t, body.Socket())
	close(step)

	ctx, cancel := context.WithCancel(t.Context())
	body, step = open(ctx)
	ready(body)
	_, err = body.Next()
	require.NoError(t, err)
	told := make(chan struct{}, 2)
	body.OnAbort(func() { told <- struct{}{} })
	require.False(t, body.Poll(true))
	cancel()
	<-told
	require.True(t, body.Poll(true), "by then it shows")
	_, err = body.Next()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	body.OnAbort(func() { told <- struct{}{} })
	<-told // also of one that was
	body.Close()
	close(step)

	body, step = open(t.Context())
	ready(body)
	_, err = body.Next()
	require.NoError(t, err)
	close(step) // the worker breaks off
	ready(body)
	_, err = body.Next()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	body.Close()
}
