package upstream

import (
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// headDelay is how long the head of a request waits to be sent together
	// with the beginning of its body.
	headDelay = 5 * time.Millisecond
	// lateAnswer is how long an answer may take after the request could not be
	// sent whole: a worker that refuses a body may close its side at once.
	lateAnswer = time.Second
	// endTime is how long an answered request may take for its last bytes.
	endTime = 50 * time.Millisecond
)

// upload sends a request with a body, on a goroutine of its own.
type upload struct {
	c    *conn
	req  *Request
	pool *Pool
	// Of this try:
	body    io.Reader
	trailer http.Header

	goahead chan struct{} // closed when the worker asks for the body
	asked   bool          // it did; of the goroutine that reads the answer
	over    chan struct{} // closed when nobody wants the request sent any more
	ended   chan struct{} // closed when it was sent, or never will be
	last    atomic.Bool   // the last bytes are being written
	whole   atomic.Bool   // all was written

	writing sync.Mutex // held for as long as a write takes
	head    []byte     // not yet sent
	broken  error      // of a write: nothing may follow what was not sent whole

	mu     sync.Mutex
	headed bool  // the head of the answer is there
	err    error // why not all was written, before anybody said it was over
}

func startUpload(c *conn, req *Request, pool *Pool, head []byte) *upload {
	u := &upload{
		c: c, req: req, pool: pool, body: req.Body, trailer: req.Trailer, head: head,
		over: make(chan struct{}), ended: make(chan struct{}),
	}
	if req.Expect {
		u.goahead = make(chan struct{})
	}
	go u.run()
	return u
}

// proceed says that the worker asks for the body.
func (u *upload) proceed() {
	if u.goahead != nil && !u.asked {
		u.asked = true
		close(u.goahead)
	}
}

// stop ends the upload, which may go on until a Read of the body has returned.
// It reports whether the request was sent whole, so that the connection can
// carry another one.
func (u *upload) stop() (whole bool) {
	close(u.over)
	return u.settle()
}

// settle gives a request that is nearly sent the time for it, and reports whether
// it was sent whole.
func (u *upload) settle() (whole bool) {
	if u.last.Load() && !u.whole.Load() {
		timer := time.NewTimer(endTime)
		defer timer.Stop()
		select {
		case <-u.ended:
		case <-timer.C:
		}
	}
	return u.whole.Load()
}

// fault returns why the request could not be sent.
func (u *upload) fault() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

func (u *upload) run() {
	defer close(u.ended)
	if u.goahead != nil && !u.wait() {
		return
	}
	timer := time.AfterFunc(headDelay, u.writeHead)
	defer timer.Stop()
	if err := u.send(); err != nil {
		u.failed(err)
		return
	}
	u.whole.Store(true)
}

// answered says that the head of the answer is there.
func (u *upload) answered() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.headed = true
	u.c.readBy(time.Time{})
}

// wait holds the body back until the worker asks for it, or has had the time
// to. It reports whether the body is to be sent.
func (u *upload) wait() bool {
	if err := u.write(nil); err != nil {
		u.failed(err)
		return false
	}
	timer := time.NewTimer(u.pool.cfg.ContinueTimeout)
	defer timer.Stop()
	select {
	case <-u.goahead:
	case <-timer.C:
	case <-u.over:
		return false
	}
	return true
}

// failed notes why the request could not be sent.
func (u *upload) failed(err error) {
	select {
	case <-u.over:
		return // by intention
	default:
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return // the first one counts
	}
	u.err = err
	if _, ok := err.(*sourceError); ok || err == ErrTooLate { //nolint:errorlint // never wrapped
		u.c.abort() // half a request, or none, must not look like one that takes its time
		return
	}
	if !u.headed {
		u.c.readBy(time.Now().Add(lateAnswer))
	}
}

// sourceError is the body's own.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "read the body: " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// write sends the head, unless that was done, and p.
func (u *upload) write(p []byte) error {
	u.writing.Lock()
	defer u.writing.Unlock()
	if head := u.head; head != nil {
		u.head = nil
		defer putBuffer(head)
		if u.broken = u.inTime(); u.broken != nil {
			return u.broken
		}
		if len(p) > 0 && len(p) <= cap(head)-len(head) {
			head, p = append(head, p...), nil
		}
		u.broken = u.c.write(head, nil)
	}
	if u.broken == nil && len(p) > 0 {
		u.broken = u.c.write(p, u.req.Progress)
	}
	return u.broken
}

// writeHead sends the head, unless that was done or is being done.
func (u *upload) writeHead() {
	if !u.writing.TryLock() {
		return
	}
	defer u.writing.Unlock()
	if head := u.head; head != nil {
		u.head = nil
		if u.broken = u.inTime(); u.broken == nil {
			u.broken = u.c.write(head, nil)
		}
		if u.broken != nil {
			u.failed(u.broken) // the body may be long in coming
		}
		putBuffer(head)
	}
}

// inTime returns nil unless it is too late for the head, which has waited for the
// body: a process that was stopped meanwhile must not send it.
func (u *upload) inTime() error {
	if u.req.tooLate() {
		return ErrTooLate
	}
	return nil
}

// chunkHead is the room for the line before a chunk, and chunkTail that for
// what follows it.
const (
	chunkHead = 7
	chunkTail = 2
)

// send sends all.
func (u *upload) send() error {
	left, chunks := u.req.Length, u.req.Length < 0
	b := newStride(u.pool.strides)
	defer b.put()
	for {
		buf, begun := b.space(), time.Now()
		n, err := u.body.Read(buf[chunkHead : len(buf)-chunkTail])
		p, came := buf[chunkHead:chunkHead+n], time.Since(begun)
		ends := err == io.EOF
		if err != nil && !ends {
			return &sourceError{err}
		}
		switch {
		case chunks:
			p = u.chunk(buf, n, ends)
		case int64(n) > left:
			return &sourceError{errSurplus}
		default:
			left -= int64(n)
			if ends && left > 0 {
				return &sourceError{errShort}
			}
			ends = left == 0
		}
		u.last.Store(ends)
		if err := u.write(p); err != nil || ends {
			return err
		}
		b.took(chunkHead+n+chunkTail, came)
	}
}

// chunk frames n bytes of the body.
func (u *upload) chunk(buf []byte, n int, ends bool) []byte {
	start, end := chunkHead, chunkHead+n
	if n > 0 {
		line := strconv.AppendInt(make([]byte, 0, chunkHead), int64(n), 16)
		line = append(line, '\r', '\n')
		start -= len(line)
		copy(buf[start:], line)
		end += copy(buf[end:], "\r\n")
	}
	p := buf[start:end]
	if ends {
		p = appendTrailers(p[:len(p):len(p)], u.trailer)
	}
	return p
}
