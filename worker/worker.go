package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/resources"
)

var (
	// ErrClosed is returned by Start and AwaitReady after Shutdown, whatever that
	// returned.
	ErrClosed = errors.New("worker: it was shut down")
	// ErrSuperseded is returned by AwaitReady when a worker of a higher epoch
	// has displaced this one for good.
	ErrSuperseded = errors.New("worker: superseded by a worker of a higher epoch")
	// ErrNotDeregistered is returned by Shutdown when pinboard could not be told that
	// the session is over. Nothing is lost by it but time.
	ErrNotDeregistered = errors.New("worker: shut down, but not deregistered: until the lease ends, pinboard keeps the ids that were not released, " +
		"and answers 503 for them")
)

// Worker is one registration with pinboard for a whole process. It is an
// http.Handler; pinboard must reach it at Options.AdvertiseURL. Its methods are
// safe for concurrent use.
type Worker struct {
	opts    Options
	clock   clock
	base    string // of the advertise URL's path, escaped
	born    time.Duration
	lease   *lease
	dir     *directory
	reg     *registration
	attests *attest.Verifier
	metrics *metrics
	process *resources.Process

	// hosts are by namespace. What a request has got is never changed.
	hosts atomic.Pointer[map[string]*host]

	mu      sync.Mutex // of what adds hosts, and of started
	started bool

	// stopping holds a token while a Shutdown works; stopped is guarded by it.
	stopping chan struct{}
	stopped  bool
}

// New returns a worker that does nothing yet: see Host, ListenAndServe, Start.
// Its error names every option that is missing or wrong.
func New(opts Options) (*Worker, error) {
	return build(opts, os.LookupEnv, systemClock, rand.Float64)
}

func build(opts Options, env environment, now clock, jitter func() float64) (*Worker, error) {
	if opts.Local {
		env = noEnvironment
	}
	opts = opts.withDefaults(env)
	leak.Secret(string(opts.Token))
	if err := opts.validate(env); err != nil {
		return nil, err
	}
	advertised, err := url.Parse(opts.AdvertiseURL)
	if err != nil {
		return nil, errors.New("worker: Options.AdvertiseURL is not a URL")
	}
	log := opts.Logger
	opts.Logger = leak.Logger(log)
	w := &Worker{
		opts: opts, clock: now, base: advertised.EscapedPath(), born: now().mono,
		lease: newLease(now, &opts), stopping: make(chan struct{}, 1),
		process: resources.NewProcess("/"),
	}
	w.hosts.Store(&map[string]*host{})
	w.dir = newDirectory(&w.opts, now, w.lease)
	w.reg = newRegistration(&w.opts, now, jitter, w.lease, w.dir)
	w.attests = attest.NewVerifier(w.reg.secret)
	w.reg.namespaces, w.reg.envs = w.namespaces, w.envs
	w.dir.release, w.dir.session = w.reg.release, w.reg.sessionID
	w.metrics = newMetrics(w)
	w.lease.metrics, w.dir.metrics, w.reg.metrics = w.metrics, w.metrics, w.metrics
	if w.dir.calls, err = newCalls(w); err != nil {
		return nil, err
	}
	w.opts.Token = "" // the registration keeps it, out of every printer's reach
	// Last, so that a worker that is not made leaves nothing behind.
	if err := w.metrics.register(opts.Registerer); err != nil {
		return nil, err
	}
	if opts.local() {
		warnLocal(log)
	}
	return w, nil
}

// Format prints where the worker is, and none of its secrets, for every verb.
func (w *Worker) Format(f fmt.State, _ rune) {
	if w.opts.local() {
		_, _ = fmt.Fprint(f, "worker in local mode")
		return
	}
	_, _ = fmt.Fprintf(f, "worker at %s", w.opts.AdvertiseURL)
}

func (w *Worker) namespaces() []string { return slices.Sorted(maps.Keys(*w.hosts.Load())) }

// Start registers with pinboard, in the background and for as long as it takes.
// Call it once the worker can be reached at its advertise URL, since pinboard
// checks that. In local mode the worker serves from now on. It fails if there is
// nothing to host, and with ErrClosed after Shutdown; a second Start does nothing.
func (w *Worker) Start() error {
	w.stopping <- struct{}{}
	defer func() { <-w.stopping }()
	if w.dir.life.Err() != nil { // also by a Shutdown that failed
		return ErrClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(*w.hosts.Load()) == 0 {
		return errors.New("worker: start: there is no namespace to host")
	}
	if !w.started {
		w.started = true
		if w.opts.local() {
			w.reg.goLocal()
		} else {
			w.reg.start()
		}
	}
	return nil
}

// Drain ends all instances in good order. New ids are refused from now on, and
// pinboard is told at once; instances that nothing but streams holds are closed,
// at Options.DrainRate if it is set, the others when their work is done, and those
// that are left after deadline are aborted (NoDeadline: never). Drain returns nil
// when no instance is left. When ctx ends first it returns its error and the drain
// goes on; when Undrain is called meanwhile, ErrDrainRevoked. Drained workers stay
// registered.
func (w *Worker) Drain(ctx context.Context, deadline time.Duration) error {
	w.dir.setDrain(ownDrain, drainWithin(w.clock().mono, deadline))
	w.reg.setDraining(true)
	w.opts.Logger.Info("draining: refusing new instances")
	if err := w.dir.waitDrained(ctx); err != nil {
		return fmt.Errorf("worker: drain: %w", err)
	}
	return nil
}

// Undrain takes Drain back: the worker takes new ids again, unless an operator
// drains it.
func (w *Worker) Undrain() {
	w.dir.setDrain(ownDrain, drain{})
	w.reg.setDraining(false)
}

// Draining reports whether a drain is on, the worker's own or an operator's.
func (w *Worker) Draining() bool { return w.dir.isDraining() }

// Drained reports whether a drain is on and has left no instance.
func (w *Worker) Drained() bool { return w.dir.isDraining() && w.dir.remaining() == 0 }

// Superseded reports whether a worker of a higher epoch has displaced this one,
// which has stopped for good: the process should end.
func (w *Worker) Superseded() bool { return w.reg.superseded.Load() }

// Ready reports whether the worker can serve: it is registered and inside its
// lease. For readiness, not for liveness: a pinboard that is down makes no
// process of a worker better by being restarted.
func (w *Worker) Ready() bool { return w.notReady() == "" }

func (w *Worker) notReady() string {
	switch {
	case w.reg.superseded.Load():
		return "superseded by a worker of a higher epoch"
	case w.opts.local() && w.lease.state() == leaseExpired:
		return w.dir.expired().detail
	case !w.reg.isRegistered():
		return "not registered with pinboard"
	case w.lease.state() == leaseExpired:
		return "the lease has expired"
	}
	return ""
}

// AwaitReady waits until Ready. Its error is ctx's, ErrSuperseded or ErrClosed.
func (w *Worker) AwaitReady(ctx context.Context) error {
	for {
		changed := w.reg.changes()
		switch {
		case w.dir.life.Err() != nil:
			return ErrClosed
		case w.Superseded():
			return ErrSuperseded
		case w.Ready():
			return nil
		}
		select {
		case <-changed:
		case <-w.dir.life.Done():
		case <-ctx.Done():
			return fmt.Errorf("worker: await readiness: %w", ctx.Err())
		}
	}
}

// ReadyHandler answers 200 while Ready, and else 503 and why. The worker itself
// serves it at /_pinned/ready, beside /_pinned/live, which is always 200.
func (w *Worker) ReadyHandler() http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.probe(rw, r, w.serveReady) })
}

// linger is how long requests that were on their way when the worker
// deregistered still get an answer: a refusal, on which pinboard looks the id up
// again. A closed connection would be a 502 to a client.
const linger = time.Second

// Shutdown ends the worker: new ids are refused, all instances are aborted and
// released, and when none is left the session is deregistered. A worker that was
// registered goes on to refuse requests for another second then, those that were
// on their way: close its server only after Shutdown. When ctx ends
// first, Shutdown returns its error, and the session is left to its lease
// instead: to deregister would be to hand out ids that still live here. Nothing
// is served afterwards in either case. When pinboard does not answer, which is tried
// three times within ctx, the error is an ErrNotDeregistered: all has ended here, and the
// ids that could not be released either stay placed on this worker until its lease ends,
// one lease at most; a process that was to end may end. Shutdown again is a no-op after
// success and else goes on where it was; before Start there is nothing to end.
//
// It waits for the application, callbacks included: one that itself waits for
// Shutdown, or for Drain, is waited for until ctx ends.
func (w *Worker) Shutdown(ctx context.Context) error {
	select {
	case w.stopping <- struct{}{}:
		defer func() { <-w.stopping }()
	case <-ctx.Done():
		return fmt.Errorf("worker: shut down: %w", ctx.Err())
	}
	if w.stopped {
		defer w.reg.client.close()
		return w.reg.deregister(ctx)
	}
	session := w.reg.sessionID() != ""
	// Heartbeats go on while instances close: their ids must stay theirs.
	w.dir.refuseAll(errShutdown)
	err := w.dir.waitEmpty(ctx, nil)
	empty := err == nil
	w.reg.stop()
	w.dir.stop()
	w.lease.close()
	quiet := returns(ctx, func() {
		w.reg.running.Wait()
		w.lease.callbacks.Wait()
		if empty {
			w.dir.running.Wait()
		}
		w.dir.calls.close(empty)
	})
	var unheard error
	if empty && quiet == nil {
		if session {
			w.dir.awaitAnswers(ctx)
		}
		unheard = w.reg.deregister(ctx)
		w.stopped = true
		w.metrics.unregister(w.opts.Registerer)
	}
	w.lease.end()
	w.reg.client.close()
	if w.stopped {
		if session {
			pause(ctx, linger)
		}
		return unheard
	}
	w.metrics.shutdownFailed("directory")
	if empty {
		return fmt.Errorf("worker: shut down with a callback that does not return: %w", quiet)
	}
	return fmt.Errorf("worker: shut down with %d instances still closing: %w", w.dir.remaining(), err)
}

// returns calls f and waits for it, no longer than ctx. What only has to notice
// that it was cancelled gets a moment in any case. f then goes on by itself.
func returns(ctx context.Context, f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	timer := time.NewTimer(interruptGrace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return ctx.Err()
	}
}
