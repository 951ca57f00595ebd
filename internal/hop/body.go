package hop

import (
	"errors"
	"io"
	"sync"
)

// errSuperseded ends the reads of a Reader that another one has replaced, or
// that was closed.
var errSuperseded = errors.New("the body is sent elsewhere")

// errPanicked is the fault of a source that did not return.
var errPanicked = errors.New("the body's reader panicked")

// Body is the body of a request that may have to be sent a second time. What
// was read of the source is kept up to a limit, and can be read again from the
// start as long as nothing beyond the limit was handed out.
//
// A Reader's Read may block on the source even when the Reader was ended
// meanwhile; what arrives then is there for the next Reader. At most one read of
// the source is under way at any time.
type Body struct {
	src   io.Reader
	limit int

	mu      sync.Mutex
	changed sync.Cond
	reader  *Reader // the one that may take
	kept    []byte  // from the start of the body, at most limit bytes
	rest    []byte  // what was read beyond the limit and not yet taken
	spilled bool    // something beyond the limit was taken
	started bool    // the source was read, or is about to be
	reading bool
	buf     *[LargeBuffer]byte // holds rest
	err     error              // how the source ended: io.EOF, or a fault
	ahead   func(error)        // see ReadAhead
}

// NewBody returns the body that src delivers, of which at most limit bytes are
// kept.
func NewBody(src io.Reader, limit int) *Body {
	b := &Body{src: src, limit: limit}
	b.changed.L = &b.mu
	return b
}

// Open returns a Reader from the start of the body. The former Reader, if any,
// must have been closed or suspended. It is an error, and nothing changes, if
// the start is no longer there.
func (b *Body) Open() (*Reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spilled {
		return nil, errors.New("the body is too long to be sent again")
	}
	b.reader = &Reader{body: b}
	b.changed.Broadcast()
	return b.reader, nil
}

// ReadOnce reads the source, once, on the caller's goroutine, unless it has ended
// or was read before, and returns all of the body if it is kept; else whole is
// false. size is how many bytes the body has. Nobody else may use the Body meanwhile.
// What it returns must not be changed.
func (b *Body) ReadOnce(size int64) (all []byte, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.started && size <= int64(b.limit) {
		b.readKept(make([]byte, size))
	}
	return b.kept, b.err == io.EOF && !b.spilled && b.rest == nil
}

// readKept reads the source once, into p, which has room for what may be kept, without
// the lock, which the caller holds. A source that panics has ended.
func (b *Body) readKept(p []byte) {
	b.started, b.reading = true, true
	n, err := 0, errPanicked
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.kept, b.err, b.reading = p[:n], err, false
		b.goAhead()
		b.changed.Broadcast()
	}()
	n, err = b.src.Read(p)
}

// Suspend reports whether the body can be sent again, and if so keeps it that
// way: the present Reader gets no more of it, but its Read waits, until it is
// closed, instead of failing.
func (b *Body) Suspend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spilled {
		return false
	}
	b.reader = nil
	return true
}

// ReadAhead reads what may be kept of the source, in the background, while no
// Reader asks for it, and calls ended, once, when the source ends that way or
// has ended already: a server sees its client leave only after that. ended must
// not call the Body. Stop and the next ReadAhead take it back.
func (b *Body) ReadAhead(ended func(err error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ahead = ended
	b.goAhead()
}

// goAhead goes on reading ahead; the caller holds the lock.
func (b *Body) goAhead() {
	switch {
	case b.ahead == nil:
	case b.err != nil:
		b.ahead(b.err)
		b.ahead = nil
	case !b.spilled && b.rest == nil && len(b.kept) < b.limit && b.startReading():
		go func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.fill()
		}()
	}
}

// Ended reports whether the source has delivered its end, or a fault.
func (b *Body) Ended() bool { return b.Err() != nil }

// Err returns how the source ended: io.EOF, or its fault; nil if it has not.
func (b *Body) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Started reports whether the source has been read, or is about to be.
func (b *Body) Started() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

// Drain is Stop, and then reads and drops what the source still has, up to limit
// bytes. It blocks as long as the source does.
func (b *Body) Drain(limit int64) {
	b.Stop()
	if !b.Ended() {
		_, _ = io.Copy(io.Discard, io.LimitReader(b.src, limit))
	}
}

// Stop ends all Readers and waits for the read of the source that is under way,
// if any. After it the source is not read any more.
func (b *Body) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reader != nil {
		b.reader.end()
		b.reader = nil
	}
	b.ahead = nil
	for b.reading {
		b.changed.Wait()
	}
	if b.buf != nil {
		putLarge(b.buf)
		b.buf, b.rest = nil, nil
	}
}

// startReading says that the source is about to be read, by fill, unless that is
// under way; the caller holds the lock.
func (b *Body) startReading() (fill bool) {
	if b.reading {
		return false
	}
	b.started, b.reading = true, true
	if b.buf == nil {
		b.buf = getLarge()
	}
	return true
}

// fill reads the source once, without the lock, which the caller holds.
func (b *Body) fill() {
	b.mu.Unlock()
	n, err := b.src.Read(b.buf[:])
	b.mu.Lock()
	if !b.spilled && len(b.kept)+n <= b.limit {
		b.kept = append(b.kept, b.buf[:n]...)
	} else if n > 0 {
		b.rest = b.buf[:n]
	}
	b.err = err
	b.reading = false
	if err != nil && b.rest == nil {
		putLarge(b.buf)
		b.buf = nil
	}
	b.goAhead()
	b.changed.Broadcast()
}

// pass reads the source once, for a reader of what can't be sent again: nobody else will
// want what comes. The caller holds the lock.
func (b *Body) pass(r *Reader, p []byte) (int, error) {
	if b.buf != nil {
		putLarge(b.buf)
		b.buf = nil
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.src.Read(p)
	b.mu.Lock()
	b.err, b.reading = err, false
	b.goAhead()
	b.changed.Broadcast()
	switch {
	case r.ended != nil:
		return 0, r.ended
	case n > 0:
		return n, nil // and the error next time
	}
	return 0, err
}

// take copies what the reader has not had yet; the caller holds the lock.
func (b *Body) take(r *Reader, p []byte) int {
	if !b.spilled && r.pos < len(b.kept) {
		n := copy(p, b.kept[r.pos:])
		r.pos += n
		return n
	}
	n := copy(p, b.rest)
	if n > 0 {
		b.spilled, b.kept = true, nil
		if b.rest = b.rest[n:]; len(b.rest) == 0 {
			b.rest = nil
		}
	}
	return n
}

// Reader reads a Body from its start.
type Reader struct {
	body *Body
	pos  int    // in what is kept
	eof  func() // see OnEOF

	ended error // closed, or replaced; guarded by body.mu
}

// OnEOF has f called when Read is about to return io.EOF, on the goroutine that
// reads. It must be called before the first Read.
func (r *Reader) OnEOF(f func()) { r.eof = f }

// Read returns what is kept or else what the source has next.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.read(p)
	if err == io.EOF && r.eof != nil {
		r.eof()
	}
	return n, err
}

func (r *Reader) read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if r.ended != nil || len(p) == 0 {
			return 0, r.ended
		}
		if b.reader == r { // else suspended
			if n := b.take(r, p); n > 0 {
				return n, nil
			}
			if b.err != nil {
				return 0, b.err
			}
			if b.spilled && !b.reading {
				return b.pass(r, p)
			}
			if b.startReading() {
				b.fill()
				continue
			}
		}
		b.changed.Wait()
	}
}

// Close ends the Reader for good. The Body stays open.
func (r *Reader) Close() error {
	r.body.mu.Lock()
	defer r.body.mu.Unlock()
	r.end()
	return nil
}

// end is Close; the caller holds the lock.
func (r *Reader) end() {
	r.ended = errSuperseded
	r.body.changed.Broadcast()
}
