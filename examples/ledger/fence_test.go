package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/examples/internal/fleet"
	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/worker"
)

// patience is when a condition counts as never coming.
const patience = time.Minute

// pause is a process that stops where it is, for what others see of it: it
// sends no heartbeat, and its write to the account gets stuck on the way.
type pause struct {
	mu   sync.Mutex
	over chan struct{} // nil: not paused

	stuck chan struct{} // gets one for each write that is held
}

func (p *pause) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = make(chan struct{})
}

// end may be called twice.
func (p *pause) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil {
		close(p.over)
		p.over = nil
	}
}

func (p *pause) wait(ctx context.Context) error {
	p.mu.Lock()
	over := p.over
	p.mu.Unlock()
	if over == nil {
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// RoundTrip is the way to pinboard's registry.
func (p *pause) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := p.wait(r.Context()); err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(r)
}

// pausedConn is the way to Redis.
type pausedConn struct {
	net.Conn
	*pause
}

func (c pausedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	paused := c.over != nil && bytes.Contains(b, []byte("ledger:{alice}"))
	c.mu.Unlock()
	if paused {
		c.stuck <- struct{}{}
		if err := c.wait(context.Background()); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(b)
}

// pausable returns a client of server whose writes stop with the pause.
func pausable(t *testing.T, server *redistest.Server, p *pause) rueidis.Client {
	t.Helper()
	option := server.ClientOption()
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, c)
		return pausedConn{conn, p}, err
	}
	option.ConnWriteTimeout = patience // a slow test is no broken connection
	return redistest.NewClient(t, option)
}

// client calls pinboard.
type client struct{ http.Client }

func newClient(t *testing.T) *client {
	c := &client{http.Client{Transport: &http.Transport{}}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func (c *client) post(t *testing.T, url, body string) (status int, a answer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := c.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	if res.StatusCode == http.StatusOK {
		require.NoError(t, json.Unmarshal(text, &a))
	}
	return res.StatusCode, a
}

// await posts until it is booked.
func (c *client) await(t *testing.T, url, body string) answer {
	t.Helper()
	limit := time.After(patience)
	for {
		status, a := c.post(t, url, body)
		if status == http.StatusOK {
			return a
		}
		require.Equal(t, http.StatusServiceUnavailable, status)
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit:
			require.FailNow(t, "nobody has the account")
		}
	}
}

// outcome is what came of the old owner's late write.
type outcome struct {
	refused bool
	stored  map[string]string // after it
	epochs  [2]int64          // of the old and the new owner
}

// lateWrite lets alice's owner stop in the middle of a deposit of 1 on top of
// 10, her next owner deposit 5, and the old one go on.
func lateWrite(t *testing.T, script string) outcome {
	t.Helper()
	server := redistest.New(t, redistest.Options{})
	pauses := map[string]*pause{}
	clients := map[string]*store{}
	for _, name := range []string{"worker-1", "worker-2"} {
		pauses[name] = &pause{stuck: make(chan struct{}, 1)}
		clients[name] = &store{client: pausable(t, server, pauses[name]), script: rueidis.NewLuaScript(script)}
	}
	said := make(chan int, 10) // what accounts answered to deposits of 1
	f, err := fleet.Start(t.Context(), fleet.Options{
		Namespace: namespace,
		Instances: func(name string) worker.Constructor {
			construct := newAccount(clients[name], name)
			return func(in *worker.Instance) (http.Handler, error) {
				account, err := construct(in)
				return overhear(account, said), err
			}
		},
		Configure: func(name string, opts *worker.Options) { opts.Transport = pauses[name] },
	})
	require.NoError(t, err)
	defer f.Stop()
	require.NoError(t, f.AwaitAnswer(t.Context(), "/accounts/alice/"))
	client, url := newClient(t), f.URL+"/accounts/alice/deposit"
	status, before := client.post(t, url, "amount=10")
	require.Equal(t, http.StatusOK, status)

	paused := pauses[before.HeldBy]
	paused.begin()
	defer paused.end()
	var late sync.WaitGroup
	late.Go(func() {
		status, _ := client.post(t, url, "amount=1")
		if status == http.StatusOK {
			t.Error("the client of the lost change was told that it was booked")
		}
	})
	<-paused.stuck
	late.Wait() // pinboard ends the request with the old owner's lease
	after := client.await(t, url, "amount=5")
	require.NotEqual(t, before.HeldBy, after.HeldBy)
	require.EqualValues(t, 15, after.Balance)

	paused.end()
	refused := <-said == http.StatusServiceUnavailable
	return outcome{refused, stored(t, server.Client(t)), [2]int64{before.Epoch, after.Epoch}}
}

// overhear tells what account itself answers to deposits of 1: nobody else may
// hear it, since the worker holds back what comes after its lease.
func overhear(account http.Handler, said chan<- int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard := &ear{ResponseWriter: w, status: http.StatusOK}
		account.ServeHTTP(heard, r)
		if r.FormValue("amount") == "1" {
			said <- heard.status
		}
	})
}

type ear struct {
	http.ResponseWriter
	status int
}

func (e *ear) WriteHeader(status int) {
	e.status = status
	e.ResponseWriter.WriteHeader(status)
}

func TestAPausedOwnerCannotOverwriteItsSuccessor(t *testing.T) {
	t.Parallel()
	got := lateWrite(t, fenced)
	require.Greater(t, got.epochs[1], got.epochs[0])
	require.True(t, got.refused)
	require.Equal(t, map[string]string{"balance": "15", "epoch": strconv.FormatInt(got.epochs[1], 10)}, got.stored)
}

// The test above can fail: without the fence the successor's deposit is lost.
func TestWithoutTheFenceALateWriteLosesWhatTheSuccessorWrote(t *testing.T) {
	t.Parallel()
	check := "if tonumber(ARGV[1]) < claimed then"
	require.Contains(t, fenced, check)
	got := lateWrite(t, strings.Replace(fenced, check, "if false then", 1))
	require.False(t, got.refused)
	require.Equal(t, map[string]string{"balance": "11", "epoch": strconv.FormatInt(got.epochs[0], 10)}, got.stored)
}
