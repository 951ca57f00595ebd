package worker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Causes of the end of Instance.Context, for context.Cause and errors.Is.
var (
	// ErrEvicted: nothing held the instance. It was idle, or winding down.
	ErrEvicted = errors.New("worker: instance evicted")
	// ErrAborted: the instance ends with work under way. It called Abort, its
	// time to wind down was over, another worker owns its id, or the worker
	// shuts down.
	ErrAborted = errors.New("worker: instance aborted")
	// ErrActivation: the constructor failed.
	ErrActivation = errors.New("worker: activation failed")
)

var (
	errIdle       = fmt.Errorf("%w: idle", ErrEvicted)
	errWoundDown  = fmt.Errorf("%w: wound down", ErrEvicted)
	errAbandoned  = fmt.Errorf("%w: it waited too long for its activation", ErrEvicted)
	errOwnAbort   = fmt.Errorf("%w: by itself", ErrAborted)
	errDeadline   = fmt.Errorf("%w: its deadline has passed", ErrAborted)
	errDetached   = fmt.Errorf("%w: no client for too long", ErrAborted)
	errDuplicate  = fmt.Errorf("%w: another worker owns the id", ErrAborted)
	errSuperseded = fmt.Errorf("%w: the worker was superseded", ErrAborted)
	errShutdown   = fmt.Errorf("%w: the worker shuts down", ErrAborted)
)

// key names an instance.
type key struct{ namespace, id string }

// Constructor makes the handler of one instance. It runs once for each live id,
// with the context inst.Context() to obey, and goes on when the clients that
// waited for it have left. After an error or a panic the OnClose hooks run that
// it has set so far, the requests that waited get a 503 or a 500, and nothing is
// left: the next request tries again.
//
// The handler is called for all requests that the id has at one time, side by
// side: it guards what they share.
type Constructor func(inst *Instance) (http.Handler, error)

// Instance is one live instance: a (namespace, id) that pinboard has placed on
// this worker. Its methods are safe for concurrent use.
type Instance struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	muted  atomic.Bool // it makes no more calls: its hooks have returned

	ready    chan struct{} // closed when the constructor is over: handler or failure is set
	failure  *refusal
	closing  chan struct{} // closed when the instance starts to close
	released chan struct{} // closed when the id was given back

	// Guarded by dir.mu, down to epoch.
	refusal     *refusal // for requests, once closing
	activatedAt time.Time
	hooks       []func(context.Context) error
	paced       bool          // the worker drains, and turn says when this one may close
	kept        bool          // closing, but its id stays placed here
	releasing   bool          // its id is being released, or was, by the epoch known then
	turn        time.Duration // monotonic
	hearing     hearing       // of OnWindDown
	idling      idling        // of OnIdle
	leased      context.Context
	claimed     int64 // the epoch that a registration gave its id as it was closing
	stats       func() map[string]any

	// What every request looks at, side by side: most of what it costs to come to
	// an instance is to get that from memory.
	state       instanceState
	built       bool // the constructor is over, and there is a handler
	givenUp     bool // released, or refused for good: not ours any more
	waiting     int  // requests that wait for the constructor
	plain       int  // requests in the handler, without streams
	streams     int
	tasks       int
	idleSince   time.Duration // monotonic: the last end of anything that held it
	connectedAt time.Duration // monotonic: the last end of a request or stream
	changed     chan struct{} // closed at the next change, if somebody waits
	due         time.Duration // when the timetable looks at it
	index       int           // in the timetable, -1 if not there
	windDowns   [2]drain      // of this instance only: its own and an operator's
	fence       *fence        // as it was last seen
	flights     flights

	epoch   atomic.Int64 // 0: not known
	lost    atomic.Bool  // another session owns the id
	handler http.Handler
	dir     *directory
	host    *host
	key
}

type instanceState int

const (
	stateQueued     instanceState = iota // waits for a slot to be constructed in
	stateActivating                      // the constructor runs
	stateLive
	stateClosing
)

// Namespace returns the namespace, with its leading slash.
func (i *Instance) Namespace() string { return i.namespace }

// ID returns the id.
func (i *Instance) ID() string { return i.id }

// Epoch returns the placement epoch: a number that is higher for every later
// placement of the id, anywhere. Write it with your data and refuse writes of a
// lower one, and an owner that lost its lease unawares can't overwrite its
// successor's work. It rises in place when the id is placed here anew, which a
// request or a registration tells. 0 if pinboard sent none. In local mode the
// worker mints it, from the wall clock.
func (i *Instance) Epoch() int64 { return i.epoch.Load() }

// Context ends when the instance starts to close, with a cause that is
// ErrEvicted, ErrAborted or ErrActivation. Requests have their own contexts.
func (i *Instance) Context() context.Context { return i.ctx }

// Go runs task in a goroutine that holds the instance: it is not idle, and a
// wind-down waits until its deadline. The context is Context. Go reports false,
// and does nothing, once the instance is closing. A panic is logged.
//
// The id is not released before the task has returned: one that ignores its
// context keeps the id from being placed again.
func (i *Instance) Go(task func(ctx context.Context)) bool {
	d := i.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if i.state == stateClosing {
		return false
	}
	i.tasks++
	d.running.Go(func() {
		defer d.taskEnded(i)
		defer func() {
			if v := recover(); v != nil {
				d.log.Error("background task panicked", i.field(), zap.Any("panic", v), zap.Stack("stack"))
			}
		}()
		task(i.ctx)
	})
	return true
}

// Abort ends the instance, with the work it has under way. It returns at once
// and may be called from anywhere.
func (i *Instance) Abort() {
	i.dir.mu.Lock()
	defer i.dir.mu.Unlock()
	i.dir.beginClose(i, errOwnAbort)
}

// OnClose adds a hook that runs when the instance closes, after its tasks and
// plain requests have ended and before its id is released: the place to save
// state. Hooks run one after the other, the last one added first, with a
// context that Options.CloseTimeout bounds for all of them together. The id is
// not released before they have returned. Errors and panics are logged. OnClose
// reports false, and adds nothing, once the instance is closing.
//
// Hooks run at every end, also when the lease was lost or another worker owns
// the id by then: a save has to be fenced by Epoch, or it overwrites the work
// of the next owner.
func (i *Instance) OnClose(hook func(ctx context.Context) error) bool {
	i.dir.mu.Lock()
	defer i.dir.mu.Unlock()
	if i.state == stateClosing {
		return false
	}
	i.hooks = append(i.hooks, hook)
	return true
}

// WindingDown reports whether the instance is to end as soon as its work
// allows: the worker drains, or an operator winds the instance down. It may
// be taken back. Long tasks should look at it at points where they can stop.
func (i *Instance) WindingDown() bool {
	i.dir.mu.Lock()
	defer i.dir.mu.Unlock()
	return i.dir.winding(i)
}

// EvictionDeadline returns when a winding-down instance is aborted at the
// latest, and false if it does not wind down or has no deadline.
func (i *Instance) EvictionDeadline() (time.Time, bool) {
	d := i.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	deadline, ok := d.deadlineOf(i)
	if !ok {
		return time.Time{}, false
	}
	now := d.clock()
	return now.wall.Add(deadline - now.mono), true
}

// owned reports whether the id is this worker's beyond doubt, so that what the
// instance answers counts.
func (i *Instance) owned() (at time.Duration, yes bool) {
	now := i.dir.clock()
	// In this order: a registration marks what was lost before it renews the
	// lease.
	return now.mono, i.dir.lease.stateNow(now) != leaseExpired && !i.lost.Load()
}

// refused is false: an instance has the request (responder).
func (*Instance) refused() bool { return false }

// isConstructed reports whether the constructor is over, or will never begin.
func (i *Instance) isConstructed() bool {
	select {
	case <-i.ready:
		return true
	default:
		return false
	}
}

func (k key) field() zap.Field { return zap.String("instance", k.namespace+"/"+k.id) }

// complain logs an error of the instance's handler (responder).
func (i *Instance) complain(message string, fields ...zap.Field) {
	i.dir.log.Error(message, append(fields, i.field())...)
}
