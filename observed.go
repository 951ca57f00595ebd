package pinboard

import (
	"errors"
	"net/http"
	"os"
	"sync"
	"time"
)

// observed is what is known of one request of the data plane: for the metrics and
// the access log, which read it when the request has ended. One is made only where
// somebody wants to know; the methods of a nil *observed do nothing. It is for the
// request's goroutine alone.
type observed struct {
	p     *Pinboard
	r     *http.Request // nil once it is over, though its stream goes on
	from  origin        // set then
	began time.Time

	instance instance // zero if the request names none
	kind     requestKind
	status   int    // 0: nothing was answered
	reason   reason // why pinboard answered, not a worker
	cut      cut
	owner    *lease // whom the request was sent to last; nil for nobody
	epoch    int64
	caller   string // the instance that made a cluster call
	attempts int
	held     bool
	lookedUp bool
	in, out  int64 // bytes: of the request's body, and of the answer's from a worker
	// resolving is how long look-ups took, and first how long after the request
	// had come the head of the answer was written.
	resolving, first time.Duration
}

var observedPool = sync.Pool{New: func() any { return new(observed) }}

// observe begins the record of a request; nil if nobody wants to know. It must be
// ended.
func (p *Pinboard) observe(r *http.Request) *observed {
	if p.metrics == nil && p.access == nil {
		return nil
	}
	o := observedPool.Get().(*observed) // see New
	*o = observed{p: p, r: r, began: time.Now(), kind: kindHTTP}
	return o
}

// noteRefusal is for what is refused before it is known what it asks for, unless
// it is not of the data plane.
func (p *Pinboard) noteRefusal(r *http.Request, err error) {
	if isRegistry(r.URL.Path) || r.URL.Path == "/healthz" {
		return
	}
	o := p.observe(r)
	o.refused(err)
	o.end()
}

// end tells what the request was. The record is not to be used any more.
func (o *observed) end() {
	if o == nil {
		return
	}
	if o.status == 0 { // a callback of the host's panicked
		o.status, o.reason = http.StatusInternalServerError, reasonOther
	}
	o.p.metrics.observe(o)
	o.p.access.write(o)
	*o = observed{}
	observedPool.Put(o)
}

// asked says which instance the request names.
func (o *observed) asked(i instance) {
	if o != nil {
		o.instance = i
	}
}

// answered says that the head of the answer is about to be written.
func (o *observed) answered(status int) {
	if o != nil {
		o.status, o.first = status, time.Since(o.began)
	}
}

// refused says that pinboard answers with the error, not a worker.
func (o *observed) refused(err error) {
	if o != nil {
		ref := asRefusal(err)
		o.reason, o.kind = ref.why(), kindOf(o.r)
		o.answered(ref.status)
	}
}

// settled says what became of getting the request to its owner.
func (o *observed) settled(out *outcome) {
	if o != nil && out.err == nil && out.refused {
		o.reason = reasonOwnerRefused
	}
}

// sent says that the request is about to be sent to a worker.
func (o *observed) sent() {
	if o != nil {
		o.attempts++
	}
}

// wrote counts bytes of the answer's body.
func (o *observed) wrote(n int64) {
	if o != nil {
		o.out += n
	}
}

// take takes over what the exchange knows at its end.
func (o *observed) take(e *exchange) {
	if o == nil {
		return
	}
	o.kind, o.held, o.owner, o.epoch = e.kind, e.held != nil, e.tried.lease, e.tried.epoch
	o.in += e.in.Load()
	o.caller = e.call.claims.Caller
}

// went reports whether the request was answered by a worker, or by pinboard as
// it was asked to, to its end.
func (o *observed) went() bool {
	return o.status < http.StatusBadRequest && o.cut == cutNone
}

// kind is what the request is, until its answer shows that it is a stream.
func (c *call) kind(upgrade bool) requestKind {
	switch {
	case c.claims.Caller != "":
		return kindCluster
	case upgrade:
		return kindWebSocket
	}
	return kindHTTP
}

// streams says that the answer is a stream of events.
func (e *exchange) streams() {
	if e.kind == kindHTTP {
		e.x.p.counters.proxying.add(kindHTTP, -1)
		e.x.p.counters.proxying.add(kindSSE, 1)
		e.kind = kindSSE
	}
}

// lookUp looks the id up.
func (e *exchange) lookUp(a ask) (route, error) {
	if e.seen == nil || e.x.p.access == nil { // which alone tells of it
		return e.resolve(a)
	}
	began := time.Now()
	rt, err := e.resolve(a)
	e.seen.lookedUp, e.seen.resolving = true, e.seen.resolving+time.Since(began)
	return rt, err
}

// outlive keeps the record for what goes on of the exchange without its request, of
// which it holds nothing any more.
func (o *observed) outlive(e *exchange) *observed {
	if o == nil {
		return nil
	}
	o.take(e)
	o.from, o.r = o.p.access.origin(o.r), nil
	return o
}

// cutOf is why an answer is not whole, by its flow and the error of passing it on.
// unread says that the client has not read for too long.
func cutOf(f *flow, err error, unread bool) cut {
	_, client := errors.AsType[*clientError](err)
	switch ended := f.cause(); {
	case errors.Is(ended, errOwnerEnded):
		return cutOwnerEnded
	case errors.Is(ended, errNodeStops):
		return cutStopping
	case errors.Is(ended, errSilent):
		return cutSilence
	case unread, client && ended == nil && errors.Is(err, os.ErrDeadlineExceeded):
		return cutUnread
	case client, errors.Is(ended, errClientGone), f.Context.Err() != nil:
		return cutClient
	}
	return cutWorker
}

// wasCut says that an answer has ended before its end; seen may be nil.
func (x *proxy) wasCut(seen *observed, by cut) {
	switch by {
	case cutSilence:
		x.p.counters.limits.add(limitSilence, 1)
	case cutUnread:
		x.p.counters.limits.add(limitWritePause, 1)
	}
	if seen != nil {
		seen.cut = by
	}
}

// tell says what the tunnel was, which has ended.
func (t *tunnel) tell(x *proxy, seen *observed) {
	by := cut(t.broke.Load())
	switch ended := t.flow.cause(); {
	case errors.Is(ended, errOwnerEnded):
		by = cutOwnerEnded
	case errors.Is(ended, errNodeStops):
		by = cutStopping
	}
	x.wasCut(seen, by)
	if seen != nil {
		seen.in += t.up.took
		seen.out += t.down.took
	}
}

// fell notes why the tunnel does not end by itself; the first one counts.
func (t *tunnel) fell(by cut) { t.broke.CompareAndSwap(uint32(cutNone), uint32(by)) }

// answerLimit is the limit that answerTime is.
func (e *exchange) answerLimit() limitName {
	if e.upgrade {
		return limitUpgrade
	}
	return limitAnswer
}
