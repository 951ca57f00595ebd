package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// served is a worker that serves on a network in memory.
type served struct {
	*harness
	listener  *pipeListener
	transport *http.Transport
	cancel    context.CancelFunc
	ended     chan error
}

func (h *harness) serve() *served {
	s := &served{harness: h, listener: newPipeListener(), ended: make(chan error, 1)}
	s.transport = &http.Transport{DialContext: s.listener.dial}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(h.t.Context())
	go func() { s.ended <- h.w.Serve(ctx, s.listener) }()
	require.NoError(h.t, h.w.AwaitReady(h.t.Context()))
	return s
}

// fleet is as much of a pinboard's data plane as it takes to move ids from one
// worker to another.
type fleet struct {
	t    *testing.T
	a, b *served

	mu     sync.Mutex
	rows   map[string]fleetRow
	epochs int64
	aIsOut bool // A drains or has deregistered
}

type fleetRow struct {
	owner *served
	epoch int64
}

func newFleet(t *testing.T, host Constructor, opts Options) *fleet {
	f := &fleet{t: t, rows: map[string]fleetRow{}}
	f.a = newHarness(t, opts, hosting(host)).serve()
	f.b = newHarness(t, opts, hosting(host)).serve()
	f.a.pb.on(func(c call) (reply, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch c.path {
		case wire.PathHeartbeat:
			f.aIsOut = c.body["draining"] == true
		case wire.PathRelease:
			for _, item := range c.list(t) {
				id := item["id"].(string)
				if row := f.rows[id]; row.owner == f.a && fmt.Sprint(row.epoch) == item["epoch"] {
					delete(f.rows, id)
				}
			}
		case wire.PathDeregister:
			f.aIsOut = true
			for id, row := range f.rows {
				if row.owner == f.a {
					delete(f.rows, id)
				}
			}
		}
		return reply{}, false
	})
	return f
}

func (f *fleet) route(id string) fleetRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	row, ok := f.rows[id]
	if !ok {
		f.epochs++
		row = fleetRow{owner: f.a, epoch: f.epochs}
		if f.aIsOut {
			row.owner = f.b
		}
		f.rows[id] = row
	}
	return row
}

// give up a row that its worker refused, and place the id on B.
func (f *fleet) refused(id string, was fleetRow, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rows[id] == was && wire.GivesUp(reason) {
		f.epochs++
		f.rows[id] = fleetRow{owner: f.b, epoch: f.epochs}
	}
}

// call sends a request to the owner of an id, and once more after a refusal.
func (f *fleet) call(ctx context.Context, id, path string) (res *http.Response, by *served, err error) {
	for range 2 {
		row := f.route(id)
		r := row.owner.outgoing(ctx, "/c/"+id+path)
		r.Header.Set(wire.HeaderEpoch, fmt.Sprint(row.epoch))
		if res, err = row.owner.transport.RoundTrip(r); err != nil {
			return nil, row.owner, err
		}
		reason := res.Header.Get(wire.HeaderRefusal)
		if reason == "" {
			return res, row.owner, nil
		}
		f.refused(id, row, reason)
		by = row.owner
	}
	return res, by, nil
}

// On the order to end, a worker must go on serving, say so at once, and leave
// last what is still in use (kubernetes/kubernetes#43576, temporalio/sdk-python#783).
func TestAWorkerThatEndsUnderLoadFailsNobody(t *testing.T) {
	t.Parallel()
	host := func(inst *Instance) (http.Handler, error) {
		if strings.HasPrefix(inst.ID(), "straggler") {
			inst.Go(untilDone)
		}
		return serving(func(_ *Instance, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/events" {
				w.Header().Set("Content-Type", "text/event-stream")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			_, _ = io.WriteString(w, "ok")
		})(inst)
	}
	synctest.Test(t, func(t *testing.T) {
		const deadline = 10 * time.Second
		f := newFleet(t, host, Options{DrainDeadline: deadline})
		ctx, stop := context.WithCancel(t.Context())
		var load sync.WaitGroup
		ids := make([]string, 0, 20)
		for i := range 18 {
			ids = append(ids, fmt.Sprintf("id-%d", i))
		}
		ids = append(ids, "straggler-1", "straggler-2")
		var answered, onStraggler atomic.Int64
		var faults record
		check := func(id string, res *http.Response, err error) {
			switch {
			case err != nil:
				faults.add("%s: %v", id, err)
			case res.StatusCode != http.StatusOK && (res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == ""):
				faults.add("%s: %d", id, res.StatusCode)
			case res.StatusCode == http.StatusOK:
				answered.Add(1)
			}
		}
		for _, id := range ids { // 50 requests a second
			load.Go(func() {
				for pause(ctx, 400*time.Millisecond) {
					res, by, err := f.call(t.Context(), id, "/")
					check(id, res, err)
					if err == nil {
						_ = res.Body.Close()
						if f.a.w.Draining() && by == f.a && res.StatusCode == http.StatusOK {
							onStraggler.Add(1)
						}
					}
				}
			})
		}
		var streamsOnB atomic.Int64
		for _, id := range ids[:5] {
			load.Go(func() {
				for ctx.Err() == nil {
					res, by, err := f.call(ctx, id, "/events")
					if ctx.Err() != nil {
						return
					}
					check(id, res, err)
					if err == nil {
						if by == f.b && res.StatusCode == http.StatusOK {
							streamsOnB.Add(1)
						}
						_, _ = io.Copy(io.Discard, res.Body)
						_ = res.Body.Close()
					}
				}
			})
		}
		f.a.after(4 * time.Second)
		require.Len(t, f.a.w.Stats().Instances, 20)
		require.Empty(t, f.b.w.Stats().Instances)

		told := f.a.since()
		f.a.cancel()
		synctest.Wait()
		beat := f.a.pb.last(t, wire.PathHeartbeat)
		require.Equal(t, true, beat.body["draining"])
		require.Equal(t, told, beat.at, "not at the next tick")
		f.a.after(time.Second)
		require.Len(t, f.a.w.Stats().Instances, 2, "the idle ones are released first")
		require.EqualValues(t, 5, streamsOnB.Load(), "streams have connected again, elsewhere")
		res, by, err := f.call(t.Context(), "new", "/")
		check("new", res, err)
		require.Same(t, f.b, by)
		f.a.after(8900 * time.Millisecond)
		require.Len(t, f.a.w.Stats().Instances, 2)
		require.GreaterOrEqual(t, onStraggler.Load(), int64(40), "live ids are served all the while")
		require.NoError(t, <-f.a.ended)
		require.Equal(t, told+deadline+linger, f.a.since())
		last := f.a.pb.calls[len(f.a.pb.calls)-1]
		require.Equal(t, wire.PathDeregister, last.path)
		require.Equal(t, told+deadline, last.at)
		_, err = f.a.listener.dial(t.Context(), "", "")
		require.Error(t, err, "the server is closed")

		f.a.after(3 * time.Second)
		require.Len(t, f.b.w.Stats().Instances, 21, "everything lives on")
		stop()
		load.Wait()
		f.a.transport.CloseIdleConnections()
		f.b.transport.CloseIdleConnections()
		f.b.cancel()
		require.NoError(t, <-f.b.ended)
		require.Empty(t, faults.all())
		require.Greater(t, answered.Load(), int64(500))
	})
}

// Where the server is not the worker's own, too: it closes after Shutdown.
func TestRequestsThatWereOnTheirWayAreRefusedDuringShutdown(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{}, hosting(echo), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/a").Code)
		h.after(answerTime)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			require.NoError(t, h.w.Shutdown(t.Context()))
		}()
		synctest.Wait()
		require.Len(t, h.pb.to(wire.PathDeregister), 1)
		time.Sleep(linger - 1)
		synctest.Wait()
		select {
		case <-ended:
			require.Fail(t, "over too soon")
		default:
		}
		refused(t, h.get("/c/a"), wire.RefusalExpired)
		<-ended
	})
}

func TestServeWithNothingToDoEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		s := h.serve()
		began := h.since()
		s.cancel()
		require.NoError(t, <-s.ended)
		require.Equal(t, linger, h.since()-began)
		require.Len(t, h.pb.to(wire.PathDeregister), 1)
	})
}

type brokenListener struct {
	*pipeListener
	err chan error
}

func (l *brokenListener) Accept() (net.Conn, error) { return nil, <-l.err }

func TestServeReturnsTheListenersError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(working))
		l := &brokenListener{pipeListener: newPipeListener(), err: make(chan error, 1)}
		ended := make(chan error, 1)
		go func() { ended <- h.w.Serve(t.Context(), l) }()
		require.NoError(t, h.w.AwaitReady(t.Context()))
		h.get("/c/1")
		broken := errors.New("too many open files")
		l.err <- broken
		require.ErrorIs(t, <-ended, broken)
		require.Len(t, h.pb.to(wire.PathRelease), 1)
		require.Len(t, h.pb.to(wire.PathDeregister), 1)
	})
}

func TestServeThatCannotStartClosesItsListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, nil)
		l := newPipeListener()
		require.ErrorContains(t, h.w.Serve(t.Context(), l), "no namespace")
		_, err := l.dial(t.Context(), "", "")
		require.ErrorIs(t, err, errRefusedConnection)
	})
}

func TestServeSaysWhatDidNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var release chan struct{}
		h := newHarness(t, Options{}, hosting(func(inst *Instance) (http.Handler, error) {
			inst.Go(func(context.Context) { <-release })
			return echo(inst)
		}))
		release = make(chan struct{})
		s := h.serve()
		h.get("/c/1")
		began := h.since()
		s.cancel()
		require.ErrorIs(t, <-s.ended, context.DeadlineExceeded)
		require.Equal(t, 30*time.Second+10*time.Second+releaseWait+shutdownTimeout, h.since()-began)
		require.Empty(t, h.pb.to(wire.PathDeregister))
		close(release)
		synctest.Wait()
	})
}

// What runs the process would start it again, to wait for its turn for ever.
func TestServeGoesOnWhenTheWorkerIsSuperseded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		s := h.serve()
		require.Equal(t, http.StatusOK, h.get("/_pinned/ready").Code)
		h.pb.answer(wire.PathHeartbeat, reply{status: http.StatusConflict, body: object{"error": "by epoch 2", "superseded": true}})
		h.after(time.Hour)
		require.Empty(t, s.ended)
		require.Equal(t, http.StatusServiceUnavailable, h.get("/_pinned/ready").Code)
		require.Equal(t, http.StatusOK, h.get("/_pinned/live").Code)
		require.ErrorIs(t, context.Cause(h.w.LeaseContext()), ErrSuperseded)
		s.cancel()
		require.NoError(t, <-s.ended)
		require.Len(t, h.pb.to(wire.PathDeregister), 1, "its rows are free before its lease ends")
	})
}

func TestServeSaysThatPinboardWasNotTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{}, hosting(echo))
		s := h.serve()
		h.pb.on(func(call) (reply, bool) { return reply{err: errors.New("no route")}, true })
		s.cancel()
		require.ErrorIs(t, <-s.ended, ErrNotDeregistered)
		h.pb.on(nil)
	})
}

func TestListenAndServeReturnsTheErrorOfListening(t *testing.T) {
	t.Parallel()
	w, err := New(complete())
	require.NoError(t, err)
	require.NoError(t, w.Host("/c", echo))
	require.ErrorContains(t, w.ListenAndServe(t.Context(), "256.0.0.1:0"), "listen")
}

// Not parallel: the signals are for the whole process.
func TestListenAndServeEndsOnASignal(t *testing.T) {
	for _, sent := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sent.String(), func(t *testing.T) {
			h := newHarness(t, Options{}, hosting(echo))
			ended := make(chan error, 1)
			go func() { ended <- h.w.ListenAndServe(t.Context(), "127.0.0.1:0") }()
			require.NoError(t, h.w.AwaitReady(t.Context()))
			h.get("/c/1")
			self, err := os.FindProcess(os.Getpid())
			require.NoError(t, err)
			require.NoError(t, self.Signal(sent))
			require.NoError(t, <-ended)
			require.Equal(t, "1", h.pb.last(t, wire.PathRelease).list(t)[0]["id"])
			require.Len(t, h.pb.to(wire.PathDeregister), 1)
			// Where it listens is told: with port 0, or no address, nobody knows else.
			serving := h.logs.FilterMessage("serving").All()
			require.Len(t, serving, 1)
			require.Regexp(t, `^127\.0\.0\.1:[1-9]`, serving[0].ContextMap()["addr"])
		})
	}
}
