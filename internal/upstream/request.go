package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Origin is where a worker is reached.
type Origin struct {
	// TLS says that it is spoken to with TLS, as Name.
	TLS  bool
	Name string
	// Addr is what is dialled: a host, or an address, and a port.
	Addr string
	// Host is the authority as the URL has it.
	Host string
	// Base is the raw path that all paths are below, "" at the root.
	Base string
}

// ParseOrigin reads a worker's advertise URL, which must be normalised.
func ParseOrigin(advertised string) Origin {
	scheme, rest, _ := strings.Cut(advertised, "://")
	host, base, deep := strings.Cut(rest, "/")
	o := Origin{TLS: scheme == "https", Addr: host, Host: host}
	if deep {
		o.Base = strings.TrimRight("/"+base, "/")
	}
	colon := strings.LastIndexByte(host, ':')
	if colon <= strings.LastIndexByte(host, ']') { // none, or within an IPv6 address
		colon = len(host)
		o.Addr += ":80"
		if o.TLS {
			o.Addr = host + ":443"
		}
	}
	o.Name = strings.Trim(host[:colon], "[]")
	return o
}

// Request is what is sent to a worker.
type Request struct {
	Origin Origin
	// Allowed returns nil if the request may go to the address that a
	// connection leads to; nil allows every one. A connection without an IP
	// address is asked for with the zero Addr.
	Allowed func(netip.Addr) error
	// Within, if not nil, returns the context to dial with.
	Within func(context.Context) context.Context
	// Until is when it is too late to begin sending, which is asked once there is
	// a connection, and last before the head of a request with a Body is sent: the
	// error is ErrTooLate then. The zero time is no limit.
	Until time.Time

	Method string
	// Target is the raw path and query, below the Origin's base.
	Target string
	// Host is the Host header, which may be empty.
	Host string
	// Fields are the header lines, made by AppendField, but for those that
	// frame the message: these are made from what follows.
	Fields []byte

	// Body is nil without one. It is read on a goroutine of its own, which may
	// outlive the exchange for as long as a Read of the Body does.
	Body io.Reader
	// Content is a whole body, sent with the head in one piece, where there is no
	// Body.
	Content []byte
	// Length of the Body in bytes; -1 has it sent in chunks.
	Length int64
	// Trailer names the trailers to announce. Their values are looked up when
	// the Body has returned io.EOF. Only a body in chunks has trailers. Rewind
	// must set another map if the Body changes it: a try that was given up may
	// still be looking at the former one.
	Trailer http.Header
	// Rewind returns the Body from its start, after a try that has sent
	// nothing. Required with a Body.
	Rewind func() (io.Reader, error)
	// Progress, if not nil, is called whenever some of the Body that had to wait for the
	// worker, at most 32 KiB, is sent.
	Progress func()
	// Expect holds the Body back until the worker asks for it.
	Expect bool
	// Switch says that the Fields ask for another protocol: whatever becomes of
	// the connection, the request does not say that it is to be closed.
	Switch bool

	// Repeatable says that the request may be sent a second time when the
	// connection of the first time, which had been idle, ends without a byte
	// of an answer: the worker may have closed it before it saw the request.
	Repeatable bool

	// Inform, if not nil, gets informational answers (1xx) as they come. The
	// Header is good until it returns. An error ends the exchange, and so does a panic.
	Inform func(status int, header Header) error

	// Renewer, if not nil, makes the Fields anew where the request had to wait: for a
	// connection, or for a try that came to nothing.
	Renewer Renewer
}

// Renewer makes Fields that must not be old when they are sent.
type Renewer interface {
	// Renew returns the Fields, which may be in the place of the former ones. With an
	// error nothing is sent.
	Renew() (fields []byte, err error)
}

// ErrTooLate is returned for a request that could not be sent before its Until.
// Nothing was sent, at last.
var ErrTooLate = errors.New("there was no connection for the request in time")

// ready has the request sent now, which is an error if that must not be any more.
// waited says that it was made a while ago.
func (r *Request) ready(waited bool) (err error) {
	if r.tooLate() {
		return ErrTooLate
	}
	if waited && r.Renewer != nil {
		r.Fields, err = r.Renewer.Renew()
	}
	return err
}

// tooLate reports whether the request must not be sent any more.
func (r *Request) tooLate() bool { return !r.Until.IsZero() && time.Until(r.Until) <= 0 }

// ErrMalformedRequest is returned for a request that would not be read as what
// it is. Nothing was sent.
var ErrMalformedRequest = errors.New("the request can't be written as HTTP/1.1")

// validate returns nil if the request can't be read as anything else.
func (r *Request) validate() error {
	switch {
	case !isToken(r.Method):
		return fmt.Errorf("%w: method", ErrMalformedRequest)
	case !isTarget(r.Target) || !isTarget(r.Host) || r.Target == "":
		return fmt.Errorf("%w: target or host", ErrMalformedRequest)
	}
	return nil
}

// AppendField appends one header line. It returns ok false, and fields as they
// were, for a name or value that can't be one.
func AppendField(fields []byte, name, value string) (_ []byte, ok bool) {
	if !isToken(name) || !isValue(value) {
		return fields, false
	}
	fields = append(fields, name...)
	fields = append(fields, ": "...)
	fields = append(fields, value...)
	return append(fields, '\r', '\n'), true
}

// appendHead appends the head of the request. last says that no other will be
// sent on the connection.
func (r *Request) appendHead(b []byte, last bool) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Origin.Base...)
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, '\r', '\n')
	switch {
	case len(r.Content) > 0:
		b = appendLength(b, int64(len(r.Content)))
	case r.Body == nil:
		if r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
			b = append(b, "Content-Length: 0\r\n"...)
		}
	case r.Length >= 0:
		b = appendLength(b, r.Length)
	default:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		b = r.appendTrailerNames(b)
	}
	if r.Expect {
		b = append(b, "Expect: 100-continue\r\n"...)
	}
	if last && !r.Switch {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, r.Fields...)
	return append(b, '\r', '\n')
}

func appendLength(b []byte, n int64) []byte {
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, '\r', '\n')
}

func (r *Request) appendTrailerNames(b []byte) []byte {
	before := "Trailer: "
	for name := range r.Trailer {
		if isToken(name) {
			b = append(b, before...)
			b = append(b, name...)
			before = ", "
		}
	}
	if before == ", " {
		b = append(b, '\r', '\n')
	}
	return b
}

// appendTrailers appends the end of a body in chunks.
func appendTrailers(b []byte, trailers http.Header) []byte {
	b = append(b, "0\r\n"...)
	for name, values := range trailers {
		for _, value := range values {
			b, _ = AppendField(b, name, value) // what can't be one is left out
		}
	}
	return append(b, '\r', '\n')
}

// tokens are the characters of a token (RFC 9110, section 5.6.2).
var tokens = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		set[c] = true
	}
	return set
}()

func isToken(s string) bool {
	for i := range len(s) {
		if !tokens[s[i]] {
			return false
		}
	}
	return s != ""
}

// isValue reports whether s can stand in a header line: no line ends in it, and
// it has no other control characters, which some take for one (RFC 9110, section
// 5.5).
func isValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// isTarget reports whether s can stand in a request line.
func isTarget(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
