package pinboard

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// chunkBuffers are for what event writers are about to send.
var chunkBuffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, 2<<10)) }}

const (
	// fullBuffer is how much is sent at once, in bytes, and largestBuffer how
	// large a buffer may be that is used again.
	fullBuffer, largestBuffer = 32 << 10, 40 << 10
)

// eventWriter writes one answer in chunks to a client's connection that was taken
// over, as net/http's server would. It holds a buffer only until what is in it
// is flushed. Deadlines may be set at any time; all else is for one goroutine.
type eventWriter struct {
	conn   net.Conn
	pause  time.Duration // how long a write may wait for its reader
	header http.Header   // before WriteHeader those of the head, then the trailers
	buf    *bytes.Buffer // nil while nothing waits to be sent

	mu sync.Mutex
	by time.Time // when all must have been written; zero for no such time
}

func newEventWriter(conn net.Conn, header http.Header, pause time.Duration) *eventWriter {
	return &eventWriter{conn: conn, pause: pause, header: header}
}

// Header implements http.ResponseWriter.
func (w *eventWriter) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter: nothing is sent before a flush.
func (w *eventWriter) WriteHeader(status int) {
	h := w.header
	delete(h, headerContentLength)
	h[headerConnection] = []string{"close"}
	h["Transfer-Encoding"] = []string{"chunked"}
	if _, has := h["Date"]; !has {
		h["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	}
	b := w.buffer()
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	fmt.Fprintf(b, "HTTP/1.1 %03d %s\r\n", status, text)
	_ = h.Write(b) // memory does not fail
	b.WriteString("\r\n")
	w.header = nil
}

// Write implements http.ResponseWriter: p becomes one chunk.
func (w *eventWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // the empty chunk is the last one
	}
	b := w.buffer()
	b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(len(p)), 16))
	b.WriteString("\r\n")
	b.Write(p)
	b.WriteString("\r\n")
	if b.Len() >= fullBuffer {
		return len(p), w.FlushError()
	}
	return len(p), nil
}

// FlushError is for http.ResponseController. It takes no longer than the pause, and
// ends at the deadline.
func (w *eventWriter) FlushError() error {
	b := w.buf
	if b == nil {
		return nil
	}
	w.buf = nil
	w.mu.Lock()
	if w.by.IsZero() {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.pause))
	}
	w.mu.Unlock()
	_, err := w.conn.Write(b.Bytes())
	if b.Cap() <= largestBuffer {
		b.Reset()
		chunkBuffers.Put(b)
	}
	return err
}

// SetWriteDeadline is for http.ResponseController.
func (w *eventWriter) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by = t
	return w.conn.SetWriteDeadline(t)
}

// end ends the answer in good order, with the trailers.
func (w *eventWriter) end() {
	b := w.buffer()
	b.WriteString("0\r\n")
	trailers := http.Header{}
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailers[name] = values
		}
	}
	_ = trailers.Write(b) // memory does not fail
	b.WriteString("\r\n")
	_ = w.FlushError() // the connection ends either way
}

// close ends the connection.
func (w *eventWriter) close() { _ = w.conn.Close() }

func (w *eventWriter) buffer() *bytes.Buffer {
	if w.buf == nil {
		w.buf = chunkBuffers.Get().(*bytes.Buffer) // see New
	}
	return w.buf
}
