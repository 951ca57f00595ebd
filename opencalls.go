package pinboard

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// cutEvery is the pause after which calls are cut again that have set themselves a
// deadline since.
const cutEvery = 50 * time.Millisecond

// openCalls are calls below /registry that are being served. Each may wait for its
// client, to send a body or to read an answer.
type openCalls struct {
	mu  sync.Mutex
	all map[*openCall]struct{}
}

// openCall is one of them, on its connection.
type openCall struct {
	w      http.ResponseWriter
	cancel context.CancelFunc // its work, nil while it waits for its body
}

// begin takes in a call, which end lets go of before its handler returns.
func (o *openCalls) begin(w http.ResponseWriter) *openCall {
	c := &openCall{w: w}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*openCall]struct{}{}
	}
	o.all[c] = struct{}{}
	return c
}

func (o *openCalls) end(c *openCall) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

// works says what ends the call's work.
func (o *openCalls) works(c *openCall, cancel context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.cancel = cancel
}

// cut ends what the calls wait for and do. A call that sets itself a deadline
// meanwhile has to be cut again.
func (o *openCalls) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		if c.cancel != nil {
			c.cancel()
		}
		control := http.NewResponseController(c.w)
		_ = control.SetReadDeadline(longAgo)
		_ = control.SetWriteDeadline(longAgo)
	}
}

// cutAll cuts all requests that are being served and returns when none is left.
func (p *Pinboard) cutAll() {
	p.leases.cutAll()
	p.pace.cut()
	for over := false; !over; {
		p.registry.open.cut()
		ctx, cancel := context.WithTimeout(context.Background(), cutEvery)
		over = p.background.wait(ctx) == nil
		cancel()
	}
}
