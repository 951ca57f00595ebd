package pinboard

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// chunkBuffers are for what is about to be sent in chunks.
var chunkBuffers = sync.Pool{New: func() any { return bytes.NewBuffer(make([]byte, 0, 2<<10)) }}

const (
	// fullBuffer is how much is sent at once, in bytes, and largestBuffer how
	// large a buffer may be that is used again.
	fullBuffer, largestBuffer = 32 << 10, 40 << 10
)

// chunked writes an answer in chunks to a connection that was taken over, as
// net/http's server would. It holds a buffer only until that is flushed. finishBy may be
// called at any time; all else is for one goroutine.
type chunked struct {
	out hop.Outflow
	buf *bytes.Buffer // nil while nothing waits to be sent
}

// begin writes the head. Nothing is sent before a flush.
func (c *chunked) begin(status int, h http.Header) {
	delete(h, headerContentLength)
	h[headerConnection] = []string{"close"}
	h["Transfer-Encoding"] = []string{"chunked"}
	if _, has := h["Date"]; !has {
		h["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	}
	b := c.buffer()
	code := strconv.Itoa(status)
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + code
	}
	b.WriteString("HTTP/1.1 " + code + " " + text + "\r\n")
	_ = h.Write(b) // memory does not fail
	b.WriteString("\r\n")
}

// write writes a chunk. Not much more than fullBuffer waits for a flush.
func (c *chunked) write(p []byte) error {
	if len(p) == 0 {
		return nil // the empty chunk is the last one
	}
	b := c.buffer()
	b.Write(strconv.AppendInt(b.AvailableBuffer(), int64(len(p)), 16))
	b.WriteString("\r\n")
	b.Write(p)
	b.WriteString("\r\n")
	if b.Len() >= fullBuffer {
		return c.flush()
	}
	return nil
}

// flush sends what waits for it.
func (c *chunked) flush() error {
	b := c.buf
	if b == nil {
		return nil
	}
	c.buf = nil
	_, err := c.out.Write(b.Bytes())
	if b.Cap() <= largestBuffer {
		b.Reset()
		chunkBuffers.Put(b)
	}
	if err != nil {
		return &clientError{err}
	}
	return nil
}

// finishBy has writes fail that are not done then.
func (c *chunked) finishBy(t time.Time) { c.out.FinishBy(t) }

// end ends the answer in good order. Of a header it sends the trailers.
func (c *chunked) end(h http.Header) error {
	b := c.buffer()
	b.WriteString("0\r\n")
	trailers := http.Header{}
	for name, values := range h {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailers[name] = values
		}
	}
	_ = trailers.Write(b) // memory does not fail
	b.WriteString("\r\n")
	return c.flush()
}

func (c *chunked) buffer() *bytes.Buffer {
	if c.buf == nil {
		c.buf = chunkBuffers.Get().(*bytes.Buffer) // see New
	}
	return c.buf
}
