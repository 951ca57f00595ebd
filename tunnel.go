package pinboard

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/hop"
	"github.com/pinboard-go/pinboard/internal/upstream"
)

const (
	// closeRestart is the WebSocket status for a server that goes away and
	// comes back: clients reconnect.
	closeRestart = 1012
	// closeTime is how long a WebSocket that is being closed may take for it.
	closeTime = 2 * time.Second
)

// switchProtocols turns the exchange into a tunnel, which may be left to go on apart
// from the request.
func (e *exchange) switchProtocols(a *attempt) (apart *detached) {
	if !e.upgrade || !strings.EqualFold(a.resp.Header.Get(headerUpgrade), protocolWebSocket) {
		e.x.info("the worker switched to a protocol that nobody asked for", &e.call, a.lease)
		a.close()
		e.refuse(refuse(http.StatusBadGateway, "the owner switched protocols unasked"))
		return nil
	}
	e.begin()
	head := e.switchHead(a.resp.Header)
	conn, buffered, err := e.rc.Hijack()
	if err != nil {
		e.x.p.log.Error("the host's server cannot hand over a connection", zap.Error(err))
		a.close()
		e.refuse(refuse(http.StatusInternalServerError, "WebSockets are not possible here"))
		return nil
	}
	worker, early := a.resp.Conn()
	e.seen.answered(http.StatusSwitchingProtocols)
	if e.endless() {
		s := &socketApart{}
		s.outlive(e, a)
		s.tunnel.join(conn, worker, &s.flow, &e.x.p.opts.Limits)
		s.tunnel.early(head, early, pending(buffered))
		s.tunnel.apart, s.detached.start = s, s.start
		return &s.detached
	}
	t := &tunnel{}
	t.join(conn, worker, &a.flow, &e.x.p.opts.Limits)
	t.early(head, early, pending(buffered))
	t.run()
	t.tell(e.x, e.seen)
	e.trail.pair(a).tunnelled(t)
	e.x.debug("a WebSocket ended", &e.call, a.lease)
	return nil
}

// switchHead returns the head of the answer that switches protocols.
func (e *exchange) switchHead(fields upstream.Header) []byte {
	h := e.w.Header() // the host may have put something there
	copyFields(h, fields)
	delete(h, headerContentLength) // there is no body, and whoever counts one loses frames
	h[headerConnection] = []string{headerUpgrade}
	h[headerUpgrade] = []string{fields.Get(headerUpgrade)}
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	_ = h.Write(&head) // memory does not fail
	head.WriteString("\r\n")
	return head.Bytes()
}

// pending returns what the server has read of the client's bytes already.
func pending(rw *bufio.ReadWriter) []byte {
	p, _ := rw.Reader.Peek(rw.Reader.Buffered())
	return bytes.Clone(p)
}

// socketApart is a WebSocket that goes on apart from its request.
type socketApart struct {
	detached
	tunnel tunnel
}

func (s *socketApart) start() {
	t := &s.tunnel
	t.begin()
	t.up.following.follow(&t.up, &s.x.lookout, t.client)
	go follow(&t.down) // one that is waked directly: to start both for an echo costs a tenth more
}

// ended is called when the tunnel has ended.
func (s *socketApart) ended() {
	s.tunnel.tell(s.x, s.seen)
	s.contain(func() { s.x.debug("a WebSocket ended", s.call(), s.flow.lease) })
	s.contain(func() { s.spans.tunnelled(&s.tunnel) })
	s.leave()
}

// tunnel carries the bytes of a WebSocket both ways until both sides have ended
// or one has failed.
type tunnel struct {
	client, worker net.Conn
	up             upward
	down           downward

	flow   *flow
	silent *stall        // since the last byte of either side
	ending atomic.Bool   // to be closed in good order
	broke  atomic.Uint32 // a cut: why it has not ended by itself
	timer  atomic.Pointer[time.Timer]
	open   atomic.Int32 // directions
	stop   func() bool  // ends the watching of the flow

	apart *socketApart // nil while it is part of its request
}

// join has the tunnel connect two connections for as long as the flow goes on.
func (t *tunnel) join(client, worker net.Conn, f *flow, limits *Limits) {
	t.client, t.worker, t.flow = client, worker, f
	t.up.t, t.down.t = t, t
	t.up.in.Init(client)
	t.up.out.Init(worker, limits.WritePause)
	t.down.in.Init(worker)
	t.down.out.Init(client, limits.WritePause)
	t.silent = newStall(limits.Silence, func() { t.fell(cutSilence); t.end() })
	t.open.Store(2)
}

// early says what is to be sent first: the head of the answer, and what has come
// from either side already.
func (t *tunnel) early(head, worker, client []byte) {
	t.down.head, t.down.early, t.up.early = head, worker, client
}

// begin has the tunnel end with the flow, or when the node shuts down.
func (t *tunnel) begin() {
	t.flow.follow()
	t.stop = t.flow.AfterFunc(t.cut)
	t.flow.leases.stream(t.flow, t.end)
	t.silent.watch()
}

// run carries everything and closes both connections.
func (t *tunnel) run() {
	t.begin()
	var group sync.WaitGroup
	group.Go(func() { carry(&t.up) })
	carry(&t.down)
	group.Wait()
}

// carry carries one direction to its end.
func carry(d turns) {
	for !d.round() { //nolint:revive // round does it
	}
	d.over()
}

// ended is called by each direction in its end. The second one ends the tunnel.
func (t *tunnel) ended(in *hop.Inflow) {
	in.Drop()
	if t.open.Add(-1) > 0 {
		return
	}
	t.cut()
	t.stop()
	t.silent.stop()
	if timer := t.timer.Load(); timer != nil {
		timer.Stop()
	}
	if t.apart != nil {
		t.apart.ended()
	}
}

// broken is called for a panic in a direction that goes on apart.
func (t *tunnel) broken(fault any) {
	t.apart.broken(fault)
	t.cut()
}

// cut closes both connections at once.
func (t *tunnel) cut() {
	_ = t.client.Close()
	_ = t.worker.Close()
	t.up.following.wake()
}

// expire cuts the tunnel after closeTime.
func (t *tunnel) expire() {
	timer := time.AfterFunc(closeTime, t.cut)
	if !t.timer.CompareAndSwap(nil, timer) {
		timer.Stop() // the first one counts
	}
}

// end has the client told to come back, at the next frame boundary. It does not
// wait for that.
func (t *tunnel) end() {
	t.ending.Store(true)
	t.expire()
	_ = t.worker.SetReadDeadline(longAgo) // wakes down
}

// upward is the direction from the client to the worker.
type upward struct {
	t     *tunnel
	in    hop.Inflow
	out   hop.Outflow
	early []byte
	took  int64 // bytes

	following dozer
}

// await implements turns.
func (d *upward) await() {
	if len(d.early) == 0 {
		d.in.Await()
	}
}

// poll implements dozing.
func (d *upward) poll(again bool) bool { return len(d.early) > 0 || d.in.Poll(again) }

// round implements turns.
func (d *upward) round() (over bool) {
	t := d.t
	chunk, err := d.early, error(nil)
	if d.early = nil; len(chunk) == 0 {
		chunk, err = d.in.Next()
	}
	if len(chunk) > 0 {
		t.silent.watch()
		d.took += int64(len(chunk))
		if !t.send(&d.out, chunk) {
			return true
		}
	}
	if err != nil {
		t.pass(err, t.worker)
	}
	return err != nil
}

// over implements turns.
func (d *upward) over() { d.t.ended(&d.in) }

// broken implements turns.
func (d *upward) broken(fault any) { d.t.broken(fault) }

// downward is the direction from the worker to the client, and the only one that
// writes to the client.
type downward struct {
	t           *tunnel
	in          hop.Inflow
	out         hop.Outflow
	head, early []byte
	frames      hop.Frames
	took        int64 // bytes, without the head
}

// await implements turns.
func (d *downward) await() {
	if d.head == nil && len(d.early) == 0 && !d.closes() {
		d.in.Await()
	}
}

// closes reports whether it is time for the client to be told of the end.
func (d *downward) closes() bool { return d.t.ending.Load() && d.frames.Boundary() }

// round implements turns.
func (d *downward) round() (over bool) {
	t := d.t
	if head := d.head; head != nil {
		d.head = nil
		if _, err := d.out.Write(head); err != nil {
			t.cut()
			return true
		}
		return false
	}
	if d.closes() {
		t.sayClose(&d.frames)
		return true
	}
	chunk, err := d.early, error(nil)
	if d.early = nil; len(chunk) == 0 {
		chunk, err = d.in.Next()
	}
	if len(chunk) > 0 {
		t.silent.watch()
		if t.ending.Load() {
			chunk = chunk[:d.frames.Pass(chunk)]
		} else {
			d.frames.PassAll(chunk)
		}
		d.took += int64(len(chunk))
		if !t.send(&d.out, chunk) {
			return true
		}
	}
	if t.ending.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		// Woken by end. What is left of a frame is waited for.
		err = t.worker.SetReadDeadline(time.Time{})
	}
	if err != nil {
		t.pass(err, t.client)
	}
	return err != nil
}

// over implements turns.
func (d *downward) over() { d.t.ended(&d.in) }

// broken implements turns.
func (d *downward) broken(fault any) { d.t.broken(fault) }

// send writes to one side. If that fails the other direction may still have
// something to say, such as a close frame, but not for long.
func (t *tunnel) send(to io.Writer, p []byte) bool {
	_, err := to.Write(p)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.fell(cutUnread)
		}
		t.expire()
	}
	return err == nil
}

// pass passes the end of one side on to the other.
func (t *tunnel) pass(err error, to any) {
	if err != io.EOF && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		from := cutWorker
		if to == any(t.worker) {
			from = cutClient
		}
		t.fell(from)
	}
	if err != io.EOF || closeWrite(to) != nil {
		t.cut()
	}
}

// sayClose tells the client that the tunnel ends, unless the worker has done
// so. The worker learns it from the client's answer, which up carries; what it
// sends from now on is dropped.
func (t *tunnel) sayClose(frames *hop.Frames) {
	if !frames.Closed() && !t.send(&t.down.out, hop.CloseFrame(closeRestart)) {
		return
	}
	_ = t.worker.SetReadDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, t.worker)
	t.cut()
}

// reset closes a connection so that the other side sees an error, not an end.
func reset(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn() // nor an orderly end of TLS
	}
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok { // a host may wrap it
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
