package hop

import "sync"

const (
	// SmallBuffer is what a stream holds while little comes, in bytes.
	SmallBuffer = 1 << 10
	// LargeBuffer is what it reads into while much comes.
	LargeBuffer = 32 << 10
)

var (
	smalls = sync.Pool{New: func() any { return new(Buffer) }}
	larges = sync.Pool{New: func() any { return new([LargeBuffer]byte) }}
)

func getLarge() *[LargeBuffer]byte  { return larges.Get().(*[LargeBuffer]byte) } // see New
func putLarge(b *[LargeBuffer]byte) { larges.Put(b) }

// Buffer is what a copy loop reads into: small as long as reads are small, so
// that thousands of idle streams hold little, and large while reads fill it.
type Buffer struct {
	small [SmallBuffer]byte
	large *[LargeBuffer]byte
}

// GetBuffer returns a Buffer for about size bytes; a negative size is unknown.
func GetBuffer(size int64) *Buffer {
	b := smalls.Get().(*Buffer) // see New
	if size > SmallBuffer {
		b.large = getLarge()
	}
	return b
}

// Space returns where to read into.
func (b *Buffer) Space() []byte {
	if b.large != nil {
		return b.large[:]
	}
	return b.small[:]
}

// Took says that n bytes were read into Space and are done with. The next Space
// may be another one.
func (b *Buffer) Took(n int) {
	switch {
	case b.large == nil && n == SmallBuffer:
		b.large = getLarge()
	case b.large != nil && n <= SmallBuffer:
		b.shrink()
	}
}

func (b *Buffer) shrink() {
	if b.large != nil {
		putLarge(b.large)
		b.large = nil
	}
}

// Put gives the Buffer back; it must not be used after that.
func (b *Buffer) Put() {
	b.shrink()
	smalls.Put(b)
}
