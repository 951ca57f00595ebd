package worker

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// flight is one request in an instance's handler. It holds the instance until
// the handler has returned and a connection that it took over is closed.
type flight struct {
	inst   *Instance
	client context.Context // ends when the client goes away
	ctx    context.Context // the handler's; also ends with the instance
	cancel context.CancelCauseFunc
	watch  *stopwatch

	// Guarded by inst.dir.mu.
	stream   bool
	hijacked bool
	returned bool // the handler
	closed   bool // the hijacked connection
	deferred bool // the handler closed it, but it may not end yet

	mu         sync.Mutex
	conn       *hijackedConn            // nil before Hijack
	controller *http.ResponseController // nil when no longer in use
}

// serve runs the handler. A panic goes on to the server, which cuts the
// connection (net/http.ErrAbortHandler).
func (f *flight) serve(w http.ResponseWriter, r *http.Request) {
	f.controller = http.NewResponseController(w)
	res := &responder{ResponseWriter: w, flight: f}
	defer f.end()
	defer f.watch.stop()
	f.inst.handler.ServeHTTP(res, r)
	res.finish()
}

// end is the last thing before the response ends.
func (f *flight) end() {
	f.awaitRelease()
	f.mu.Lock()
	f.controller = nil // the server's again
	f.mu.Unlock()
	f.cancel(nil)

	d := f.inst.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	f.returned = true
	d.flightEnded(f)
}

// awaitRelease keeps a stream of a closing instance from ending before the id
// was released, unless nobody is there to see it end.
func (f *flight) awaitRelease() {
	d := f.inst.dir
	d.mu.Lock()
	held := f.stream && f.inst.state == stateClosing
	d.mu.Unlock()
	if !held {
		return
	}
	select {
	case <-f.inst.released:
	case <-f.client.Done():
	}
}

// flightEnded forgets a flight of which nothing is left. Called with the lock held.
func (d *directory) flightEnded(f *flight) {
	if !f.returned || f.hijacked && !f.closed {
		return
	}
	inst := f.inst
	delete(inst.flights, f)
	if f.stream {
		inst.streams--
	} else {
		inst.plain--
	}
	now := d.clock().mono
	inst.idleSince, inst.connectedAt = now, now
	d.settle(inst)
}

// becomeStream notes that the response has no end in sight. Once the instance
// closes it is too late for that: the closing waits for all plain requests.
func (f *flight) becomeStream() {
	d := f.inst.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.stream || f.inst.state == stateClosing {
		return
	}
	f.stream = true
	f.inst.plain--
	f.inst.streams++
	d.settle(f.inst)
}

// tookOver notes that the handler took the connection over.
func (f *flight) tookOver(raw net.Conn) *hijackedConn {
	conn := &hijackedConn{Conn: raw, flight: f}
	d := f.inst.dir
	d.mu.Lock()
	f.hijacked = true
	d.mu.Unlock()
	f.mu.Lock()
	f.conn = conn
	f.mu.Unlock()
	f.becomeStream()
	return conn
}

// cut ends the connection under a handler that does not end by itself.
func (f *flight) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.conn != nil:
		_ = f.conn.shut()
	case f.controller != nil:
		past := time.Unix(1, 0)
		_ = f.controller.SetReadDeadline(past) // a writer that can't is left to its handler
		_ = f.controller.SetWriteDeadline(past)
	}
}

// closeDeferred closes a connection that the handler had closed too early.
func (f *flight) closeDeferred() {
	d := f.inst.dir
	d.mu.Lock()
	deferred := f.deferred
	d.mu.Unlock()
	if deferred {
		f.cut()
	}
}

// hijackedConn is a connection that a handler took over. It holds the instance
// until it is closed.
type hijackedConn struct {
	net.Conn
	flight *flight
	once   sync.Once
	err    error
}

// Close closes the connection. While the instance closes, and until its id is
// released, the client is kept from seeing that: reads and writes fail from
// now on, and the connection ends with the other streams.
func (c *hijackedConn) Close() error {
	f, d := c.flight, c.flight.inst.dir
	d.mu.Lock()
	f.deferred = f.stream && f.inst.state == stateClosing && !f.inst.givenUp
	deferred := f.deferred
	d.mu.Unlock()
	if deferred {
		return c.SetDeadline(time.Unix(1, 0))
	}
	return c.shut()
}

func (c *hijackedConn) shut() error {
	c.once.Do(func() {
		c.err = c.Conn.Close()
		d := c.flight.inst.dir
		d.mu.Lock()
		defer d.mu.Unlock()
		c.flight.closed = true
		d.flightEnded(c.flight)
	})
	return c.err
}
