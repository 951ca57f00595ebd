package worker

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// maxKeptBody is how much of a body is kept in memory for a second attempt, if
// the application can't give it again itself. It is more than is on its way while
// the instance has not asked for it, and the 256 KiB more that net/http reads
// behind an answer that came before: whether it does that is a race.
const maxKeptBody = 384 << 10

// callBody is the body of a call that may have to be sent twice.
type callBody struct {
	r      *http.Request
	opened bool
	kept   *hop.Body   // of a body that comes only once
	reader *keptReader // of kept
}

// newCallBody returns the body of r. If twice is not set, it is only sent once.
func newCallBody(r *http.Request, twice bool) *callBody {
	b := &callBody{r: r}
	if twice && r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		b.kept = hop.NewBody(r.Body, maxKeptBody)
	}
	return b
}

// open returns the body from its start; after again, for a second time.
func (b *callBody) open() (io.ReadCloser, error) {
	first := !b.opened
	b.opened = true
	switch {
	case b.kept != nil:
		reader, err := b.kept.Open()
		if err != nil {
			return nil, fmt.Errorf("worker: call: send the body: %w", err)
		}
		b.reader = &keptReader{Reader: reader, source: b.r.Body}
		return b.reader, nil
	case first || b.r.GetBody == nil:
		return b.r.Body, nil
	}
	body, err := b.r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("worker: call: get the body again: %w", err)
	}
	return body, nil
}

// again reports whether the body can be sent once more, and ends the first
// sending if so.
func (b *callBody) again() bool {
	if b.kept == nil {
		return true // none, or GetBody has it
	}
	if !b.kept.Suspend() {
		return false
	}
	_ = b.reader.Close()
	return true
}

// last says that the body is not opened again.
func (b *callBody) last() {
	if b.reader != nil {
		b.reader.isLast()
	}
}

// keptReader closes the source when the last of its readers is closed.
type keptReader struct {
	*hop.Reader
	source io.Closer

	mu     sync.Mutex
	closed bool
	final  bool
	once   sync.Once
}

// Close implements io.Closer.
func (k *keptReader) Close() error {
	_ = k.Reader.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.settle()
	return nil
}

func (k *keptReader) isLast() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.final = true
	k.settle()
}

func (k *keptReader) settle() {
	if k.closed && k.final {
		k.once.Do(func() { _ = k.source.Close() })
	}
}
