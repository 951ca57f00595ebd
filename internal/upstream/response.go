package upstream

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
)

// Response is a worker's answer. It must be closed, or handed over with Hijack.
// It is for one goroutine at a time.
type Response struct {
	Status int
	Header Header
	// Length of the body in bytes: 0 if there is none, -1 if it is not known.
	Length int64
	// Trailer is complete when Next has returned io.EOF.
	Trailer Header

	c      *conn // nil once the connection was handed on
	pool   *Pool
	req    *Request
	upload *upload // nil without a body
	stop   func() bool

	framing framing
	state   chunkState
	left    int64   // of the body, or of the chunk
	keep    bool    // the worker keeps the connection
	heads   int     // bytes of heads and trailers so far
	line    int     // where the line starts that lines is at
	scanned int     // how far lines has looked
	err     error   // of the body: io.EOF at its end
	fields  []Field // room for those of the head
}

// newResponse returns a Response with room for what nearly all heads have.
func newResponse() *Response {
	r := &struct {
		Response
		room [16]Field
	}{}
	r.fields = r.room[:0]
	return &r.Response
}

// chunkState is what comes next in a body in chunks.
type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkEnd
	chunkTrailer
)

// headRoom is more than the head of most requests takes.
const headRoom = 2 << 10

// try is roundTrip, and closes the Response if that panics, as Inform may.
func (r *Response) try() (err error) {
	over := false
	defer func() {
		if !over {
			r.Close()
		}
	}()
	err = r.roundTrip()
	over = true
	return err
}

// roundTrip sends the request and reads the head of the answer.
func (r *Response) roundTrip() error {
	head := r.req.appendHead(getBuffer(len(r.req.Content) + headRoom)[:0], r.pool.cfg.DisableKeepAlives)
	if r.req.Body != nil {
		r.upload = startUpload(r.c, r.req, r.pool, head)
	} else {
		head = append(head, r.req.Content...)
		err := r.send(head)
		putBuffer(head)
		if err != nil {
			return unexpected(err)
		}
	}
	err := r.readHeads()
	if err != nil && r.upload != nil {
		if fault := r.upload.fault(); fault != nil {
			return fault
		}
	}
	return err
}

// send sends a request that is whole, and may read the beginning of the
// answer.
func (r *Response) send(head []byte) error {
	if !r.c.plain() {
		return r.c.write(head, nil)
	}
	left, err := r.c.fd.exchange(head)
	if err == nil && len(left) > 0 {
		err = r.c.write(left, nil)
	}
	return err
}

// readHeads reads up to the head of the final answer.
func (r *Response) readHeads() error {
	for {
		lines, err := r.awaitLines()
		if err != nil {
			return err
		}
		if err := r.parse(lines); err != nil {
			return err
		}
		if r.Status >= 200 || r.Status == http.StatusSwitchingProtocols {
			break
		}
		if r.Status == http.StatusContinue && r.upload != nil {
			r.upload.proceed()
		}
		if r.req.Inform != nil {
			if err := r.req.Inform(r.Status, r.Header); err != nil {
				return err
			}
		}
	}
	if r.upload != nil {
		r.upload.answered()
	}
	return nil
}

// awaitLines reads lines up to an empty one.
func (r *Response) awaitLines() (string, error) {
	for {
		lines, ok, err := r.lines()
		if ok || err != nil {
			return lines, err
		}
		if err := r.c.fill(); err != nil {
			return "", unexpected(err)
		}
	}
}

// lines takes lines, each with its end, up to an empty one, which it does not
// return. ok says that all were there.
func (r *Response) lines() (lines string, ok bool, err error) {
	in := &r.c.in
	for {
		end := bytes.IndexByte(in.bytes()[r.scanned:], '\n')
		if end < 0 {
			r.scanned = in.len()
			if r.heads+in.len() > r.pool.cfg.MaxHeaderBytes {
				return "", false, errTooLong
			}
			return "", false, nil
		}
		r.scanned += end + 1
		last := r.scanned - len("\r\n")
		if last < r.line || in.bytes()[last] != '\r' {
			return "", false, malformed("end of line")
		}
		if last == r.line {
			break
		}
		r.line = r.scanned
	}
	lines = string(in.bytes()[:r.line])
	in.take(r.scanned)
	r.heads += r.scanned
	r.line, r.scanned = 0, 0
	if r.heads > r.pool.cfg.MaxHeaderBytes {
		return "", false, errTooLong
	}
	return lines, true, nil
}

// unexpected returns an error for an end in the middle.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parse reads a head.
func (r *Response) parse(lines string) error {
	first, rest, _ := strings.Cut(lines, "\r\n")
	status, minor, err := parseStatus(first)
	if err != nil {
		return err
	}
	if r.Header, err = parseFields(r.fields[:0], rest); err != nil {
		return err
	}
	var length int64
	r.Status = status
	if r.framing, length, r.keep, err = frame(r.Header, r.req.Method, status, minor); err != nil {
		return err
	}
	switch r.err = nil; r.framing {
	case noBody:
		r.Length, r.err = 0, io.EOF
	case byLength:
		r.Length, r.left = length, length
	default:
		r.Length = -1
	}
	return nil
}

// Announced returns the canonical names of the trailers that the worker says
// it will send.
func (r *Response) Announced() (names []string) {
	if r.framing != byChunks {
		return nil
	}
	for _, f := range r.Header {
		if f.Name != trailer {
			continue
		}
		for name := range strings.SplitSeq(f.Value, ",") {
			if name = textproto.TrimString(name); isToken(name) {
				names = append(names, textproto.CanonicalMIMEHeaderKey(name))
			}
		}
	}
	return names
}

// Conn returns the connection of an answer that switched protocols, and what of
// the new one has come already. It is the caller's until Close.
func (r *Response) Conn() (conn net.Conn, early []byte) {
	early = bytes.Clone(r.c.in.take(r.c.in.len()))
	r.c.in.drop()
	return r.c.rawConn(), early
}

// Close ends the exchange. If the answer was read to its end the connection is
// kept for another one. Close may be called twice.
func (r *Response) Close() {
	c := r.c
	if c == nil {
		return
	}
	r.c = nil
	keep := r.keep && r.Status != http.StatusSwitchingProtocols && r.err == io.EOF && c.in.len() == 0
	if r.upload != nil {
		keep = r.upload.stop() && keep
	}
	keep = r.stop() && keep // else it is being aborted
	c.mu.Lock()
	c.told = nil
	c.mu.Unlock()
	if !keep {
		_ = c.Close()
	}
	c.in.take(c.in.len())
	c.in.drop()
	c.in.want = 0
	r.pool.release(c, keep)
}
