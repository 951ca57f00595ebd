package pinboard

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// Causes of a cancelled request to a worker.
var (
	errAnswerLate = errors.New("the worker has not begun its answer in time")
	errSilent     = errors.New("nothing was said for too long")
)

// turnAway answers a request of the data plane that goes nowhere.
func (p *Pinboard) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	leaveRest(w, r)
	switch err {
	case errBusyNode, errBusyID, errBusyAddress:
		p.limiter.tell(p.log, err)
	}
	p.writeRefusal(w, r, err)
}

// boundEnd bounds how long the server may wait for the client to take the rest
// of an answer after the handler, unless the host has set a bound.
func (p *Pinboard) boundEnd(w http.ResponseWriter, r *http.Request) {
	p.boundWrites(w, r, p.opts.Limits.WritePause)
}

func (p *Pinboard) boundWrites(w http.ResponseWriter, r *http.Request, most time.Duration) {
	if server, ok := r.Context().Value(http.ServerContextKey).(*http.Server); ok && server.WriteTimeout > 0 {
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(most))
}

// awaited is a request's body as the worker gets it. The worker has all the time
// for its answer from when it last got some of the body, and the waits for the
// client are not the worker's.
type awaited struct {
	io.Reader
	late *stall
}

func (b awaited) Read(p []byte) (int, error) {
	b.late.rest()
	defer b.late.watch()
	return b.Reader.Read(p)
}
