package pinboard

import (
	"errors"
	"maps"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// lingerTime and lingerBytes bound what is still read of a request's body
	// after the answer: a client that is in the middle of sending might
	// otherwise lose the answer to a reset.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// longAgo as a deadline ends what waits.
var longAgo = time.Unix(1, 0)

// exchange is one request on its way to a worker, or to two when the first
// refuses the id, and the answer on its way back.
type exchange struct {
	x     *proxy
	w     http.ResponseWriter
	rc    http.ResponseController
	r     *http.Request
	call  call
	trail *trail // nil without a TracerProvider

	uri      string      // what is asked for, raw: path and query
	fields   []byte      // for the worker, but for what each attempt adds
	buffer   *[]byte     // of fields
	upgrade  bool        // the client asks for a WebSocket
	body     *hop.Body   // nil without one
	trailers http.Header // those that the client announces, without values
	expects  bool        // the client holds the body back until it gets a 100
	invited  bool        // the client got a 100 although its body is not being read yet
	sending  bool        // the body is being read for a worker, or was
	tried    route       // where the request was sent last, if anywhere
	sent     *attempt    // the last one, nil before the first
	first    attempt     // most requests have no other
	held     *held       // once the request has had to wait
	kind     requestKind
	seen     *observed    // nil if nobody wants to know
	in       atomic.Int64 // bytes of the client's body

	// awaiting bounds the waits for the client's body, writing those for the
	// client to read: see writes.
	awaiting, writing *stall
	slow              atomic.Bool // the client let the worker wait for too long
	unread            atomic.Bool // the client did not read for too long
	kept              int         // bytes that the body may keep

	// mu guards what happens before the answer on the transport's goroutines.
	mu    sync.Mutex
	begun bool // the answer has begun
	asked bool // the client's body has been read from
	// reading: the request's own goroutine waits for the client's body.
	reading bool
}

// prepare makes the request as the worker gets it. release must be called.
func (e *exchange) prepare(v *visit) {
	r, who := e.trail.strip(e.r), e.call.who
	e.uri, e.upgrade = v.path, wantsWebSocket(r)
	e.buffer = fieldBuffers.Get().(*[]byte) // see New
	e.fields = e.x.proxies().appendFields((*e.buffer)[:0], r, v.peer, who)
	query, has := v.query, v.hasQuery
	if has && who != nil && len(who.HideQuery) > 0 {
		query = withoutParameters(v.query, who.HideQuery)
		has = query != "" || v.query == ""
	}
	if has {
		e.uri += "?" + query
	}
	if e.upgrade {
		e.fields = appendField(e.fields, headerConnection, headerUpgrade)
		e.fields = appendField(e.fields, headerUpgrade, r.Header[headerUpgrade][0])
	}
	if hasBody(r) {
		limits := &e.x.p.opts.Limits
		e.kept = e.x.p.limiter.keep(e.x.p.opts.ReplayBuffer, r.ContentLength)
		e.body = hop.NewBody(source{e}, e.kept)
		e.awaiting = newStall(limits.BodyPause, e.tooSlow)
		e.awaiting.after(&e.x.lates.rounds)
		e.expects = r.ProtoAtLeast(1, 1) && r.Header.Get(headerExpect) != ""
		// Read now: the server fills them in while the body is read.
		if len(r.Trailer) > 0 {
			e.trailers = make(http.Header)
			copyTrailers(e.trailers, r)
		}
	}
}

// run is carry, and leaves nothing behind where that panics, as the host's code
// may.
func (e *exchange) run() (apart *detached) {
	over := false
	defer func() {
		if !over {
			e.abandon()
		}
	}()
	apart = e.carry()
	over = true
	return apart
}

// abandon ends what has not ended.
func (e *exchange) abandon() {
	if e.sent != nil {
		e.sent.close()
	}
	if e.held != nil {
		e.held.leave(route{})
	}
	e.finish(false) // else the server would wait for the body
}

// carry gets the request to the owner and relays the answer. While the id moves it
// is held, as the options allow, and tried again. A stream may be left to go on
// apart from the request.
func (e *exchange) carry() (apart *detached) {
	proxying := &e.x.p.counters.proxying
	e.kind = e.call.kind(e.upgrade)
	proxying.add(e.kind, 1)
	defer func() { proxying.add(e.kind, -1) }() // it may be another kind by then
	out := e.try(route{})
	for out.moving() {
		next, again := e.hold(&out)
		if !again {
			break
		}
		out = e.try(next)
	}
	e.settle(&out)
	e.seen.settled(&out)
	if out.err != nil {
		e.refuse(out.err)
		return nil
	}
	defer out.close()
	if out.resp.Status == http.StatusSwitchingProtocols {
		return e.switchProtocols(out.attempt)
	}
	return e.relay(out.attempt)
}

// fieldBuffers are for the fields of exchanges.
var fieldBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, 2<<10)) }}

// forgetFields gives the fields' buffer back: nothing is sent any more.
func (e *exchange) forgetFields() {
	if *e.buffer = e.fields; cap(e.fields) <= 16<<10 {
		fieldBuffers.Put(e.buffer)
	}
	e.fields, e.buffer = nil, nil
}

// outcome is what became of trying to get a request to its owner: an answer to
// relay, or a refusal.
type outcome struct {
	*attempt
	err error
	// refused: the answer is an in-band refusal, and there is no other place
	// for the id as yet.
	refused bool
}

// moving reports whether the request may be held and tried again.
func (o *outcome) moving() bool {
	if o.err != nil {
		return isMoving(o.err)
	}
	return o.refused
}

// try sends the request to the owner, which it looks up if it is not given, and
// to a second worker if that one refuses the id.
func (e *exchange) try(rt route) outcome {
	e.tried = route{}
	if rt.lease == nil {
		var err error
		if rt, err = e.lookUp(e.call.ask); err != nil {
			if e.r.Context().Err() != nil {
				err = e.gone()
			}
			return outcome{err: err}
		}
	}
	a, err := e.deliver(rt)
	if err != nil {
		return outcome{err: err}
	}
	refused := e.refusedInBand(a)
	if refused {
		first := a
		if a, refused, err = e.sendElsewhere(first); err != nil {
			return outcome{err: err}
		}
		if a == first {
			refused = refused && !e.bare(a) // it may be the application's: nothing waits for another
		} else {
			if refused = e.refusedInBand(a); refused && e.givesUp(a) {
				e.free(a.refusal(), a.lease.Hostname) // its row must not stay
			}
		}
	}
	notReady := a.resp.Status == http.StatusForbidden && a.detail() == wire.DetailInvalidAttestation
	switch {
	case a.fault != nil:
		err = e.lost(a, a.fault)
	case notReady:
		// It has not read its acknowledgement yet, or is another process on
		// the same port.
		err = moving("the owner is not ready", time.Second).because(reasonOwnerNotReady)
	default:
		return outcome{attempt: a, refused: refused}
	}
	a.close()
	return outcome{err: err}
}

// refuse answers in place of a worker.
func (e *exchange) refuse(err error) {
	e.begin()
	if e.body != nil && !e.body.Started() {
		leaveRest(e.w, e.r)
	}
	e.seen.refused(err)
	e.x.refuse(e.w, e.r, e.call.namespace, err)
	e.finish(true)
	e.trail.refused(err)
}

// release gives back what the exchange has had of the node's limits.
func (e *exchange) release() {
	e.awaiting.stop()
	e.writing.stop()
	e.x.p.limiter.free(e.kept)
	e.forgetFields()
	e.seen.take(e)
}

// writes returns what bounds the waits for the client to read, which is made
// when it is needed. It is for one goroutine at a time.
func (e *exchange) writes() *stall {
	if e.writing == nil {
		e.writing = newStall(e.x.p.opts.Limits.WritePause, func() {
			e.unread.Store(true)
			_ = e.rc.SetWriteDeadline(longAgo)
		})
	}
	return e.writing
}

// begin says that the answer begins: nothing informational may come after it,
// and the client may take its time with what is left of the body, as it may in a
// conversation.
func (e *exchange) begin() {
	e.awaiting.stop()
	e.mu.Lock()
	e.begun = true
	e.mu.Unlock()
	if e.body != nil && e.r.ProtoMajor == 1 && (e.sending || e.body.Started()) && !e.body.Ended() {
		// A server that means to use the connection again would read the rest
		// of the body away from us now. And what the client still sends must
		// not be taken for its next request.
		e.w.Header()[headerConnection] = []string{"close"}
	}
}

// inform passes an informational answer on.
func (e *exchange) inform(status int, header upstream.Header) {
	if status == http.StatusContinue || !e.r.ProtoAtLeast(1, 1) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// The server sends its 100 when the body is read first, and minds nobody
	// else who is writing.
	if e.begun || e.expects && e.asked {
		return
	}
	// The server takes the header from the same map as that of the answer,
	// where others may have put something already.
	h := e.w.Header()
	kept := h.Clone()
	clear(h)
	e.writes().watch()
	if e.r.ProtoMajor == 2 && e.body != nil && !e.body.Started() && !e.invited {
		e.invited = true
		// The server leaves its own out after anything else, and hides whether the
		// client waits for one.
		e.w.WriteHeader(http.StatusContinue)
	}
	copyFields(h, header)
	e.w.WriteHeader(status)
	e.writing.rest()
	clear(h)
	maps.Copy(h, kept)
}

// tooSlow ends a read of the client's body.
func (e *exchange) tooSlow() {
	e.slow.Store(true)
	_ = e.rc.SetReadDeadline(longAgo)
}

// gone answers a request whose context has ended: also because its body did not
// come in time, which to the server is as good as a client that has left.
func (e *exchange) gone() error {
	if e.slow.Load() || e.body != nil && errors.Is(e.body.Err(), os.ErrDeadlineExceeded) {
		return clientFault(os.ErrDeadlineExceeded)
	}
	return gone(e.r)
}

// chunkRead is the most that is read at once of a body in chunks, in bytes. The server
// waits until a read is full, or a chunk is over: what comes slowly within a long one waits
// for so much, and a client that sends so much in a BodyPause does not pause.
const chunkRead = 64 << 10

// source is the client's body.
type source struct{ e *exchange }

func (s source) Read(p []byte) (int, error) {
	s.e.mu.Lock()
	s.e.asked = true
	s.e.mu.Unlock()
	s.e.awaiting.watch()
	defer s.e.awaiting.rest()
	if r := s.e.r; r.ProtoMajor == 1 && r.ContentLength < 0 {
		p = p[:min(len(p), chunkRead)]
	}
	n, err := s.e.r.Body.Read(p)
	s.e.in.Add(int64(n))
	return n, err
}

// finish ends the reading of the client's body: nothing may read it after the
// handler. whole says that the client has got its answer. All attempts must
// have been closed.
func (e *exchange) finish(whole bool) {
	if e.body == nil {
		return
	}
	switch {
	case e.body.Ended():
		e.body.Stop()
	case !whole || e.r.ProtoMajor != 1:
		if e.rc.SetReadDeadline(longAgo) == nil { // else the server ends the read
			e.body.Stop()
		}
	case e.body.Started():
		_ = e.flush() // for no longer than any other write may wait
		if e.rc.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
			e.body.Drain(lingerBytes)
		}
	}
}

// cut ends an answer that has begun so that it cannot be taken for whole.
func (e *exchange) cut() {
	e.finish(false)
	if !e.r.ProtoAtLeast(1, 1) {
		// An answer without a length ends like a whole one, unless the
		// connection is reset.
		if conn, _, err := e.rc.Hijack(); err == nil {
			reset(conn)
		}
	}
	panic(http.ErrAbortHandler)
}
