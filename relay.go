package pinboard

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/upstream"
)

const (
	// headDelay is how long the head of an answer of known length waits to be
	// sent together with the beginning of its body.
	headDelay = 5 * time.Millisecond
	// atOnce is the longest body, in bytes, that is written without a thought of
	// the client not reading: the server has room for it.
	atOnce = 1 << 10
	// endTime is how long a stream that ends in good order may take for it.
	endTime = 2 * time.Second
)

// errStreamEnds is the cause of a cancelled stream that is to end as if its
// worker had ended it.
var errStreamEnds = errors.New("this node is shutting down, and the stream ends")

// relay passes the worker's answer on, as it comes.
func (e *exchange) relay(a *attempt) {
	e.begin()
	announced := e.writeHead(a.resp)
	if isEventStream(a.resp.Header) {
		// A stream lives longer than the host's limits for plain answers.
		_ = e.rc.SetReadDeadline(time.Time{})
		_ = e.rc.SetWriteDeadline(time.Time{})
		e.x.p.leases.stream(&a.flow, func() { a.flow.cancel(errStreamEnds) })
	}
	err := e.copyBody(a)
	ended := a.flow.cause()
	e.trail.relayed(e, a, err)
	a.close()
	switch {
	case err == nil:
		e.writeTrailers(announced, a.resp.Trailer)
	case errors.Is(ended, errStreamEnds):
	default:
		e.logCut(a, err)
		e.cut()
	}
	e.finish(true)
}

// writeHead begins the answer. It returns the names of the trailers that it
// announced.
func (e *exchange) writeHead(resp *upstream.Response) (announced []string) {
	h := e.w.Header()
	copyFields(h, resp.Header)
	if !resp.Header.Has("Content-Type") {
		h["Content-Type"] = nil // else the server would guess one
	}
	announced = slices.DeleteFunc(resp.Announced(), func(name string) bool { return !trailer(name) })
	if len(announced) > 0 {
		h[headerTrailer] = []string{strings.Join(announced, ", ")}
	}
	e.w.WriteHeader(resp.Status)
	return announced
}

// writeTrailers has the server send the trailers after the body.
func (e *exchange) writeTrailers(announced []string, trailers upstream.Header) {
	h := e.w.Header()
	for _, name := range announced {
		delete(h, name) // a header of the same name is no trailer
	}
	for _, f := range trailers {
		if trailer(f.Name) {
			name := http.TrailerPrefix + f.Name
			h[name] = append(h[name], f.Value)
		}
	}
}

// unblock has writes to the client end when the flow does: a client that
// does not read must not hold a request that was cut. release takes that back.
func (e *exchange) unblock(f *flow) (release func()) {
	f.follow()
	fired := make(chan struct{})
	stop := f.AfterFunc(func() {
		defer close(fired)
		deadline := longAgo
		if errors.Is(f.cause(), errStreamEnds) {
			deadline = time.Now().Add(endTime)
		}
		_ = e.rc.SetWriteDeadline(deadline)
	})
	return func() {
		if !stop() {
			<-fired
		}
	}
}

// clientError is a failure to write to the client.
type clientError struct{ err error }

func (c *clientError) Error() string { return c.err.Error() }
func (c *clientError) Unwrap() error { return c.err }

// copyBody passes the body on, every piece of it at once. What is not a
// clientError is the worker's failing.
func (e *exchange) copyBody(a *attempt) error {
	piece, err := a.ahead, a.aheadErr
	if len(piece) == 0 && a.resp.Ready() {
		piece, err = a.resp.Next()
	}
	if err == io.EOF && len(piece) <= atOnce {
		return e.put(piece) // the server sends it when the handler has returned
	}
	defer e.unblock(&a.flow)()
	flushed := e.flushHead(a.resp, len(piece) > 0)
	silent := newStall(e.x.p.opts.Limits.Silence, func() { a.flow.cancel(errSilent) })
	defer silent.stop()
	for {
		if len(piece) == 0 && err == nil {
			silent.watch()
			piece, err = a.resp.Next()
			silent.rest()
		}
		flushed()
		if len(piece) > 0 {
			if err := e.write(piece); err != nil {
				return err
			}
			piece = nil
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if !a.resp.Ready() {
			if err := e.flush(); err != nil {
				return err
			}
		}
	}
}

func (e *exchange) write(p []byte) error {
	e.writes().watch()
	defer e.writing.rest()
	return e.put(p)
}

// put is write for what the server has room for.
func (e *exchange) put(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if _, err := e.w.Write(p); err != nil {
		return &clientError{err}
	}
	return nil
}

func (e *exchange) flush() error {
	e.writes().watch()
	defer e.writing.rest()
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return &clientError{err}
	}
	return nil
}

// flushHead sends the head of an answer whose body may be long in coming: at
// once if its length is not known, else after a moment, so that a short answer
// is one packet. The function that it returns ends that wait, and must be
// called before anything is written.
func (e *exchange) flushHead(resp *upstream.Response, begun bool) (written func()) {
	switch {
	case resp.Length == 0 || begun:
		return func() {}
	case resp.Length < 0:
		_ = e.flush()
		return func() {}
	}
	fired := make(chan struct{})
	timer := time.AfterFunc(headDelay, func() {
		defer close(fired)
		_ = e.flush()
	})
	done := false
	return func() {
		if !done && !timer.Stop() {
			<-fired
		}
		done = true
	}
}

// logCut says why an answer is not whole.
func (e *exchange) logCut(a *attempt, err error) {
	_, client := errors.AsType[*clientError](err)
	switch cause := a.flow.cause(); {
	case errors.Is(cause, errOwnerEnded), errors.Is(cause, errNodeStops), errors.Is(cause, errSilent):
		e.x.info("an answer was cut", &e.call, a.lease, zap.Error(cause))
	case client || e.r.Context().Err() != nil:
		e.x.debug("the client left during the answer", &e.call, a.lease)
	default:
		e.x.info("the worker broke its answer off", &e.call, a.lease, zap.Error(tellable(err)))
	}
}
