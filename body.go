package pinboard

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
)

const (
	// maxWorkerBody bounds the body of a worker's call: 100,000 live ids fit
	// (protocol §2).
	maxWorkerBody = 32 << 20
	// maxBeatBody bounds that of a heartbeat, whose acks are for a thousand
	// messages at most, and of a deregistration.
	maxBeatBody = 256 << 10
	// maxOperatorBody bounds the body of an operator's call.
	maxOperatorBody = 64 << 10
	// bodyTime bounds how long a body may take to arrive.
	bodyTime = 10 * time.Second
	// refusedLinger bounds how long the rest of an unwanted body is waited for,
	// so that a client that is still sending gets to read its answer.
	refusedLinger = time.Second
	// answerTime bounds how long an answer may take to be read.
	answerTime = 5 * time.Second
)

var (
	errBodyTooLarge = refuse(http.StatusRequestEntityTooLarge, "the body is too large")
	errBodyTooSlow  = refuse(http.StatusRequestTimeout, "the body did not arrive in time")
	errBodyCut      = refuse(http.StatusBadRequest, "the body could not be read")
)

// readBody reads a body of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, errBodyTooLarge
	}
	// Where the host's server or a wrapped writer has no deadlines, the host's
	// own limits hold. The server lifts this one when it has the body.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		return body, nil
	}
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		return nil, errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errBodyTooSlow
	}
	return nil, errBodyCut
}

// leaveBody is leaveRest for an answer that ends the connection: its client is told
// not to send the rest.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	leaveRest(w, r)
}

// leaveRest is called before an answer to a request whose body nobody reads. The
// server means to use the connection again, so it waits for the rest of the body
// before it sends the answer: without a bound, a client could have it wait, and what
// it counts for, for as long as it likes.
func leaveRest(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedLinger))
	}
}

// deliver answers with 200 and returns nil once the answer has left this
// process.
func deliver(w http.ResponseWriter, body any) error {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(answerTime))
	jsonbody.Write(w, http.StatusOK, body)
	err := control.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		return nil // the writer tells nothing: it may have been sent
	}
	return err
}
