package upstream

import (
	"errors"
	"fmt"
)

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

func (e Error) copy() *Error { return &e }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// ErrMalformedAnswer is returned, wrapped with what is wrong, for an answer that
// can't be read, or be read in two ways. No such error has text of the worker's.
var ErrMalformedAnswer = errors.New("the worker's answer is malformed")

var (
	errTooLong = fmt.Errorf("%w: its head is too long", ErrMalformedAnswer)
	errUnasked = fmt.Errorf("%w: it came before the request", ErrMalformedAnswer)
	errNotIdle = errors.New("the worker has ended the connection, or said something, while it was idle")
	errSurplus = errors.New("the body is longer than was said")
	errShort   = errors.New("the body is shorter than was said")
	errClosed  = errors.New("the answer was given up")

	// errNothing is for what does not wait.
	errNothing = errors.New("nothing has come")
)
