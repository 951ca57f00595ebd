package upstream

import "errors"

// Error is how a request ended that got no answer. It says what a caller must
// know before it tries elsewhere.
type Error struct {
	// Err is why.
	Err error
	// NoConnection: there was none to send the request on, at last.
	NoConnection bool
	// Connected: there was one at some time, so that the Body may have been
	// read from.
	Connected bool
	// Sent: some of the request may have left this process.
	Sent bool
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

var (
	errMalformed = errors.New("the worker's answer is malformed")
	errTooLong   = errors.New("the head of the worker's answer is too long")
	errSurplus   = errors.New("the body is longer than was said")
	errShort     = errors.New("the body is shorter than was said")
	errClosed    = errors.New("the answer was given up")
)
