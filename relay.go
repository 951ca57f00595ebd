package pinboard

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/quiet"
)

const (
	// headDelay is how long the head of an answer of known length waits to be
	// sent together with the beginning of its body.
	headDelay = 5 * time.Millisecond
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
		e.x.p.leases.stream(a.flow, func() { a.flow.cancel(errStreamEnds) })
	}
	release := e.unblock(a.ctx)
	err := e.copyBody(a)
	release()
	ended := context.Cause(a.ctx)
	trailers := a.resp.Trailer
	a.close()
	switch {
	case err == nil:
		e.writeTrailers(announced, trailers)
	case errors.Is(ended, errStreamEnds):
	default:
		e.logCut(a, err)
		e.cut()
	}
	e.finish(true)
}

// writeHead begins the answer. It returns the names of the trailers that it
// announced.
func (e *exchange) writeHead(resp *http.Response) (announced []string) {
	h := e.w.Header()
	copyEndToEnd(h, resp.Header)
	if _, ok := resp.Header["Content-Type"]; !ok {
		h["Content-Type"] = nil // else the server would guess one
	}
	for name := range resp.Trailer {
		if trailer(name) {
			announced = append(announced, name)
		}
	}
	if len(announced) > 0 {
		slices.Sort(announced)
		h[headerTrailer] = []string{strings.Join(announced, ", ")}
	}
	e.w.WriteHeader(resp.StatusCode)
	return announced
}

// writeTrailers has the server send the trailers after the body.
func (e *exchange) writeTrailers(announced []string, trailers http.Header) {
	h := e.w.Header()
	for _, name := range announced {
		delete(h, name) // a header of the same name is no trailer
	}
	passed := http.Header{}
	copyTrailers(passed, trailers)
	for name, values := range passed {
		if len(values) > 0 {
			h[http.TrailerPrefix+name] = values
		}
	}
}

// unblock has writes to the client end when the context does: a client that
// does not read must not hold a request that was cut. release takes that back.
func (e *exchange) unblock(ctx context.Context) (release func()) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		deadline := longAgo
		if errors.Is(context.Cause(ctx), errStreamEnds) {
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

// copyBody passes the body on, every read of it at once. What is not a
// clientError is the worker's failing.
func (e *exchange) copyBody(a *attempt) error {
	resp := a.resp
	buf := hop.GetBuffer(resp.ContentLength)
	defer buf.Put()
	flushed := e.flushHead(resp)
	silent := newStall(e.x.p.opts.Limits.Silence, func() { a.flow.cancel(errSilent) })
	defer silent.stop()
	for {
		silent.watch()
		n, err := resp.Body.Read(buf.Space())
		silent.rest()
		flushed()
		if n > 0 {
			if err := e.write(buf.Space()[:n]); err != nil {
				return err
			}
			buf.Took(n)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		if err := e.flush(); err != nil {
			return err
		}
	}
}

func (e *exchange) write(p []byte) error {
	e.writing.watch()
	defer e.writing.rest()
	if _, err := e.w.Write(p); err != nil {
		return &clientError{err}
	}
	return nil
}

func (e *exchange) flush() error {
	e.writing.watch()
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
func (e *exchange) flushHead(resp *http.Response) (written func()) {
	switch {
	case resp.ContentLength < 0 && e.r.Method != http.MethodHead:
		_ = e.flush()
		return func() {}
	case resp.ContentLength <= 0 || e.r.Method == http.MethodHead:
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
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errOwnerEnded), errors.Is(cause, errNodeStops), errors.Is(cause, errSilent):
		e.x.info("an answer was cut", &e.call, a.lease, zap.Error(cause))
	case client || e.r.Context().Err() != nil:
		e.x.debug("the client left during the answer", &e.call, a.lease)
	default:
		e.x.info("the worker broke its answer off", &e.call, a.lease, zap.Error(quiet.Transport(err)))
	}
}
