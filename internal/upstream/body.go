package upstream

import (
	"bytes"
	"io"
)

// Next waits for the next piece of the body and returns it; it is good until
// the next call of Next or Close. The error may come together with a last
// piece: io.EOF if the body is whole. While Next waits, the answer holds no
// buffer.
func (r *Response) Next() ([]byte, error) {
	switch {
	case r.err != nil:
		return nil, r.err
	case r.c == nil:
		return nil, errClosed
	case r.framing == byChunks:
		return r.nextOfChunk()
	case r.framing == byLength:
		return r.piece()
	}
	if r.c.in.len() == 0 {
		if r.err = r.c.fill(); r.err != nil {
			return nil, r.err
		}
	}
	return r.c.in.take(r.c.in.len()), nil
}

// Ready reports whether Next has something without waiting.
func (r *Response) Ready() bool {
	return r.c != nil && r.c.in.len() > 0 && (r.framing != byChunks || r.state == chunkData)
}

// piece returns more of what has a length: a body, or a chunk.
func (r *Response) piece() ([]byte, error) {
	in := &r.c.in
	if in.len() == 0 {
		if r.left > smallBuffer {
			in.want = largeBuffer
		}
		if err := r.c.fill(); err != nil {
			r.err = unexpected(err)
			return nil, r.err
		}
	}
	p := in.take(int(min(r.left, int64(in.len()))))
	r.left -= int64(len(p))
	if r.left == 0 && r.framing == byLength {
		r.err = io.EOF
	}
	return p, r.err
}

// nextOfChunk is Next for a body in chunks.
func (r *Response) nextOfChunk() ([]byte, error) {
	for r.state != chunkData {
		if !r.control() {
			if r.err == nil {
				if err := r.c.fill(); err != nil {
					r.err = unexpected(err)
				}
			}
		}
		if r.err != nil {
			return nil, r.err
		}
	}
	p, err := r.piece()
	if err != nil || r.left > 0 {
		return p, err
	}
	r.state = chunkEnd
	// What ends the body is mostly there already.
	for r.state != chunkData && r.err == nil && r.control() { //nolint:revive // control does it
	}
	return p, r.err
}

// control takes what stands between chunks, one step of it, and reports whether
// it was there. It sets r.err where the body ends, in order or not.
func (r *Response) control() bool {
	in := &r.c.in
	switch r.state {
	case chunkSize:
		return r.chunkSize()
	case chunkEnd:
		if in.len() < 2 {
			return false
		}
		if end := in.take(2); string(end) != "\r\n" {
			r.err = malformed("end of chunk")
			return false
		}
		r.state = chunkSize
	case chunkTrailer:
		lines, ok, err := r.lines()
		if err == nil && ok {
			r.Trailer, err = parseFields(nil, lines)
		}
		switch {
		case err != nil:
			r.err = err
		case ok:
			r.err = io.EOF
		}
		return ok && err == nil
	}
	return true
}

func (r *Response) chunkSize() bool {
	in := &r.c.in
	end := bytes.IndexByte(in.bytes(), '\n')
	if end < 0 && in.len() < smallBuffer {
		return false
	}
	if end <= 0 || end >= smallBuffer || in.bytes()[end-1] != '\r' {
		r.err = malformed("chunk")
		return false
	}
	line := in.take(end + 1)
	n, err := parseChunk(line[:end-1])
	switch {
	case err != nil:
		r.err = err
		return false
	case n == 0:
		r.state = chunkTrailer
	default:
		r.left, r.state = n, chunkData
	}
	return true
}
