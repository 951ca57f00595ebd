package worker

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// flight is one request in an instance's handler. It holds the instance until
// the handler has returned and a connection that it took over is closed.
type flight struct {
	span  // the handler's context: ends with the client's, and with the instance
	inst  *Instance
	watch *stopwatch
	res   responder

	// Guarded by inst.dir.mu.
	prev, next *flight // of the instance's
	stream     bool
	hijacked   bool
	returned   bool // the handler
	closed     bool // the hijacked connection
	deferred   bool // the handler closed it, but it may not end yet

	cutting sync.Mutex
	conn    *hijackedConn       // nil before Hijack
	rw      http.ResponseWriter // nil when no longer in use
}

// flights are the requests in one instance's handler.
type flights struct {
	first *flight
	n     int
}

func (l *flights) add(f *flight) {
	if f.next = l.first; f.next != nil {
		f.next.prev = f
	}
	l.first = f
	l.n++
}

func (l *flights) remove(f *flight) {
	if f.prev == nil {
		l.first = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
	l.n--
}

// serve runs the handler. A panic ends here, or with the namespace's middleware, which
// may want to know of it.
func (f *flight) serve(w http.ResponseWriter, r *http.Request) {
	f.rw = w
	f.res = responder{ResponseWriter: w, owner: f.inst, tooLate: (*refusal).write, flight: f}
	defer f.end()
	if f.inst.host.opts.Middleware == nil {
		defer f.res.contain()
	}
	f.inst.handler.ServeHTTP(&f.res, r)
	f.res.finish()
}

// end is the last thing before the response ends.
func (f *flight) end() {
	if f.res.stream {
		f.awaitRelease()
	}
	f.cutting.Lock()
	f.rw = nil // the server's again
	f.cutting.Unlock()
	f.cancel(nil)

	d := f.inst.dir
	now := f.res.endedAt
	if !f.res.ended { // a stream, or a panic
		now = d.clock().mono
	}
	f.watch.stopAt(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	f.returned = true
	d.flightEnded(f, now)
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
	case <-f.Context.Done():
	}
}

// flightEnded forgets a flight of which nothing is left. Called with the lock held.
func (d *directory) flightEnded(f *flight, now time.Duration) {
	if !f.returned || f.hijacked && !f.closed {
		return
	}
	inst := f.inst
	inst.flights.remove(f)
	if f.stream {
		inst.streams--
	} else {
		inst.plain--
	}
	inst.idleSince, inst.connectedAt = max(inst.idleSince, now), max(inst.connectedAt, now)
	d.answered, d.answerEnd = true, now
	d.settleAt(inst, now)
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
	f.cutting.Lock()
	f.conn = conn
	f.cutting.Unlock()
	f.becomeStream()
	return conn
}

// cut ends the connection under a handler that does not end by itself.
func (f *flight) cut() {
	f.cutting.Lock()
	defer f.cutting.Unlock()
	switch {
	case f.conn != nil:
		_ = f.conn.shut()
	case f.rw != nil:
		past := time.Unix(1, 0)
		controller := http.NewResponseController(f.rw)
		_ = controller.SetReadDeadline(past) // a writer that can't is left to its handler
		_ = controller.SetWriteDeadline(past)
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
		d.flightEnded(c.flight, d.clock().mono)
	})
	return c.err
}
