package pinboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/quiet"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// attempt is a request as sent to one worker, and its answer.
type attempt struct {
	route
	flow *flow
	ctx  context.Context // ends with the client or with the owner's session
	done func()
	conn net.Conn // what it is sent on, nil if there was no connection
	// reach tells, of each connection that the transport got for the request,
	// what had been written to it before.
	reach []reach
	body  *hop.Reader // nil without a body
	resp  *http.Response
	// fault is set if the answer broke off before any of it was relayed.
	fault error
	// late bounds the wait for the answer's header.
	late *stall
	// informed is the number of informational answers so far.
	informed int
}

// reach is a connection, and how much had been written to it.
type reach struct {
	conn   *workerConn
	before int64
}

// sent reports whether anything of the request may have left this process. The
// transport gets a second connection when the first was closed under it. To be
// asked only after the transport has given the request up.
func (a *attempt) sent() bool {
	for _, r := range a.reach {
		// One that is open may be written to yet.
		if r.conn == nil || !r.conn.closed.Load() || r.conn.written.Load() > r.before {
			return true
		}
	}
	return false
}

// written reports whether anything of the request was written so far.
func (a *attempt) written() bool {
	return slices.ContainsFunc(a.reach, func(r reach) bool { return r.conn == nil || r.conn.written.Load() > r.before })
}

// send sends the request to the owner, once, and waits for the answer's header.
// The error is a refusal for the client; the attempt is closed then.
func (e *exchange) send(rt route) (*attempt, error) {
	e.tried = rt
	a := &attempt{route: rt}
	a.flow, a.ctx, a.done = e.x.p.leases.open(e.r.Context(), rt.lease)
	a.late = newStall(e.answerTime(), func() { a.flow.cancel(errAnswerLate) })
	defer a.late.stop()
	req, err := e.request(a)
	if err == nil && rt.over() {
		err = errRouteOver // this process was stopped for long, most likely
	}
	if err == nil {
		a.late.watch()
		if a.resp, err = e.x.transport.RoundTrip(req); err != nil {
			err = e.lost(a, err)
		}
	}
	if err != nil {
		a.close()
		return nil, err
	}
	return a, nil
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
	if a.body != nil {
		_ = a.body.Close()
	}
	if a.resp != nil {
		_ = a.resp.Body.Close()
	}
	a.done()
}

// request makes the one request that goes to the worker.
func (e *exchange) request(a *attempt) (*http.Request, error) {
	claims := e.call.claims
	claims.Audience = a.lease.ID
	attestation, err := attest.Mint(a.lease.Secret, claims, time.Now())
	if err != nil {
		return nil, err
	}
	ctx := a.ctx
	if a.lease.BackendAddr != "" {
		ctx = withBackend(ctx, a.lease.BackendHosts, a.lease.BackendAddr)
	}
	req := (&http.Request{
		Method:     e.r.Method,
		URL:        workerURL(a.lease.AdvertiseURL, e.uri),
		Proto:      "HTTP/1.1",
		ProtoMajor: 1, ProtoMinor: 1,
		Header: maps.Clone(e.header),
		Host:   e.r.Host,
	}).WithContext(httptrace.WithClientTrace(ctx, e.trace(a)))
	req.Header[wire.HeaderEpoch] = []string{strconv.FormatInt(a.epoch, 10)}
	req.Header[wire.HeaderAttestation] = []string{attestation}
	if e.body != nil {
		if err := e.attachBody(req, a); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// workerURL puts a raw path and query behind an advertise URL so that they are
// written byte for byte: an opaque part is not escaped anew.
func workerURL(advertised, uri string) *url.URL {
	scheme, rest, _ := strings.Cut(advertised, "://")
	host, base, deep := strings.Cut(rest, "/")
	if deep {
		base = strings.TrimRight("/"+base, "/")
	}
	path, query, has := strings.Cut(uri, "?")
	return &url.URL{Scheme: scheme, Host: host, Opaque: base + path, RawQuery: query, ForceQuery: has}
}

// attachBody has the transport send the client's body, with the client's length
// and trailers.
func (e *exchange) attachBody(req *http.Request, a *attempt) error {
	trailers := maps.Clone(e.trailers)
	open := func() (io.ReadCloser, error) {
		body, err := e.body.Open()
		if err != nil {
			return nil, fmt.Errorf("send the body: %w", err)
		}
		body.OnEOF(func() { copyTrailers(trailers, e.r.Trailer) })
		a.body = body
		return awaited{body, a.late}, nil
	}
	body, err := open()
	if err != nil {
		return err
	}
	req.Body = body
	// For the transport, when it has got a connection that was closed before
	// anything was sent.
	req.GetBody = func() (io.ReadCloser, error) {
		e.body.Suspend()
		return open()
	}
	req.ContentLength = e.r.ContentLength
	if len(e.trailers) > 0 {
		req.ContentLength = -1 // only a chunked body has trailers
	}
	if req.ContentLength < 0 {
		// Said outright, else the transport would wait for the first byte to
		// see whether there is a body.
		req.TransferEncoding = []string{"chunked"}
		req.Trailer = trailers
	}
	// A worker that answers without having asked for the body leaves the
	// connection in doubt. When it is not used again, the transport does not
	// read the body, which would tell the client to send it.
	req.Close = e.expects
	return nil
}

// trace learns what the transport does not return.
func (e *exchange) trace(a *attempt) *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			a.conn = info.Conn
			conn := workerConnOf(info.Conn)
			r := reach{conn: conn}
			if conn != nil {
				if info.Reused && a.written() {
					// The transport tries a safe request on one kept connection
					// after the other, and the worker may carry it out each
					// time. Once more is enough, on a new one.
					_ = conn.Close()
				} else if info.Reused {
					conn.atRest(a.ctx)
				}
				r.before = conn.written.Load()
			}
			a.reach = append(a.reach, r)
			if a.body == nil {
				return
			}
			e.sending = true
			if conn != nil {
				conn.carry(a.body)
			}
		},
		Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
			if a.informed++; a.informed > e.x.p.opts.Limits.Informational {
				return errTooInformative
			}
			a.late.watch()
			e.inform(status, http.Header(header))
			return nil
		},
	}
}

// lost returns what to tell the client when the worker has not answered.
func (e *exchange) lost(a *attempt, err error) error {
	switch cause := context.Cause(a.ctx); {
	case e.r.Context().Err() != nil:
		e.x.debug("the client left", &e.call, a.lease)
		return e.gone()
	case errors.Is(cause, errAnswerLate) && a.sent():
		return e.tooLate(a, cause)
	case errors.Is(cause, errAnswerLate):
		return notNow("the owner does not answer", time.Second)
	case cause != nil && a.sent():
		// Not a 503, which clients repeat by themselves: the owner may be at
		// work on it.
		return refuse(http.StatusBadGateway, "the owner's answer could not be waited for: "+cause.Error())
	case errors.Is(cause, errOwnerEnded):
		ref := notNow("the owner's session has ended", time.Second)
		ref.moving = true
		return ref
	case cause != nil:
		return notNow("this node is shutting down", time.Second)
	}
	if e.body != nil {
		if fault := e.body.Err(); fault != nil && fault != io.EOF {
			return clientFault(fault)
		}
	}
	if _, ok := errors.AsType[*dialError](err); ok || a.conn == nil {
		// Nothing was sent. The id stays where it is all the same: the owner
		// may be serving others (protocol §5).
		e.tell("the owner does not accept a connection", a.lease, zap.Error(quiet.Transport(err)))
		ref := ownerDown(e.x.p.leases.left(a.lease))
		ref.moving = !a.sent()
		return ref
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return e.tooLate(a, err)
	}
	e.x.info("the connection to the owner was lost", &e.call, a.lease, zap.Error(quiet.Transport(err)))
	return refuse(http.StatusBadGateway, "the connection to the owner was lost")
}

var errTooInformative = errors.New("too many informational answers")

// tooLate answers for a worker that does not read the request or does not answer
// it, and may yet do both.
func (e *exchange) tooLate(a *attempt, err error) error {
	e.x.info("the owner keeps a request waiting for too long", &e.call, a.lease, zap.Error(err))
	return refuse(http.StatusGatewayTimeout, "the owner has not answered in time")
}

// clientFault answers for a body that could not be read.
func clientFault(fault error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](fault); ok {
		return refuse(http.StatusRequestEntityTooLarge, "the body is too long")
	}
	if errors.Is(fault, os.ErrDeadlineExceeded) {
		return refuse(http.StatusRequestTimeout, "the body took too long")
	}
	return refuse(http.StatusBadRequest, "the body could not be read")
}
