package pinboard

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/hop"
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
	x    *proxy
	w    http.ResponseWriter
	rc   *http.ResponseController
	r    *http.Request
	call call

	uri      string      // what is asked for, raw: path and query
	header   http.Header // for the worker, but for what each attempt adds
	upgrade  bool        // the client asks for a WebSocket
	body     *hop.Body   // nil without one
	trailers http.Header // those that the client announces, without values
	expects  bool        // the client holds the body back until it gets a 100
	sending  bool        // a worker is being sent the body, or was

	// mu guards what happens before the answer on the transport's goroutines.
	mu    sync.Mutex
	begun bool // the answer has begun
	asked bool // the client's body has been read from
}

func newExchange(x *proxy, w http.ResponseWriter, r *http.Request, t target, c call) *exchange {
	e := &exchange{
		x: x, w: w, rc: http.NewResponseController(w), r: r, call: c,
		uri: t.path, upgrade: wantsWebSocket(r),
		header: proxies(x.p.opts.TrustedProxies).workerHeader(r, c.who),
	}
	query, has := t.query, t.hasQuery
	if has && c.who != nil && len(c.who.HideQuery) > 0 {
		query = withoutParameters(t.query, c.who.HideQuery)
		has = query != "" || t.query == ""
	}
	if has {
		e.uri += "?" + query
	}
	if e.upgrade {
		e.header[headerConnection] = []string{headerUpgrade}
		e.header[headerUpgrade] = r.Header[headerUpgrade]
	}
	if hasBody(r) {
		e.body = hop.NewBody(source{e}, x.p.opts.ReplayBuffer)
		e.expects = r.ProtoAtLeast(1, 1) && r.Header.Get(headerExpect) != ""
		// Read now: the server fills them in while the body is read.
		e.trailers = make(http.Header)
		copyTrailers(e.trailers, r.Trailer)
	}
	if !e.expects {
		delete(e.header, headerExpect)
	}
	return e
}

// run sends the request to the owner and relays the answer.
func (e *exchange) run(rt route) {
	counters := &e.x.p.counters
	counters.proxying.Add(1)
	defer counters.proxying.Add(-1)
	a, err := e.send(rt)
	if err != nil {
		e.refuse(err)
		return
	}
	if e.refusedInBand(a) {
		first := a
		if a, err = e.sendElsewhere(first); err != nil {
			e.refuse(err)
			return
		}
		if a != first && e.refusedInBand(a) && e.givesUp(a) {
			e.free(a.refusal(), a.lease.Hostname) // this one is passed on, but its row must not stay
		}
	}
	defer a.close()
	notReady := a.resp.StatusCode == http.StatusForbidden && a.detail() == wire.DetailInvalidAttestation
	switch {
	case a.fault != nil:
		err = e.lost(a, a.fault)
		a.close()
		e.refuse(err)
	case notReady:
		// It has not read its acknowledgement yet, or is another process on
		// the same port.
		a.close()
		e.refuse(notNow("the owner is not ready", time.Second))
	case a.resp.StatusCode == http.StatusSwitchingProtocols:
		e.switchProtocols(a)
	default:
		e.relay(a)
	}
}

// refuse answers in place of a worker.
func (e *exchange) refuse(err error) {
	e.begin()
	e.x.p.writeRefusal(e.w, e.r, err)
	e.finish(true)
}

// begin says that the answer begins: nothing informational may come after it.
func (e *exchange) begin() {
	e.mu.Lock()
	e.begun = true
	e.mu.Unlock()
	if e.sending && e.r.ProtoMajor == 1 && !e.body.Ended() {
		// A server that means to use the connection again would read the rest
		// of the body away from us now. And what the client still sends must
		// not be taken for its next request.
		e.w.Header()[headerConnection] = []string{"close"}
	}
}

// inform passes an informational answer on.
func (e *exchange) inform(status int, header http.Header) {
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
	copyEndToEnd(h, header)
	e.w.WriteHeader(status)
	clear(h)
	maps.Copy(h, kept)
}

// source is the client's body.
type source struct{ e *exchange }

func (s source) Read(p []byte) (int, error) {
	s.e.mu.Lock()
	s.e.asked = true
	s.e.mu.Unlock()
	return s.e.r.Body.Read(p)
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
		_ = e.rc.Flush()
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
