package worker

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
)

// errLate is what a handler's writes return when the lease ended before its
// response did.
var errLate = errors.New("worker: the lease expired before the response was complete")

// errAnswered is what is left for whoever writes when the handler has panicked.
var errAnswered = errors.New("worker: the handler has panicked")

// responder is the ResponseWriter of a handler, or of the middleware before it.
// It lets no response begin past the lease, and none but a stream go on, and
// finds out what is a stream.
type responder struct {
	http.ResponseWriter
	owner   owner
	tooLate refuser // answers when it is not owned
	flight  *flight // nil for that of a middleware
	begun   bool
	stream  bool
	dropped error       // why what the handler writes is dropped, nil while it is not
	broken  bool        // dropped after it had begun: the connection is to be cut
	unused  http.Header // the handler's header once what it writes is dropped

	switching bool // the handler has answered 101, which waits for Hijack
	unable    bool // the handler has asked for a connection that it can't have

	ending  bool // the handler has returned
	ended   bool // and the owner was asked since, at endedAt
	endedAt time.Duration
}

// owner is who answers.
type owner interface {
	// owned says whether the id is this worker's, so that an answer counts, and when
	// it was asked, by the monotonic clock.
	owned() (at time.Duration, yes bool)
	// refused says whether the answer may be a refusal of the worker's own, for which
	// pinboard gives the id up: no instance has the request.
	refused() bool
	// complain logs an error of the application's.
	complain(message string, fields ...zap.Field)
}

func (r *responder) owned() bool {
	at, yes := r.owner.owned()
	if r.ending {
		r.ended, r.endedAt = true, at
	}
	return yes
}

// Unwrap lets http.ResponseController reach what is not overridden here.
func (r *responder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Header returns the response's header.
func (r *responder) Header() http.Header {
	if r.dropped != nil {
		return r.unused
	}
	return r.ResponseWriter.Header()
}

// begin decides, just before the response's header is sent, whether it may be.
func (r *responder) begin() {
	if r.begun {
		return
	}
	r.begun = true
	if r.owned() {
		if !r.owner.refused() {
			dropReserved(r.ResponseWriter.Header()) // as of an answer that is passed on
		}
		return
	}
	// The process was frozen, or cut off, while the handler ran. Another owner
	// may have answered already: this answer must not count.
	r.drop(errLate)
	clear(r.ResponseWriter.Header())
	r.tooLate(refuseLate, r.ResponseWriter)
}

// drop has all dropped that the handler writes from now on.
func (r *responder) drop(why error) { r.dropped, r.unused = why, http.Header{} }

// answer answers in place of the handler, of which nothing was sent yet.
func (r *responder) answer(ref *refusal, why error) {
	r.switching, r.dropped = false, nil
	r.begin()
	if r.dropped != nil {
		return // it is too late for that, too
	}
	clear(r.ResponseWriter.Header())
	r.drop(why)
	ref.write(r.ResponseWriter)
}

// goOn decides whether a response that has begun may go on. The server may
// still hold all of a plain one back: to complete it would be to answer now.
// Streams are cut by pinboard.
func (r *responder) goOn() {
	if r.dropped == nil && !r.stream && !r.owned() {
		r.drop(errLate)
		r.broken = true
	}
}

// WriteHeader sends the response's header.
func (r *responder) WriteHeader(status int) {
	first := !r.begun
	switch {
	case r.dropped != nil:
		return
	case status == http.StatusSwitchingProtocols && first:
		r.switchProtocols()
		return
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		r.ResponseWriter.WriteHeader(status)
		return
	}
	r.begin()
	if r.dropped != nil {
		return
	}
	r.ResponseWriter.WriteHeader(status)
	if first && isEventStream(r.Header()["Content-Type"]) {
		r.becomeStream()
	}
}

// ready comes before all that sends something of the response's body.
func (r *responder) ready() {
	if r.begun {
		r.goOn()
	} else {
		r.WriteHeader(http.StatusOK) // unless all is dropped
	}
}

// Write writes to the response's body.
func (r *responder) Write(p []byte) (int, error) {
	r.ready()
	if r.dropped != nil {
		return 0, r.dropped
	}
	return r.ResponseWriter.Write(p)
}

// WriteString is Write without a copy of the text.
func (r *responder) WriteString(text string) (int, error) {
	r.ready()
	if r.dropped != nil {
		return 0, r.dropped
	}
	return io.WriteString(r.ResponseWriter, text)
}

// ReadFrom lets the server use sendfile. It looks at the lease between the
// pieces of what it copies, as Write does.
func (r *responder) ReadFrom(src io.Reader) (int64, error) {
	r.ready()
	if r.dropped != nil {
		return 0, r.dropped
	}
	if file, limit, ok := regularFile(src); ok {
		return r.sendFile(file, limit)
	}
	return io.Copy(r.ResponseWriter, timelyReader{src, r})
}

// FlushError sends what was written; the response is a stream from now on.
func (r *responder) FlushError() error {
	r.ready()
	if r.dropped != nil {
		return r.dropped
	}
	if err := http.NewResponseController(r.ResponseWriter).Flush(); err != nil {
		return err // net/http's own, which callers know
	}
	r.becomeStream()
	return nil
}

// Flush is FlushError for http.Flusher.
func (r *responder) Flush() { _ = r.FlushError() }

// contain answers for a handler that panicked. It is to be deferred. It panics with
// http.ErrAbortHandler, for the server, if something was sent already, or if the handler
// did that itself.
func (r *responder) contain() {
	fault := recover()
	if fault == nil {
		return
	}
	if fault == http.ErrAbortHandler {
		panic(fault)
	}
	r.owner.complain("handler panicked", zap.Any("panic", fault), zap.Stack("stack"))
	if r.begun {
		panic(http.ErrAbortHandler)
	}
	r.ending = true
	r.answer(refuseInternal, errAnswered)
}

// finish writes what is left to write when the handler has returned. It panics
// with http.ErrAbortHandler, for the server, if the connection is to be cut.
func (r *responder) finish() {
	r.ending = true
	if r.switching {
		r.owner.complain("a handler answered 101 and did not take the connection over")
	}
	if r.switching || r.unable && !r.begun {
		r.answer(refuseSwitch, errNoHijack)
		return
	}
	if r.begun {
		r.goOn()
		if r.broken {
			panic(http.ErrAbortHandler) // the client must not take it for whole
		}
		return
	}
	if f := r.flight; f != nil && f.Err() != nil && f.Context.Err() == nil {
		r.begun = true
		clear(r.ResponseWriter.Header())
		refuseAborted.write(r.ResponseWriter)
		return
	}
	r.begin() // the server's implicit 200 must not be late either
}

func (r *responder) becomeStream() {
	if r.stream {
		return
	}
	r.stream = true
	if r.flight != nil {
		r.flight.watch.stop() // how long it lasts is the client's affair
		r.flight.becomeStream()
	}
}

func isEventStream(contentType []string) bool {
	if len(contentType) == 0 {
		return false
	}
	kind, _, _ := strings.Cut(contentType[0], ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}
