package upstream

// Sent reports whether the request was sent whole. It gives one that is nearly sent
// a moment for that.
func (r *Response) Sent() bool { return r.upload == nil || r.upload.settle() }

// Shed gives up what only the request and the head of the answer needed, the header
// too, for an answer that may go on for hours. The request must have been sent.
func (r *Response) Shed() {
	if r.upload != nil {
		r.upload.stop()
		r.upload = nil
	}
	r.req, r.Header, r.fields = nil, nil, [16]Field{}
}
