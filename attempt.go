package pinboard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/rounds"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// attempt is a request as sent to one worker, and its answer.
type attempt struct {
	route
	flow flow // ends with the client or with the owner's session
	req  upstream.Request
	body *hop.Reader // nil without a body, and with one that is sent with the head
	resp *upstream.Response
	// ahead is what detail has read of the answer's body, and aheadErr io.EOF
	// if that is all.
	ahead    []byte
	aheadErr error
	// fault is set if the answer broke off before any of it was relayed.
	fault error
	// late bounds the wait for the answer's header; nil when that has come, or for
	// no attempt of an exchange.
	late *late
	// patience is how long the worker may take to begin its answer, or to end an
	// error that is looked into.
	patience time.Duration
	// informed is the number of informational answers so far.
	informed int
	leg      *leg // nil without a TracerProvider
	closed   bool
}

// send sends the request to the owner, once, and waits for the answer's header.
// The error is a refusal for the client; the attempt is closed then.
func (e *exchange) send(rt route) (*attempt, error) {
	e.tried = rt
	e.seen.sent()
	a := &e.first
	if e.sent != nil {
		a = new(attempt)
	}
	a.route, a.patience = rt, e.answerTime()
	e.x.p.leases.open(e.r.Context(), &a.flow, rt.lease)
	e.sent = a
	a.late = e.x.lates.get(&a.flow, a.patience)
	defer e.awaited(a)
	a.leg = e.trail.attempt(e, rt)
	begun, err := e.request(a)
	if err == nil && rt.over() {
		err = errRouteOver // the body was long in coming, or this process was stopped
		a.leg.failed(e, a, err)
	}
	if err == nil {
		a.late.watchSince(begun)
		if a.resp, err = e.x.pool.Do(&a.flow, &a.req); err != nil {
			a.leg.failed(e, a, err)
			err = e.lost(a, err)
		} else {
			a.leg.answered(a.resp)
			e.sending = e.sending || e.body != nil
		}
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// awaited ends the wait for the answer's header.
func (e *exchange) awaited(a *attempt) {
	a.late.stop()
	if a.body == nil { // else whoever sends it may have a use for it yet
		e.x.lates.put(a.late)
	}
	a.late = nil
}

// late bounds the wait for an answer, and has the flow follow its client if that
// takes more than a moment.
type late struct {
	stall
	flow *flow // guarded by stall.mu
}

// lates keeps what bounds waits for the next request. A timer that fires late for a
// former one does nothing to it: see stall.fire.
type lates struct {
	pool   sync.Pool
	rounds rounds.Rounds[*stall]
}

// never is for no limit: some 146 years.
const never time.Duration = 1 << 62

// get returns one at rest; 0 is no limit.
func (l *lates) get(f *flow, limit time.Duration) *late {
	one, ok := l.pool.Get().(*late)
	if !ok {
		one = &late{stall: stall{rounds: &l.rounds}}
		one.end = func() { one.flow.cancel(errAnswerLate) }
		one.early = func() { one.flow.follow() }
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.flow, one.limit, one.over = f, cmp.Or(limit, never), false
	return one
}

// put takes one back that was stopped and that nobody will use.
func (l *lates) put(one *late) {
	one.mu.Lock()
	one.flow = nil
	one.mu.Unlock()
	l.pool.Put(one)
}

// answerTime is how long a worker may take to begin its answer.
func (e *exchange) answerTime() time.Duration {
	if e.upgrade {
		return e.x.p.opts.Limits.UpgradeTimeout
	}
	return e.x.p.opts.Limits.AnswerTimeout
}

// close ends the attempt, whether or not its answer was read. It may be called
// twice.
func (a *attempt) close() {
	if a.closed {
		return
	}
	a.closed = true
	if a.body != nil {
		_ = a.body.Close()
	}
	if a.resp != nil {
		a.resp.Close()
	}
	a.flow.close()
	a.leg.end()
}

// request makes the one request that goes to the worker, and returns when that was.
func (e *exchange) request(a *attempt) (made time.Time, err error) {
	a.req = upstream.Request{
		Origin: a.lease.origin,
		Method: e.r.Method,
		Target: e.uri,
		Host:   e.r.Host,
		Switch: e.upgrade,
		Until:  a.until,
		Inform: func(status int, header upstream.Header) error { return a.inform(e, status, header) },
		// It may be sent twice, like any request of which a client lost the
		// answer.
		Repeatable: e.repeatable(),
		Renewer:    e,
	}
	if a.lease.BackendAddr != "" {
		b := &backend{rules: a.lease.BackendHosts, pinned: a.lease.BackendAddr}
		a.req.Within, a.req.Allowed = b.within, b.check
	}
	made = a.flow.opened
	if e.body != nil {
		if err := e.attachBody(&a.req, a); err != nil {
			return time.Time{}, err
		}
		made = time.Now() // it may have been waited for
	}
	a.req.Fields, err = e.fieldsFor(a, made)
	return made, err
}

// fieldsFor returns the fields of the request, attested at the given time. That must
// be about when it is sent: to a worker whose clock is ahead, an attestation may be too
// old after half a minute (protocol §5).
func (e *exchange) fieldsFor(a *attempt, now time.Time) ([]byte, error) {
	attestation, err := a.lease.attestation(e.call.claims, now)
	if err != nil {
		return nil, err
	}
	fields := append(e.fields, wire.HeaderEpoch+": "...)
	fields = append(strconv.AppendInt(fields, a.epoch, 10), "\r\n"...)
	return a.leg.inject(appendField(fields, wire.HeaderAttestation, attestation)), nil
}

// Renew attests the present attempt anew, which had to wait before it could be sent.
func (e *exchange) Renew() ([]byte, error) { return e.fieldsFor(e.sent, time.Now()) }

// repeatable reports whether a request means the same when it is sent twice. A
// key that is to make it so is the application's business: it may not know it.
func (e *exchange) repeatable() bool {
	switch e.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

// shortBody is the longest body, in bytes, that is sent with the head of its
// request, if it comes in one piece. The worker hears of the request when that
// piece is there (protocol §5).
const shortBody = 16 << 10

// attachBody has the client's body sent, with the client's length and trailers.
func (e *exchange) attachBody(req *upstream.Request, a *attempt) error {
	if n := e.r.ContentLength; 0 < n && n <= shortBody && !e.expects && len(e.trailers) == 0 {
		all, whole := e.readOnce(a)
		if whole && int64(len(all)) == n {
			req.Content = all
			return nil
		}
		if fault := e.body.Err(); fault != nil && fault != io.EOF {
			switch {
			case errors.Is(a.flow.cause(), errNodeStops):
				return notNow("this node is shutting down", time.Second)
			case e.r.Context().Err() != nil:
				return e.gone()
			}
			return clientFault(fault)
		}
	}
	a.flow.follow() // the client may be slow
	late := a.late
	open := func() (io.Reader, error) {
		body, err := e.body.Open()
		if err != nil {
			return nil, fmt.Errorf("send the body: %w", err)
		}
		trailers := make(http.Header)
		maps.Copy(trailers, e.trailers)
		req.Trailer = trailers
		body.OnEOF(func() { copyTrailers(trailers, e.r) })
		a.body = body
		return awaited{body, &late.stall}, nil
	}
	body, err := open()
	if err != nil {
		return err
	}
	req.Body = body
	req.Rewind = func() (io.Reader, error) {
		e.body.Suspend()
		_ = a.body.Close()
		return open()
	}
	req.Progress = late.watch
	req.Expect = e.expects
	req.Length = e.r.ContentLength
	if len(e.trailers) > 0 {
		req.Length = -1 // only a body in chunks has trailers
	}
	return nil
}

// readOnce is hop.Body's, ended when the node stops waiting for its requests. When
// the owner's session ends the body may still go elsewhere.
func (e *exchange) readOnce(a *attempt) (all []byte, whole bool) {
	e.setReading(true)
	defer e.setReading(false) // and waits for what follows, if that is under way
	stop := a.flow.AfterFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.reading && errors.Is(a.flow.cause(), errNodeStops) {
			_ = e.rc.SetReadDeadline(longAgo)
		}
	})
	defer stop()
	return e.body.ReadOnce(e.r.ContentLength)
}

func (e *exchange) setReading(reading bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading = reading
}

// inform passes an informational answer on, unless there have been too many.
func (a *attempt) inform(e *exchange, status int, header upstream.Header) error {
	if a.informed++; a.informed > e.x.p.opts.Limits.Informational {
		e.x.p.counters.limits.add(limitInformational, 1)
		return errTooInformative
	}
	a.late.watch()
	e.inform(status, header)
	return nil
}

// lost returns what to tell the client when the worker has not answered.
func (e *exchange) lost(a *attempt, err error) error {
	failure, ok := errors.AsType[*upstream.Error](err)
	if !ok { // of an answer that had begun
		failure = &upstream.Error{Connected: true, Sent: true}
	}
	e.sending = e.sending || e.body != nil && failure.Connected
	if errors.Is(err, upstream.ErrTooLate) && !failure.Sent {
		return errRouteOver
	}
	switch cause := a.flow.cause(); {
	case e.r.Context().Err() != nil:
		e.x.debug("the client left", &e.call, a.lease)
		return e.gone()
	case errors.Is(cause, errAnswerLate) && failure.Sent:
		return e.tooLate(a, cause)
	case errors.Is(cause, errAnswerLate):
		return notNow("the owner does not answer", time.Second).limited(e.answerLimit()).because(reasonOwnerLate)
	case cause != nil && failure.Sent:
		// Not a 503, which clients repeat by themselves: the owner may be at
		// work on it.
		return refuse(http.StatusBadGateway, "the owner's answer could not be waited for: "+cause.Error())
	case errors.Is(cause, errOwnerEnded):
		ref := notNow("the owner's session has ended", time.Second).because(reasonOwnerGone)
		ref.moving = true
		return ref
	case cause != nil:
		return notNow("this node is shutting down", time.Second).because(reasonStopping)
	}
	if e.body != nil {
		if fault := e.body.Err(); fault != nil && fault != io.EOF {
			return clientFault(fault)
		}
	}
	if errors.Is(err, upstream.ErrMalformedRequest) {
		return refuse(http.StatusBadRequest, "the request cannot be forwarded")
	}
	if failure.NoConnection {
		// Nothing was sent. The id stays where it is all the same: the owner
		// may be serving others (protocol §5).
		e.tell("the owner does not accept a connection", a.lease, zap.Error(tellable(err)))
		ref := ownerDown(e.x.p.leases.left(a.lease))
		ref.moving = !failure.Sent
		return ref
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return e.tooLate(a, err)
	}
	e.x.info("the connection to the owner was lost", &e.call, a.lease, zap.Error(tellable(err)))
	return refuse(http.StatusBadGateway, "the connection to the owner was lost")
}

var errTooInformative = errors.New("too many informational answers")

// tooLate answers for a worker that does not read the request or does not answer
// it, and may yet do both.
func (e *exchange) tooLate(a *attempt, err error) error {
	e.x.info("the owner keeps a request waiting for too long", &e.call, a.lease, zap.Error(err))
	limit := limitWritePause // it did not read
	if errors.Is(err, errAnswerLate) {
		limit = e.answerLimit()
	}
	return refuse(http.StatusGatewayTimeout, "the owner has not answered in time").limited(limit).because(reasonOwnerLate)
}

// tellable returns an error of talking with a worker as it may be logged.
func tellable(err error) error {
	if errors.Is(err, upstream.ErrMalformedAnswer) {
		return err // has nothing of the worker's
	}
	return quiet.Transport(err)
}

// clientFault answers for a body that could not be read.
func clientFault(fault error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](fault); ok {
		return errBodyTooLong
	}
	if errors.Is(fault, os.ErrDeadlineExceeded) {
		return refuse(http.StatusRequestTimeout, "the body took too long").limited(limitBodyPause)
	}
	return refuse(http.StatusBadRequest, "the body could not be read")
}
