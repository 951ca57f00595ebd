package inbound

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must come, and often how often it looks.
const (
	patience = 20 * time.Second
	often    = time.Millisecond
)

// listener gives out Conns, and shows them to the test.
type listener struct {
	net.Listener
	leaves Leaves
	conns  chan *Conn
	closed atomic.Int64
}

func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c, err := New(raw.(*net.TCPConn), &l.leaves, func() { l.closed.Add(1) })
	if err != nil {
		return nil, err
	}
	select {
	case l.conns <- c:
	default:
	}
	return c, nil
}

func listen(t *testing.T) *listener {
	t.Helper()
	raw, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return &listener{Listener: raw, conns: make(chan *Conn, 1)}
}

// serve has net/http serve Conns, and returns one client's connection with the
// server's end of it.
func serve(t *testing.T, handler http.HandlerFunc) (client net.Conn, c *Conn) {
	t.Helper()
	l := listen(t)
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: patience, IdleTimeout: 2 * patience,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context { return conn.(*Conn).Context(ctx) },
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateHijacked {
				conn.(*Conn).HandedOver()
			}
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	client = dial(t, l)
	return client, <-l.conns
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.SetDeadline(time.Now().Add(patience)))
	return client
}

const get = "GET / HTTP/1.1\r\nHost: p\r\n\r\n"

func send(t *testing.T, to io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(to, text)
	require.NoError(t, err)
}

func expect(t *testing.T, from *bufio.Reader, body string) {
	t.Helper()
	res, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	got, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, body, string(got))
}

// state reads what the lock guards.
func (c *Conn) state() (looking bool, set time.Time) {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.look != nil, c.in.set
}

func (c *Conn) looks() bool {
	looking, _ := c.state()
	return looking
}

// found reports whether a look has found something.
func (c *Conn) found() bool {
	c.in.mu.Lock()
	k := c.look
	c.in.mu.Unlock()
	if k == nil {
		return false
	}
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

func TestARequestEndsWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	client, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		defer close(ended)
		<-r.Context().Done()
	})
	send(t, client, get)
	require.NoError(t, client.Close())
	select {
	case <-ended:
	case <-time.After(patience):
		require.Fail(t, "nobody was told")
	}
}

// The same with a body, at the end of which the server begins to look.
func TestARequestWithABodyEndsWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	client, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		ended <- err
	})
	send(t, client, "POST / HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nbody")
	require.NoError(t, client.Close())
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "nobody was told")
	}
}

func TestWhatAClientSendsAheadIsItsNextRequest(t *testing.T) {
	t.Parallel()
	served := make(chan *Conn, 1)
	var n atomic.Int64
	client, c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		c := <-served
		served <- c
		if at := n.Add(1); at%2 == 1 {
			// Looked for until something has come, which is the next request.
			for !c.found() && r.Context().Err() == nil {
				<-time.After(often)
			}
			_, _ = fmt.Fprint(w, "slow ", at)
			return
		}
		_, _ = fmt.Fprint(w, "quick ", n.Load())
	})
	served <- c
	from := bufio.NewReader(client)
	for round := range 3 {
		send(t, client, get)
		require.Eventually(t, c.looks, patience, often) // else both come at once
		send(t, client, get)
		expect(t, from, fmt.Sprint("slow ", 2*round+1))
		expect(t, from, fmt.Sprint("quick ", 2*round+2))
	}
	require.False(t, c.looks())
}

// A slow request leaves nothing of the look for its client.
func TestALookEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	served := make(chan *Conn, 1)
	client, c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for c := <-served; !c.looks() && r.Context().Err() == nil; {
			<-time.After(often)
		}
		_, _ = io.WriteString(w, "done")
	})
	from := bufio.NewReader(client)
	for range 3 {
		served <- c
		send(t, client, get)
		expect(t, from, "done")
		require.Eventually(t, func() bool { return !c.looks() }, patience, often)
	}
}

func TestQuickRequestsSetNoDeadlinesAndLookForNobody(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	l := listen(t)
	count := func(apply func(time.Time) error) func(time.Time) error {
		return func(at time.Time) error {
			set.Add(1)
			return apply(at)
		}
	}
	server := &http.Server{
		ReadHeaderTimeout: patience, IdleTimeout: 2 * patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(w, "done")
		}),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			c := conn.(*Conn)
			c.in.apply, c.out.apply = count(c.in.apply), count(c.out.apply)
			return c.Context(ctx)
		},
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	client := dial(t, l)
	from := bufio.NewReader(client)
	for range 100 {
		send(t, client, get)
		expect(t, from, "done")
	}
	// The one for the first head, and what a request that was held up for 5 ms may take.
	require.Less(t, set.Load(), int64(50), "of seven hundred")
	require.NoError(t, server.Close())
	<-done
	require.Equal(t, int64(1), l.closed.Load(), "each connection is closed once")
}

// hijacked returns a connection that was taken over, once found, if asked for, is so
// of it.
func hijacked(t *testing.T, early string) (client net.Conn, c *Conn, rest *bufio.Reader) {
	t.Helper()
	served, taken := make(chan *Conn, 1), make(chan *bufio.Reader, 1)
	client, c = serve(t, func(w http.ResponseWriter, r *http.Request) {
		for c := <-served; (early == "" && !c.looks() || early != "" && !c.found()) && r.Context().Err() == nil; {
			<-time.After(often)
		}
		_, both, err := http.NewResponseController(w).Hijack()
		if err == nil {
			taken <- both.Reader
		}
	})
	served <- c
	send(t, client, get)
	if early != "" {
		require.Eventually(t, c.looks, patience, often) // else it comes with the request
		send(t, client, early)
	}
	rest = <-taken
	t.Cleanup(func() { _ = c.Close() })
	return client, c, rest
}

func TestWhatHasComeBeforeAConnectionIsTakenOverIsRead(t *testing.T) {
	t.Parallel()
	_, c, rest := hijacked(t, "early")
	require.Nil(t, c.Socket(), "who reads the socket would miss it")
	got := make([]byte, 5)
	_, err := io.ReadFull(rest, got)
	require.NoError(t, err)
	require.Equal(t, "early", string(got))
}

func TestAConnectionThatIsTakenOverReadsOneByteAtATime(t *testing.T) {
	t.Parallel()
	client, c, _ := hijacked(t, "")
	require.False(t, c.looks())
	for _, letter := range []string{"a", "b", "c"} {
		got := make(chan string, 1)
		go func() {
			var one [1]byte
			n, err := c.Read(one[:])
			got <- fmt.Sprint(string(one[:n]), err)
		}()
		send(t, client, letter)
		require.Equal(t, letter+"<nil>", <-got, "no read returns nothing")
	}
}

func TestTheSocketHasTheDeadlinesOfItsConnection(t *testing.T) {
	t.Parallel()
	client, c, _ := hijacked(t, "")
	require.NoError(t, c.SetReadDeadline(longAgo)) // before
	socket := c.Socket()
	_, err := socket.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	send(t, client, "!")
	_, err = socket.Read(make([]byte, 1))
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := socket.Read(make([]byte, 1))
		failed <- err
	}()
	require.NoError(t, c.SetReadDeadline(time.Now())) // while it waits, or before
	require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
}
