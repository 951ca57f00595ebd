package memnet

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// window is how much one side may write that the other has not yet read, in
// bytes. Memory is taken as it is needed.
const window = 16 << 10

// Pipe returns the two ends of a connection. What was written before an end is
// closed can still be read from the other.
func Pipe() (net.Conn, net.Conn) {
	there, back := newStream(), newStream()
	return &conn{in: back, out: there}, &conn{in: there, out: back}
}

type conn struct{ in, out *stream }

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *conn) Close() error {
	c.in.closeReader()
	c.out.closeWriter()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return address{} }
func (c *conn) RemoteAddr() net.Addr { return address{} }

func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.reader, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writer, t)
	return nil
}

// stream is one direction of a connection.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	buf     bytes.Buffer // written, and not yet read
	reader  end
	writer  end
}

// end is the reading or the writing side of a stream.
type end struct {
	closed  bool
	expired bool // its deadline has passed
	timer   *time.Timer
}

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.reader.closed:
			return 0, net.ErrClosed
		case s.reader.expired:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case s.buf.Len() > 0:
			s.changed.Broadcast()
			return s.buf.Read(p)
		case s.writer.closed:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.writer.closed:
			return n, net.ErrClosed
		case s.reader.closed:
			return n, io.ErrClosedPipe
		case s.writer.expired:
			return n, os.ErrDeadlineExceeded
		case len(p) == 0:
			return n, nil
		}
		if part := p[:min(len(p), window-s.buf.Len())]; len(part) > 0 {
			_, _ = s.buf.Write(part) // never fails (bytes.Buffer)
			n, p = n+len(part), p[len(part):]
			s.changed.Broadcast()
			continue
		}
		s.changed.Wait()
	}
}

func (s *stream) closeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close(&s.reader)
	s.buf = bytes.Buffer{} // nobody reads it any more
}

func (s *stream) closeWriter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close(&s.writer)
}

// close is called with the lock held.
func (s *stream) close(e *end) {
	e.closed = true
	if e.timer != nil {
		e.timer.Stop()
	}
	s.changed.Broadcast()
}

// setDeadline sets when what one end waits for fails; the zero time is never.
func (s *stream) setDeadline(e *end, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	left := time.Until(t)
	e.expired = !t.IsZero() && left <= 0
	if !t.IsZero() && left > 0 && !e.closed {
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if e.timer == timer { // else it was set anew while this one fired
				e.expired = true
				s.changed.Broadcast()
			}
		})
		e.timer = timer
	}
	s.changed.Broadcast()
}
