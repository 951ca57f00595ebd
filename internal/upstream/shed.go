package upstream

import (
	"context"
	"net"
)

// Sent reports whether the request was sent whole. It gives one that is nearly sent
// a moment for that.
func (r *Response) Sent() bool { return r.upload == nil || r.upload.settle() }

// Shed returns the answer without what only the request and the head needed, the
// header too, for a body that may go on for hours. It is cancelled by ctx from now
// on, no more by that of Do. The request must have been sent, and r must not be used
// any more.
func (r *Response) Shed(ctx context.Context) *Response {
	if r.upload != nil {
		r.upload.stop()
	}
	live := r.stop() // else it is being aborted, which shows at any time
	body := &Response{
		Status: r.Status, Length: r.Length, c: r.c, pool: r.pool, stop: afterFunc(ctx, r.c.onAbort),
		framing: r.framing, state: r.state, left: r.left, keep: r.keep && live, heads: r.heads, line: r.line, scanned: r.scanned, err: r.err,
	}
	r.c = nil
	if body.c.fd != nil {
		// Who watches the connection from now on is not told of what came before, and
		// may have been told of an abort while there is something to take first.
		body.c.fd.dry = false
	}
	return body
}

// Await returns when Next may have something to do, on a small stack and without a
// buffer. It may also return at once.
func (r *Response) Await() {
	if r.err == nil && r.c != nil && r.c.in.len() == 0 {
		r.c.in.drop()
		if r.c.plain() {
			r.c.fd.await()
		}
	}
}

// Socket returns the connection if it can be watched for what comes, for Poll; else nil.
func (r *Response) Socket() net.Conn {
	if r.c == nil || !r.c.plain() {
		return nil
	}
	return r.c.wire.Conn
}

// OnAbort has f called when the exchange is aborted, once Poll shows that, on any
// goroutine. It must not wait. It is for a Response that was shed.
func (r *Response) OnAbort(f func()) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = f
	if c.aborted {
		f()
	}
}

// Poll reports whether Next has something, an end or a failure too, without waiting. If
// not, there is a buffer only for what is half of something. It does not look where the
// last read took all there was, unless again: that is for what has come since, and for
// the end. It is for a Response that has a Socket.
func (r *Response) Poll(again bool) bool {
	for r.err == nil && r.c != nil {
		for r.framing == byChunks && r.state != chunkData && r.err == nil && r.control() { //nolint:revive // control does it
		}
		if r.err != nil || r.Ready() {
			return true
		}
		c := r.c
		c.in.drop()
		if c.fd.dry && !again {
			return false
		}
		n, err := c.fd.peruse()
		if err == errNothing {
			return false
		}
		if n == 0 {
			c.late = err
			return true
		}
	}
	return true
}
