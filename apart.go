package pinboard

import (
	"context"
	"net/http"
	"reflect"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/upstream"
)

// detached is a request whose handler returns while its stream goes on. It counts
// until that ends, and Shutdown waits for it.
//
// net/http holds for a request its connection's two buffers and two goroutines, one
// of which has a deep stack. All of that is free once the connection is taken over
// and the handler has returned. So what a detached stream holds is made anew, and
// has nothing of the request, the exchange or the attempt.
type detached struct {
	x     *proxy
	flow  flow
	resp  *upstream.Response
	start func() // has it go on

	// What is given back in the end.
	share   *quota.Share // of the client's site
	counted counted
	// name is for the log, spans are what is traced.
	name  instance
	spans spans
	kind  requestKind
	seen  *observed // nil if nobody wants to know
}

// endless reports whether a stream may outlive its request.
func (e *exchange) endless() bool {
	_, bound := e.r.Context().Deadline()
	return e.x.p.opts.DetachStreams && !bound
}

// outlive takes over what goes on of an attempt: its flow and its answer. The attempt
// can only be closed after that.
func (d *detached) outlive(e *exchange, a *attempt) {
	d.x, d.name, d.kind = e.x, e.call.instance, e.kind
	d.seen, e.seen = e.seen.outlive(e), nil
	e.x.p.leases.replace(&a.flow, &d.flow)
	d.spans = e.trail.outlive(a)
	d.resp = a.resp.Shed(&d.flow)
}

// begin has the stream go on, and count for a site and an instance.
func (d *detached) begin(share *quota.Share, of counted) {
	d.share, d.counted = share, of
	d.x.p.background.stay()
	d.x.p.counters.proxying.add(d.kind, 1)
	d.start()
}

// leave is for when the stream has ended. What it calls of the host's, loggers and
// spans, comes after what is given back, and may fail.
func (d *detached) leave() {
	defer d.x.p.background.leave()
	d.resp.Close()
	d.flow.close()
	d.x.p.limiter.leaveID(d.counted)
	d.x.p.limiter.leave(d.share)
	d.x.p.counters.proxying.add(d.kind, -1)
	d.contain(d.spans.end)
	d.contain(d.seen.end)
}

// contain calls what may panic.
func (d *detached) contain(f func()) {
	defer func() {
		if fault := recover(); fault != nil {
			d.broken(fault)
		}
	}()
	f()
}

// call is for the log.
func (d *detached) call() *call { return &call{ask: ask{instance: d.name}} }

// broken tells of a fault of ours. It must not end the whole node, as it would not
// on a goroutine of the server's.
func (d *detached) broken(fault any) {
	defer func() { _ = recover() }() // of the log, which may be what failed
	d.x.p.log.Error("a stream failed", zap.Any("fault", fault), zap.ByteString("stack", debug.Stack()))
}

// forgotten is for a flow that follows nobody.
func forgotten() bool { return false }

// replace has a flow go on as another one, which is not the client's any more.
func (l *leases) replace(old, next *flow) {
	next.Context, next.leases, next.lease, next.opened = context.Background(), l, old.lease, old.opened
	next.forget = forgotten
	l.mu.Lock()
	defer l.mu.Unlock()
	old.lease.flows.remove(old)
	old.lease.flows.add(next)
	if old.Context.Err() != nil {
		next.cancel(errClientGone)
	} else if cause := old.cause(); cause != nil {
		next.cancel(cause)
	}
}

// turns is one direction of a stream that goes on apart.
type turns interface {
	// await returns when there may be something to pass on.
	await()
	// round passes it on, and reports whether that was all.
	round() (over bool)
	// over is called after the last round.
	over()
	// broken is called for a panic in a round, which is the last one then.
	broken(fault any)
}

// follow passes a direction on to its end. A stack that has once grown stays large
// while it waits, so what a round calls has to get along with that of a new
// goroutine, 2 KB: TestAnIdleStreamTakesLittle.
func follow(t turns) {
	for {
		t.await()
		if last(t) {
			t.over()
			return
		}
	}
}

// last runs one round.
func last(t turns) (over bool) {
	defer func() {
		if fault := recover(); fault != nil {
			t.broken(fault)
			over = true
		}
	}()
	return t.round()
}

// serversOwn reports whether a writer is net/http's own for HTTP/1. Any other may
// compress or count what it gets: the connection must not be taken over behind its
// back, even if it offers that.
func serversOwn(w http.ResponseWriter) bool {
	t := reflect.TypeOf(w)
	return t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "net/http" && t.Elem().Name() == "response"
}
