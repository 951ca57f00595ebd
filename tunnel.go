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

// switchProtocols turns the exchange into a tunnel, which it closes.
func (e *exchange) switchProtocols(a *attempt) {
	if !e.upgrade || !strings.EqualFold(a.resp.Header.Get(headerUpgrade), protocolWebSocket) {
		e.x.info("the worker switched to a protocol that nobody asked for", &e.call, a.lease)
		a.close()
		e.refuse(refuse(http.StatusBadGateway, "the owner switched protocols unasked"))
		return
	}
	e.begin()
	head := e.switchHead(a.resp.Header)
	client, buffered, err := e.rc.Hijack()
	if err != nil {
		e.x.p.log.Error("the host's server cannot hand over a connection", zap.Error(err))
		a.close()
		e.refuse(refuse(http.StatusInternalServerError, "WebSockets are not possible here"))
		return
	}
	limits := &e.x.p.opts.Limits
	worker, early := a.resp.Conn()
	t := &tunnel{client: paced{client, limits.WritePause}, worker: paced{worker, limits.WritePause}, early: early}
	t.silent = newStall(limits.Silence, t.end)
	a.flow.follow()
	defer e.trail.tunnelled(e, a, t)
	stop := a.flow.AfterFunc(t.cut)
	defer stop()
	e.x.p.leases.stream(&a.flow, t.end)
	t.run(head, pending(buffered))
	e.x.debug("a WebSocket ended", &e.call, a.lease)
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

// tunnel carries the bytes of a WebSocket both ways until both sides have ended
// or one has failed.
type tunnel struct {
	client net.Conn
	worker net.Conn
	early  []byte // what came from the worker with its head

	silent *stall      // since the last byte of either side
	ending atomic.Bool // to be closed in good order
	timer  atomic.Pointer[time.Timer]
}

// run carries everything, beginning with head for the client and early for the
// worker, and closes both connections.
func (t *tunnel) run(head, early []byte) {
	defer t.cut()
	if _, err := t.client.Write(head); err != nil {
		return
	}
	var group sync.WaitGroup
	t.silent.watch()
	group.Go(func() { t.up(early) })
	t.down()
	group.Wait()
	t.silent.stop()
	if timer := t.timer.Load(); timer != nil {
		timer.Stop()
	}
}

// cut closes both connections at once.
func (t *tunnel) cut() {
	_ = t.client.Close()
	_ = t.worker.Close()
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

// up carries bytes from the client to the worker.
func (t *tunnel) up(early []byte) {
	if len(early) > 0 && !t.send(t.worker, early) {
		return
	}
	buf := hop.GetBuffer(-1)
	defer buf.Put()
	for {
		n, err := t.client.Read(buf.Space())
		if n > 0 {
			t.silent.watch()
			if !t.send(t.worker, buf.Space()[:n]) {
				return
			}
			buf.Took(n)
		}
		if err != nil {
			t.pass(err, t.worker)
			return
		}
	}
}

// send writes to one side. If that fails the other direction may still have
// something to say, such as a close frame, but not for long.
func (t *tunnel) send(to io.Writer, p []byte) bool {
	_, err := to.Write(p)
	if err != nil {
		t.expire()
	}
	return err == nil
}

// pass passes the end of one side on to the other.
func (t *tunnel) pass(err error, to any) {
	if err != io.EOF || closeWrite(to) != nil {
		t.cut()
	}
}

// down carries bytes from the worker to the client, and is the only one that
// writes to the client.
func (t *tunnel) down() {
	buf := hop.GetBuffer(-1)
	defer buf.Put()
	var frames hop.Frames
	for {
		if t.ending.Load() && frames.Boundary() {
			t.sayClose(&frames)
			return
		}
		n, err := copy(buf.Space(), t.early), error(nil)
		if t.early = t.early[n:]; n == 0 {
			n, err = t.worker.Read(buf.Space())
		}
		if n > 0 {
			t.silent.watch()
			chunk := buf.Space()[:n]
			if t.ending.Load() {
				chunk = chunk[:frames.Pass(chunk)]
			} else {
				frames.PassAll(chunk)
			}
			if !t.send(t.client, chunk) {
				return
			}
			buf.Took(n)
		}
		if t.ending.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			// Woken by end. What is left of a frame is waited for.
			err = t.worker.SetReadDeadline(time.Time{})
		}
		if err != nil {
			t.pass(err, t.client)
			return
		}
	}
}

// sayClose tells the client that the tunnel ends, unless the worker has done
// so. The worker learns it from the client's answer, which up carries; what it
// sends from now on is dropped.
func (t *tunnel) sayClose(frames *hop.Frames) {
	if !frames.Closed() && !t.send(t.client, hop.CloseFrame(closeRestart)) {
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
