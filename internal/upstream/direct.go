package upstream

import (
	"io"
	"net"
)

// leastDirect is how much must be there to be worth a Direct, in bytes.
const leastDirect = 16 << 10

// Direct returns a reader of what has come of a body of known length and was not read,
// of most bytes at most, to be passed to a connection's ReadFrom: that has the kernel
// move it from one socket to the other. Its reads neither wait nor fail, unless the
// exchange is aborted: what has come is there, whatever becomes of the worker. Passed must
// be called with how much was read of it. It is nil where little is there, or the bytes of the
// body are not those of a TCP connection.
func (r *Response) Direct(most int64) io.Reader {
	if r.err != nil || r.c == nil || r.framing != byLength || r.left < leastDirect || r.c.in.len() > 0 {
		return nil
	}
	d := r.c.fd
	if d == nil || !d.plain || d.dry {
		return nil
	}
	tcp, ok := r.c.wire.Conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	there := d.waiting()
	n := min(there, most, r.left)
	if n < leastDirect {
		return nil
	}
	d.dry = n == there
	r.c.in.drop()
	return &io.LimitedReader{R: tcp, N: n}
}

// Passed says that n bytes were read by Direct.
func (r *Response) Passed(n int64) {
	if r.left -= n; r.left == 0 {
		r.err = io.EOF
	}
}
