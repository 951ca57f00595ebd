package upstream

import (
	"sync"
	"time"
)

const (
	// longStride is what a body is read into while it comes so fast that largeBuffer is
	// full each time, in bytes: an eighth of the system calls.
	longStride = 256 << 10
	// maxStrides is how many bodies have one at once, so that they hold 16 MiB, however
	// many there are, and whether or not their workers read. The others do without.
	maxStrides = 64
	// quick is how long a read may take of a body that comes fast. One of a body in chunks
	// waits until the space is full or a chunk has ended, however long that is: what comes
	// slowly must not wait for much.
	quick = 50 * time.Millisecond
)

var longStrides = sync.Pool{New: func() any { return new([longStride]byte) }}

// strides is full while as many bodies have a longStride as may.
type strides chan struct{}

// stride is the buffer that a body is sent by.
type stride struct {
	of    strides
	large []byte
	long  *[longStride]byte // nil without one
}

// newStride returns a short one.
func newStride(of strides) *stride { return &stride{of: of, large: getBuffer(largeBuffer)} }

// space returns the buffer.
func (s *stride) space() []byte {
	if s.long != nil {
		return s.long[:]
	}
	return s.large
}

// took says that n bytes of the space were used, which took so long to come, and are done
// with. The next space may be another one.
func (s *stride) took(n int, in time.Duration) {
	switch {
	case s.long == nil && n == largeBuffer && in <= quick:
		select {
		case s.of <- struct{}{}:
			s.long = longStrides.Get().(*[longStride]byte) // see New
		default:
		}
	case s.long != nil && (n <= largeBuffer || in > quick):
		s.shorten()
	}
}

func (s *stride) shorten() {
	if s.long != nil {
		longStrides.Put(s.long)
		s.long = nil
		<-s.of
	}
}

// put gives it back; it must not be used after that.
func (s *stride) put() {
	s.shorten()
	putBuffer(s.large)
}
