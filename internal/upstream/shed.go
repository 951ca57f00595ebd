package upstream

import "context"

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
	return body
}

// Await returns when Next may have something to do, on a small stack and without a
// buffer. It may also return at once.
func (r *Response) Await() {
	if r.err == nil && r.c != nil && r.c.in.len() == 0 {
		r.c.in.drop()
		if r.c.fd != nil && r.c.fd.plain {
			r.c.fd.await()
		}
	}
}
