package worker

import (
	"bufio"
	"fmt"
	"net"
	"net/http"

	"go.uber.org/zap"
)

// A 101 goes out when the handler has taken the connection over, and not before. What
// the client sends after a 101 pinboard passes on unread. A server that still had the
// connection would take it for pinboard's own requests, to any of its routes.

// errNoHijack is what a handler gets that asks for a connection which it can't have.
var errNoHijack = fmt.Errorf("worker: the connection cannot be handed over: %w", http.ErrNotSupported)

// switchProtocols keeps a 101 for Hijack. Libraries for WebSockets answer 101 first, to
// whatever has a Hijack method: here is the last chance to answer otherwise.
func (r *responder) switchProtocols() {
	if r.hijackable() {
		r.switching = true
		r.drop(http.ErrBodyNotAllowed)
		return
	}
	r.answer(refuseSwitch, errNoHijack)
}

// Hijack hands the connection to the handler. It holds the instance until it is
// closed; when the instance ends, the request's context ends first, and the
// connection is closed a second later.
func (r *responder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	switching := r.switching
	if switching {
		r.switching, r.dropped = false, nil
	} else if !r.begun && !r.hijackable() {
		r.unable = true // it may still say so in its own words
		return nil, nil, errNoHijack
	}
	r.begin()
	if r.dropped != nil {
		return nil, nil, r.dropped
	}
	if switching {
		r.ResponseWriter.WriteHeader(http.StatusSwitchingProtocols) // the server sends it as it hands over
	}
	raw, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		if switching {
			r.owner.complain("a connection was not handed over after a 101", zap.Error(err), writer(r.ResponseWriter))
			r.drop(errNoHijack)
			r.broken = true // the server would send the 101 after all
		}
		return nil, nil, err // net/http's own, which callers know
	}
	if r.flight == nil {
		r.becomeStream()
		return raw, buffered, nil
	}
	return r.flight.tookOver(raw), buffered, nil
}

// hijackable reports whether the connection can be handed over, as far as one can tell
// before, and logs which writer it can't be reached through.
func (r *responder) hijackable() bool {
	for w := r.ResponseWriter; ; {
		switch below := w.(type) {
		case *responder:
			w = below.ResponseWriter
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = below.Unwrap()
		default:
			r.owner.complain("a connection cannot be handed over, so WebSockets are not possible: "+
				"the ResponseWriter of a middleware, or of what is around the worker, has no Unwrap method", writer(w))
			return false
		}
	}
}

func writer(w http.ResponseWriter) zap.Field { return zap.String("writer", fmt.Sprintf("%T", w)) }
