package pinboard

import (
	"context"
	"net"
	"net/http"
	"reflect"
	"runtime/debug"
	"sync"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// unheard is how much of what a client sends while it gets events is dropped,
// in bytes; what comes after that is not even read.
const unheard = 64 << 10

// carryOn does, on a goroutine of its own, what is left of a request when its
// handler returns. The request goes on counting until then: what was to be called
// when it leaves is called when that is done.
//
// net/http holds for a request its connection's two buffers and two goroutines, one
// of which has a deep stack; all of that is free once the connection is taken over
// and the handler has returned, and a stream may be idle for hours.
func (x *proxy) carryOn(onward, leave, leaveID func()) {
	x.p.background.stay()
	x.p.counters.proxying.Add(1)
	go func() {
		defer x.left(leave, leaveID)
		onward()
	}()
}

// left ends what carryOn began. A fault of ours must not end the whole node, as it
// would not on the server's goroutine.
func (x *proxy) left(leave, leaveID func()) {
	if fault := recover(); fault != nil {
		x.p.log.Error("a stream failed", zap.Any("fault", fault), zap.ByteString("stack", debug.Stack()))
	}
	leaveID()
	leave()
	x.p.counters.proxying.Add(-1)
	x.p.background.leave()
}

// endless reports whether a stream may outlive its request.
func (e *exchange) endless() bool {
	_, bound := e.r.Context().Deadline()
	return e.x.p.opts.DetachStreams && !bound
}

// detaches reports whether the event stream is to go on apart from its request. It
// must be an answer that ends by itself, for the connection ends with it; and
// everything that the client had to say must have been said.
func (e *exchange) detaches(a *attempt) bool {
	return e.endless() && a.resp.Length < 0 && e.r.ProtoMajor == 1 && e.r.ProtoMinor >= 1 &&
		serversOwn(e.w) && (e.body == nil || e.body.Ended()) && a.resp.Sent()
}

// serversOwn reports whether a writer is net/http's own for HTTP/1.1. Any other may
// compress or count what it gets: the connection must not be taken over behind its
// back, even if it offers that.
func serversOwn(w http.ResponseWriter) bool {
	t := reflect.TypeOf(w)
	return t.Kind() == reflect.Pointer && t.Elem().PkgPath() == "net/http" && t.Elem().Name() == "response"
}

// detach begins the answer on the client's connection itself, and returns what is
// left to do.
func (e *exchange) detach(a *attempt) (onward func()) {
	conn, _, err := e.rc.Hijack() // what came too early gets no answer
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is broken
	}
	out := newEventWriter(conn, e.w.Header(), e.x.p.opts.Limits.WritePause)
	e.finish(true)
	e.w = out
	announced := e.writeHead(a.resp)
	e = e.apart(out, a)
	return func() { e.stream(out, a, announced) }
}

// past stands for the requests of streams that have outlived theirs.
var past = &http.Request{Method: http.MethodGet, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}

// apart returns the exchange, which is to outlive its request, without anything of
// that.
func (e *exchange) apart(w http.ResponseWriter, a *attempt) *exchange {
	if a.body != nil {
		_ = a.body.Close()
	}
	a.body, a.late = nil, nil
	a.resp.Shed()
	a.flow.outlive()
	return &exchange{
		x: e.x, w: w, rc: http.NewResponseController(w), r: past,
		call: call{ask: ask{instance: e.call.instance}},
	}
}

// outlive has the flow go on when the client's request has ended, of which it
// forgets everything.
func (f *flow) outlive() {
	if !f.forget() {
		return // it ends already
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Context, f.forget = context.Background(), func() bool { return false }
}

// stream passes an event stream on, to its end.
func (e *exchange) stream(out *eventWriter, a *attempt, announced []string) {
	e.x.p.leases.stream(a.flow, func() { a.flow.cancel(errStreamEnds) })
	defer a.close()
	var watching sync.WaitGroup
	watching.Go(func() { watchClient(out.conn, a.flow) })
	defer watching.Wait()
	defer out.close()
	if e.passBody(a, announced) {
		out.end()
	}
}

// watchClient ends the flow when the client leaves, which it has to tell apart from
// a client that sends something.
func watchClient(conn net.Conn, f *flow) {
	in := hop.NewInflow(conn)
	defer in.Drop()
	for left := unheard; left > 0; {
		p, err := in.Next()
		if err != nil {
			f.cancel(errClientGone)
			return
		}
		left -= len(p)
	}
}
