package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// caller makes HTTP calls for a test.
type caller struct{ http.Client }

// answer is a response, read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

type callOption func(*http.Request)

func header(name, value string) callOption {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func bearer(token string) callOption { return header("Authorization", "Bearer "+token) }

// asking names the host that is asked.
func asking(host string) callOption { return func(r *http.Request) { r.Host = host } }

func content(body []byte) callOption {
	return func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}
}

// try calls, and returns an error if there was no answer or it did not end well.
func (c *caller) try(ctx context.Context, method, url string, opts ...callOption) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return answer{}, err
	}
	for _, o := range opts {
		o(req)
	}
	res, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: body}, err
}

// call is try for calls that must be answered, whatever the answer.
func (c *caller) call(t *testing.T, method, url string, opts ...callOption) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	a, err := c.try(ctx, method, url, opts...)
	require.NoError(t, err)
	return a
}

// post calls with a JSON body.
func (c *caller) post(t *testing.T, url string, body any, opts ...callOption) answer {
	t.Helper()
	text, err := json.Marshal(body)
	require.NoError(t, err)
	return c.call(t, http.MethodPost, url, append(opts, content(text), header("Content-Type", "application/json"))...)
}

func (a answer) requireStatus(t *testing.T, status int) answer {
	t.Helper()
	require.Equal(t, status, a.status, "%s", a.body)
	return a
}

// decode reads the JSON body of a 200.
func (a answer) decode(t *testing.T, into any) {
	t.Helper()
	a.requireStatus(t, http.StatusOK)
	require.NoError(t, json.Unmarshal(a.body, into), "%s", a.body)
}

// requireNotNow checks a 503, pinboard's or a worker's: it says when to come
// back, and within a lease.
func (a answer) requireNotNow(t *testing.T) {
	t.Helper()
	a.requireStatus(t, http.StatusServiceUnavailable)
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err, "Retry-After of %s", a.body)
	require.GreaterOrEqual(t, wait, 1)
	require.LessOrEqual(t, wait, int(lease/time.Second))
}

// state is what an instance tells of itself.
type state struct {
	ID          string
	PID         int // of the process that it lives in
	Epoch       int64
	Count       int
	WindingDown bool
}

func room(base, id, rest string) string { return base + "/rooms/" + id + "/" + rest }

// state asks an instance for its state, which must be there at the first try.
func (f *fleet) state(t *testing.T, id string) (s state) {
	t.Helper()
	f.client.call(t, http.MethodGet, room(f.url(), id, "state")).decode(t, &s)
	return s
}

// add counts one up in an instance.
func (f *fleet) add(t *testing.T, id string) (s state) {
	t.Helper()
	f.client.call(t, http.MethodPost, room(f.url(), id, "add")).decode(t, &s)
	return s
}

// poke calls a route whose answer does not matter.
func (f *fleet) poke(t *testing.T, id, route string) {
	t.Helper()
	f.client.call(t, http.MethodPost, room(f.url(), id, route)).requireStatus(t, http.StatusOK)
}

// settle waits out the quarantine of a store that has never placed, which runs
// in each namespace from its first request on.
func (f *fleet) settle(t *testing.T, opts ...callOption) {
	t.Helper()
	awaitTrue(t, "all namespaces are out of quarantine", func() bool {
		settled := true
		for _, ns := range []string{"/rooms", "/members", "/kept"} {
			a := f.client.call(t, http.MethodGet, f.url()+ns+"/settle/state", append(opts, bearer(f.adaToken))...)
			if a.status != http.StatusOK {
				a.requireNotNow(t)
				settled = false
			}
		}
		return settled
	})
}

// events is an open stream of server-sent events.
type events struct {
	body  io.ReadCloser
	lines *bufio.Reader
}

// openEvents opens a room's event stream. It is closed when the test ends.
func (f *fleet) openEvents(t *testing.T, id string) *events {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, room(f.url(), id, "events"), nil)
	require.NoError(t, err)
	var res *http.Response
	require.NoError(t, awaitError(t, "the head of the event stream", func() (err error) {
		res, err = f.client.Do(req)
		return err
	}))
	t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.True(t, strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream"))
	return &events{body: res.Body, lines: bufio.NewReader(res.Body)}
}

// next reads one event's data.
func (e *events) next() (string, error) {
	line, err := e.lines.ReadString('\n')
	if err != nil {
		return "", err
	}
	if _, err := e.lines.ReadString('\n'); err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "data:")), nil
}

// requireNext waits for the next event, which must be data.
func (e *events) requireNext(t *testing.T, data string) {
	t.Helper()
	var got string
	require.NoError(t, awaitError(t, "event "+data, func() (err error) {
		got, err = e.next()
		return err
	}))
	require.Equal(t, data, got)
}

// awaitEnd waits until the stream ends, cleanly (nil) or not.
func (e *events) awaitEnd(t *testing.T) error {
	t.Helper()
	return awaitError(t, "the event stream ends", func() error {
		_, err := e.next()
		require.Error(t, err, "an event after the end")
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}

// openSocket opens a room's WebSocket. It is closed when the test ends.
func (f *fleet) openSocket(t *testing.T, id string) *websocket.Conn {
	t.Helper()
	return f.openSocketAt(t, f.url(), id)
}

func (f *fleet) openSocketAt(t *testing.T, base, id string) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, room(base, id, "socket"), &websocket.DialOptions{HTTPClient: &f.client.Client})
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	conn.SetReadLimit(4 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn
}

// echo sends a message through a WebSocket and must get it back.
func echo(t *testing.T, conn *websocket.Conn, kind websocket.MessageType, message []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	require.NoError(t, conn.Write(ctx, kind, message))
	gotKind, got, err := conn.Read(ctx)
	require.NoError(t, err)
	require.Equal(t, kind, gotKind)
	require.True(t, bytes.Equal(message, got), "the echo differs")
}

// awaitClosed waits until the WebSocket is closed and returns the error that
// says how.
func awaitClosed(t *testing.T, conn *websocket.Conn) error {
	t.Helper()
	return awaitError(t, "the WebSocket is closed", func() error {
		_, _, err := conn.Read(context.WithoutCancel(t.Context()))
		return err
	})
}

// awaitError waits for a call that blocks.
func awaitError(t *testing.T, what string, call func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- call() }()
	return await(t, what, func() (error, bool) {
		select {
		case err := <-result:
			return err, true
		default:
			return nil, false
		}
	})
}
