package worker

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/attest"
)

// visit is one request for an instance, with all that it takes: there is one for
// every request, so it is one piece of memory. As a context it adds to the client's
// what TargetFrom and CallerFrom look for.
type visit struct {
	context.Context // the client's
	key
	worker  *Worker
	host    *host
	own     bool                     // nobody else sees the request
	ours    int                      // how many headers of pinboard's own it came with, if own
	epoch   int64                    // the placement that it was routed by, 0 if not known
	entered atomic.Bool              // the middleware has let it through
	inst    atomic.Pointer[Instance] // once its handler is called
	watch   stopwatch
	refuse  refuser
	by      *attest.Claims // others have them, too; nobody's in local mode
	caller  callerOnce

	rest place        // of the path, which the instance sees
	seen http.Request // as the instance sees it, or the middleware before it
	// flight is the first one: a middleware may let a request in again.
	flight flight
}

// refuser answers with a refusal.
type refuser func(*refusal, http.ResponseWriter)

type targetKey struct{}

// Value implements context.Context.
func (v *visit) Value(key any) any {
	switch key.(type) {
	case targetKey:
		return v
	case callerKey:
		return v.caller.of(v.by)
	}
	return v.Context.Value(key)
}

// Format prints what the request is for, and nothing of who sent it, for every verb.
func (v *visit) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "request for %s/%s", v.namespace, v.id)
}

// lost reports whether the instance that got the request is another worker's.
func (v *visit) lost() bool {
	inst := v.inst.Load()
	return inst != nil && inst.lost.Load()
}

// owned reports whether an answer counts (responder).
func (v *visit) owned() (at time.Duration, yes bool) {
	now := v.worker.clock()
	return now.mono, v.worker.lease.stateNow(now) != leaseExpired && !v.lost()
}

// refused reports whether the middleware has let the request in, and to no avail
// (responder).
func (v *visit) refused() bool { return v.entered.Load() && v.inst.Load() == nil }

// complain logs an error of a middleware's (responder).
func (v *visit) complain(message string, fields ...zap.Field) {
	v.worker.opts.Logger.Error(message, append(fields, v.field())...)
}

// late refuses a request that a middleware has kept for too long.
func (v *visit) late(ref *refusal, rw http.ResponseWriter) {
	if v.inst.Load() == nil {
		ref = v.worker.dir.expired() // the instance has not seen it
	}
	v.refuse(ref, rw)
}

// TargetFrom returns the instance that the request is for that ctx belongs to,
// for a middleware (HostOptions). It reports false outside of a request.
func TargetFrom(ctx context.Context) (namespace, id string, ok bool) {
	v, ok := ctx.Value(targetKey{}).(*visit)
	if !ok {
		return "", "", false
	}
	return v.namespace, v.id, true
}

// span is the context of a request in its instance's handler: it ends with the
// context that it came with, or by cancel, with a cause. Most handlers never ask
// how long they may run; so it becomes a context like any other, which costs as
// much as all the rest, only when it is asked.
type span struct {
	context.Context // that it came with

	mu     sync.Mutex
	real   context.Context // nil until somebody asks
	end    context.CancelCauseFunc
	ended  bool
	reason error
}

// live returns the real context.
func (s *span) live() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.real == nil {
		s.real, s.end = context.WithCancelCause(s.Context)
		if s.ended {
			s.end(s.reason)
		}
	}
	return s.real
}

// cancel ends it. Only the first cause counts.
func (s *span) cancel(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.reason = true, cause
	if s.end != nil {
		s.end(cause)
	}
}

// Done implements context.Context.
func (s *span) Done() <-chan struct{} { return s.live().Done() }

// Err implements context.Context.
func (s *span) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.real != nil:
		return s.real.Err()
	case s.Context.Err() != nil:
		return s.Context.Err()
	case s.ended:
		return context.Canceled
	}
	return nil
}

// Value implements context.Context. Package context looks for its own by a key,
// too.
func (s *span) Value(key any) any {
	switch key.(type) {
	case targetKey, callerKey:
		return s.Context.Value(key)
	}
	return s.live().Value(key)
}

// Format prints what the request is for (visit), for every verb.
func (s *span) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.Context) }
