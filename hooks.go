package pinboard

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// Hooks are what the host wants to be told of; each is nil by default, and a host
// without them pays nothing. They are called one after the other on one goroutine
// per node, which no request waits for.
//
// Placed, Moved and Released tell what this node did: each placement and each
// release is one node's, so that the hooks of all nodes together tell each of them
// at most once. WorkerJoined and WorkerLeft tell, on every node, of all workers of
// the fleet. None of them tells for certain: a node that dies loses what waits,
// the queue is bounded, and where the store did the work but its answer was lost,
// nobody knows that it did. What has to be exact must not go by them:
// docs/embedding.md says what is right for what.
//
// Calls about one id come in the order in which this node did those things. Other
// nodes do things with it, too: the higher epoch is the newer one.
//
// A hook's context ends when Shutdown's patience does. A panic is logged and costs
// no other call. A hook that is slow delays the others, and then has them dropped
// (Pinboard.HooksDropped). A hook must not call Shutdown, which waits for it.
type Hooks struct {
	// Placed: an id that nobody had has got an owner. Default: nobody is told.
	Placed func(ctx context.Context, e PlacementEvent)
	// Moved: an id has got another owner, because the one before it has ended or
	// refused it. Default: nobody is told.
	Moved func(ctx context.Context, e PlacementEvent)
	// Released: an id has no owner any more, because its owner gave it up or
	// refused it. Ids of a worker that has left are free without that: WorkerLeft
	// is about all of them. Default: nobody is told.
	Released func(ctx context.Context, e PlacementEvent)
	// WorkerJoined: a worker has a session, be it its first or, with another
	// SessionID, one that replaces its last, which does not leave by that. The ids
	// that it brought along are not told of. Default: nobody is told.
	WorkerJoined func(ctx context.Context, e WorkerEvent)
	// WorkerLeft: a worker's session has ended, and its ids are free. A lease that
	// lapses is noticed some seconds later. Default: nobody is told.
	WorkerLeft func(ctx context.Context, e WorkerEvent)

	// Queue is how many calls may wait. What comes then is dropped and counted.
	// At most 1,000,000, default 1,024.
	Queue int
}

// PlacementEvent is what happened to one id. What is not known is zero.
type PlacementEvent struct {
	// Hostname, Namespace and ID name the id; Hostname is "" for the binding
	// without one.
	Hostname, Namespace, ID string
	// ClientID and SessionID are its owner's; of Released, who was its owner.
	ClientID, SessionID string
	// Epoch is the placement's, by which later ones are told from earlier ones; 0
	// where a worker released an id without saying of which.
	Epoch int64
	// FromClientID and FromSessionID are the owner before, for Moved.
	FromClientID, FromSessionID string
	// Why is "new" for Placed; "failover" (the owner had ended) or "refused" for
	// Moved; "released" or "refused" for Released.
	Why string
	// Choice is how the worker was chosen: "caller", "affinity" or "twoChoices";
	// "" for Released (protocol §9).
	Choice string
	// At is when this node heard of it, by its own clock.
	At time.Time
}

// WorkerEvent is what happened to one worker.
type WorkerEvent struct {
	// Hostname and Namespaces are its bindings.
	Hostname   string
	Namespaces []string
	// ClientID is the process, SessionID its session.
	ClientID, SessionID string
	// AdvertiseURL is where it is reached; "" for WorkerLeft.
	AdvertiseURL string
	// Why is "registered" for WorkerJoined; "deregistered" or "lapsed" for
	// WorkerLeft.
	Why string
	// At is when it was recorded, by the store's clock.
	At time.Time
}

const (
	standardHookQueue = 1024
	maxHookQueue      = 1_000_000
	// sayDroppedEvery is how often the log says that calls of hooks are dropped, at
	// most.
	sayDroppedEvery = 10 * time.Second
)

// HooksDropped returns how many calls of Hooks were dropped since the node was
// made, because the hooks did not keep up or did not end before Shutdown did. The metric
// pinboard_hooks_dropped_total (Options.Metrics) is the same.
func (p *Pinboard) HooksDropped() int64 {
	if p.hooks == nil {
		return 0
	}
	return p.hooks.dropped.Load()
}

// hooks calls the host's hooks. A nil one has none, and does nothing.
type hooks struct {
	Hooks
	store   store.Store
	log     *zap.Logger
	ctx     context.Context // of the calls
	cancel  context.CancelFunc
	dropped atomic.Int64

	feed feed

	mu     sync.Mutex
	queue  []hookCall
	done   chan struct{} // while the goroutine runs: closed when it has ended
	closed bool
	said   time.Time // that calls were dropped
}

// hookCall is a call that waits.
type hookCall struct {
	hook string
	call func(ctx context.Context)
}

func newHooks(h Hooks, s store.Store, log *zap.Logger) *hooks {
	if h.Placed == nil && h.Moved == nil && h.Released == nil && h.WorkerJoined == nil && h.WorkerLeft == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &hooks{Hooks: h, store: s, log: log, ctx: ctx, cancel: cancel}
}

// tell has a hook called soon, unless too many calls wait. It waits for nothing.
func (h *hooks) tell(hook string, call func(ctx context.Context)) {
	h.mu.Lock()
	full := h.closed || len(h.queue) >= h.Queue
	say := false
	if full {
		h.dropped.Add(1)
		now := time.Now()
		if say = now.Sub(h.said) >= sayDroppedEvery; say {
			h.said = now
		}
	} else {
		h.queue = append(h.queue, hookCall{hook, call})
		if h.done == nil {
			h.done = make(chan struct{})
			go h.run()
		}
	}
	h.mu.Unlock()
	if say {
		h.log.Warn("calls of hooks are dropped: the hooks do not keep up", zap.String("hook", hook), zap.Int64("dropped", h.dropped.Load()))
	}
}

// run makes the calls that wait, and ends when there are none.
func (h *hooks) run() {
	ended := false
	defer func() {
		if !ended { // a hook has ended its goroutine (runtime.Goexit)
			go h.run()
		}
	}()
	for {
		c, ok := h.next()
		if !ok {
			ended = true
			return
		}
		h.call(c)
	}
}

func (h *hooks) next() (hookCall, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		h.queue = nil
		close(h.done)
		h.done = nil
		return hookCall{}, false
	}
	c := h.queue[0]
	h.queue[0] = hookCall{}
	h.queue = h.queue[1:]
	return c, true
}

// call contains what a hook does. What it panics with may hold anything: only the
// runtime's own words are logged.
func (h *hooks) call(c hookCall) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		what := fmt.Sprintf("%T", fault)
		if err, ok := fault.(runtime.Error); ok {
			what = err.Error()
		}
		h.log.Error("a hook panicked", zap.String("hook", c.hook), zap.String("panic", what), zap.ByteString("stack", debug.Stack()))
	}()
	c.call(h.ctx)
}

// shutdown waits until all calls are made. When ctx ends first, it drops those that
// wait, tells the one under way to end, and returns the context's error.
func (h *hooks) shutdown(ctx context.Context) error {
	if h == nil {
		return nil
	}
	defer h.cancel()
	h.mu.Lock()
	h.closed = true
	done := h.done
	h.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	h.mu.Lock()
	left := len(h.queue)
	h.queue = nil
	h.mu.Unlock()
	h.dropped.Add(int64(left))
	h.log.Warn("hooks have not ended in time: the calls that are left are dropped", zap.Int("left", left), zap.Int64("dropped", h.dropped.Load()))
	return fmt.Errorf("wait for hooks: %w", ctx.Err())
}

// placed tells of a placement, if it was one.
func (h *hooks) placed(a *ask, res *store.Result, clientOf func(sessionID string) string) {
	if h == nil || res.Outcome != store.Placed {
		return
	}
	hook, call := "Placed", h.Placed
	if res.Why.Cause != store.New {
		hook, call = "Moved", h.Moved
	}
	if call == nil {
		return
	}
	e := PlacementEvent{
		ID: a.id, ClientID: clientOf(res.SessionID), SessionID: res.SessionID, Epoch: res.Epoch,
		Why: string(res.Why.Cause), Choice: string(res.Why.Choice), At: time.Now(),
	}
	e.Hostname, e.Namespace = store.Unbind(a.namespace)
	if hook == "Moved" {
		e.FromSessionID, e.FromClientID = res.Former, clientOf(res.Former)
		if a.refused != nil && res.Why.Cause == store.AfterRefusal {
			e.FromClientID = a.refused.ClientID
		}
	}
	h.tell(hook, func(ctx context.Context) { call(ctx, e) })
}

// released tells of rows that were freed; their namespaces name bindings. freed is
// how many there were: where it is not all, nobody knows which.
func (h *hooks) released(releases []wire.Release, freed int, why string, clientOf func(sessionID string) string) {
	if h == nil || h.Released == nil || freed == 0 {
		return
	}
	if freed != len(releases) {
		h.dropped.Add(int64(freed))
		return
	}
	now := time.Now()
	for _, r := range releases {
		e := PlacementEvent{ID: r.ID, ClientID: clientOf(r.SessionID), SessionID: r.SessionID, Epoch: r.Epoch, Why: why, At: now}
		e.Hostname, e.Namespace = store.Unbind(r.Namespace)
		h.tell("Released", func(ctx context.Context) { h.Released(ctx, e) })
	}
}
