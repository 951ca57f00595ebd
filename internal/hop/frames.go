package hop

import "encoding/binary"

// Frames follows the frames of one direction of a WebSocket (RFC 6455, section
// 5.2) to tell where one ends, for only there another frame can be put in. The
// zero Frames is at the start of a frame.
type Frames struct {
	head   [14]byte // of the frame that has begun
	got    int      // bytes of head
	left   uint64   // bytes of payload still to come
	closed bool
}

// opClose is the opcode of a close frame, after which nothing may be sent.
const opClose = 0x8

// Boundary reports whether the next byte starts a frame.
func (f *Frames) Boundary() bool { return f.got == 0 }

// Closed reports whether a close frame has passed.
func (f *Frames) Closed() bool { return f.closed }

// Pass follows p, which must not be empty, up to the end of the frame that it
// continues or begins. It returns how many bytes that are: len(p) if the frame
// is longer.
func (f *Frames) Pass(p []byte) (n int) {
	for n < len(p) && f.got < f.headLength() {
		f.head[f.got] = p[n]
		f.got++
		n++
		if f.got == f.headLength() {
			f.left = f.payload()
		}
	}
	if f.got < f.headLength() {
		return n
	}
	rest := min(f.left, uint64(len(p)-n))
	f.left -= rest
	n += int(rest) // at most len(p)
	if f.left == 0 {
		f.closed = f.closed || f.head[0]&0xf == opClose
		f.got = 0
	}
	return n
}

// PassAll follows all of p.
func (f *Frames) PassAll(p []byte) {
	for len(p) > 0 {
		p = p[f.Pass(p):]
	}
}

// headLength is the length of the head as far as it can be told.
func (f *Frames) headLength() int {
	if f.got < 2 {
		return 2
	}
	n := 2
	switch f.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.head[1]&0x80 != 0 {
		n += 4 // the mask
	}
	return n
}

func (f *Frames) payload() uint64 {
	switch length := f.head[1] & 0x7f; length {
	case 126:
		return uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		return binary.BigEndian.Uint64(f.head[2:])
	default:
		return uint64(length)
	}
}

// CloseFrame is an unmasked close frame with a status code and no reason.
func CloseFrame(code uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{0x80 | opClose, 2}, code)
}
