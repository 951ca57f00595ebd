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

// relay passes the worker's answer on, as it comes. An event stream may be left to
// go on apart from the request.
func (e *exchange) relay(a *attempt) (apart *detached) {
	e.begin()
	stream := isEventStream(a.resp.Header)
	if stream {
		e.streams()
	}
	e.seen.answered(a.resp.Status)
	if stream && e.detaches(a) {
		return e.detach(a)
	}
	announced := e.fillHead(a.resp)
	e.w.WriteHeader(a.resp.Status)
	if stream {
		// A stream lives longer than the host's limits for plain answers.
		_ = e.rc.SetReadDeadline(time.Time{})
		_ = e.rc.SetWriteDeadline(time.Time{})
		e.x.p.leases.stream(&a.flow, func() { a.flow.cancel(errStreamEnds) })
	}
	err := e.copyBody(a)
	ended := a.flow.cause()
	e.trail.pair(a).relayed(e, a, err)
	a.close()
	switch {
	case err == nil:
		if len(announced) > 0 || len(a.resp.Trailer) > 0 {
			fillTrailers(e.w.Header(), announced, nominated(a.resp.Header), a.resp.Trailer)
		}
	case errors.Is(ended, errStreamEnds):
	default:
		e.x.wasCut(e.seen, cutOf(&a.flow, err, e.unread.Load()))
		e.x.logCut(&e.call, &a.flow, err)
		e.cut()
	}
	e.finish(true)
	return nil
}

// fillHead fills in the header of the answer. It returns the names of the trailers
// that it announces.
func (e *exchange) fillHead(resp *upstream.Response) (announced []string) {
	h := e.w.Header()
	h["Content-Type"] = nil // the server would guess one if it was not there
	copyFields(h, resp.Header)
	if announced = resp.Announced(); len(announced) > 0 {
		perHop := nominated(resp.Header)
		announced = slices.DeleteFunc(announced, func(name string) bool { return !trailer(name, perHop) })
	}
	if len(announced) > 0 {
		h[headerTrailer] = []string{strings.Join(announced, ", ")}
	}
	return announced
}

// fillTrailers has the trailers sent after the body.
func fillTrailers(h http.Header, announced []string, perHop map[string]struct{}, trailers upstream.Header) {
	for _, name := range announced {
		delete(h, name) // a header of the same name is no trailer
	}
	for _, f := range trailers {
		if trailer(f.Name, perHop) {
			name := http.TrailerPrefix + f.Name
			h[name] = append(h[name], f.Value)
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
	p := &passing{to: e, flow: &a.flow, resp: a.resp, piece: piece, err: err, stride: minStride}
	if serversOwn(e.w) {
		p.pulls = e.x.pulls
	}
	p.begin(e.x.p.opts.Limits.Silence)
	defer p.end()
	for {
		if over, err := p.round(); over {
			return err
		}
	}
}

// finishBy has all writes to the client end then.
func (e *exchange) finishBy(t time.Time) { _ = e.rc.SetWriteDeadline(t) }

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
	n, err := e.w.Write(p)
	e.seen.wrote(int64(n))
	if err != nil {
		return &clientError{err}
	}
	return nil
}

// pull implements puller, if the writer is the server's own.
func (e *exchange) pull(src io.Reader) (n int64, err error) {
	e.writes().watch()
	defer e.writing.rest()
	n, err = e.w.(io.ReaderFrom).ReadFrom(src) // which the server's has
	e.seen.wrote(n)
	return n, err
}

func (e *exchange) flush() error {
	e.writes().watch()
	defer e.writing.rest()
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return &clientError{err}
	}
	return nil
}

// logCut says why an answer is not whole.
func (x *proxy) logCut(c *call, f *flow, err error) {
	_, client := errors.AsType[*clientError](err)
	switch cause := f.cause(); {
	case errors.Is(cause, errOwnerEnded), errors.Is(cause, errNodeStops), errors.Is(cause, errSilent):
		x.info("an answer was cut", c, f.lease, zap.Error(cause))
	case client || errors.Is(cause, errClientGone) || f.Context.Err() != nil:
		x.debug("the client left during the answer", c, f.lease)
	default:
		x.info("the worker broke its answer off", c, f.lease, zap.Error(tellable(err)))
	}
}
