package hop

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// frame builds a frame of n bytes of payload.
func frame(opcode byte, n int, masked bool) []byte {
	head := []byte{0x80 | opcode, 0}
	switch {
	case n < 126:
		head[1] = byte(n)
	case n < 1<<16:
		head[1] = 126
		head = binary.BigEndian.AppendUint16(head, uint16(n))
	default:
		head[1] = 127
		head = binary.BigEndian.AppendUint64(head, uint64(n))
	}
	if masked {
		head[1] |= 0x80
		head = append(head, 1, 2, 3, 4)
	}
	return append(head, make([]byte, n)...)
}

func TestFramesEndWhereTheyEnd(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 125, 126, 127, 0xffff, 0x10000} {
		for _, masked := range []bool{false, true} {
			whole := frame(2, n, masked)
			for _, cut := range []int{0, 1, 2, 3, 5, 9, 13, len(whole) / 2, len(whole) - 1} {
				if cut >= len(whole) {
					continue
				}
				var f Frames
				if cut > 0 {
					require.Equal(t, cut, f.Pass(whole[:cut]))
					require.False(t, f.Boundary(), "%d of %d", cut, n)
				}
				rest := append(whole[cut:len(whole):len(whole)], 0x81) // and the next one begins
				require.Equal(t, len(whole)-cut, f.Pass(rest))
				require.True(t, f.Boundary())
				require.False(t, f.Closed())
			}
		}
	}
}

func TestACloseFrameIsNoticedWhenItHasPassed(t *testing.T) {
	t.Parallel()
	var f Frames
	closing := CloseFrame(1012)
	require.Equal(t, []byte{0x88, 2, 3, 0xf4}, closing)
	f.PassAll(frame(1, 8, false))
	f.PassAll(closing[:3])
	require.False(t, f.Closed())
	f.PassAll(closing[3:])
	require.True(t, f.Closed())
	require.True(t, f.Boundary())
}

// However the bytes are cut, the same frames are seen; and nothing panics.
func FuzzFrames(f *testing.F) {
	f.Add(append(frame(1, 3, true), frame(8, 2, false)...), uint8(1))
	f.Add([]byte{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		var whole, parts Frames
		whole.PassAll(data)
		for left := data; len(left) > 0; {
			n := min(len(left), int(step)+1)
			parts.PassAll(left[:n])
			left = left[n:]
		}
		require.Equal(t, whole, parts)
	})
}
