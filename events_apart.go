package pinboard

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/pinboard-go/pinboard/internal/hop"
)

// unheard is how much of what a client sends while it gets events is dropped, in
// bytes. One that sends more is left: what nobody reads would hide that it has gone.
const unheard = 64 << 10

// detaches reports whether an event stream is to go on apart from its request. It
// must be an answer that ends by itself, for the connection ends with it; and
// everything that the client had to say must have been said.
func (e *exchange) detaches(a *attempt) bool {
	return e.endless() && a.resp.Length < 0 && e.r.ProtoMajor == 1 && e.r.ProtoMinor >= 1 &&
		serversOwn(e.w) && (e.body == nil || e.body.Ended()) && a.resp.Sent()
}

// detach takes over the client's connection for an event stream.
func (e *exchange) detach(a *attempt) *detached {
	// The host's code may panic, and nobody would close the connection after that.
	e.trail.answered(a.resp.Status)
	conn, _, err := e.rc.Hijack() // a request that came too early gets no answer
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is broken
	}
	e.finish(true)
	s := &eventsApart{conn: conn}
	s.out.out.Init(conn, e.x.p.opts.Limits.WritePause)
	s.announced, s.perHop = e.fillHead(a.resp), nominated(a.resp.Header)
	s.out.begin(a.resp.Status, e.w.Header())
	s.passing.piece, s.passing.err = a.ahead, a.aheadErr
	s.outlive(e, a)
	s.detached.start = s.start
	return &s.detached
}

// eventsApart is an event stream that goes on apart from its request.
type eventsApart struct {
	detached
	conn      net.Conn // the client's
	passing   passing
	out       chunked
	announced []string            // trailers
	perHop    map[string]struct{} // names that are none
	whole     bool                // ended in good order

	following dozer
	client    deaf
}

func (s *eventsApart) start() {
	s.x.p.leases.stream(&s.flow, func() { s.flow.cancel(errStreamEnds) })
	s.passing.to, s.passing.flow, s.passing.resp = &s.out, &s.flow, s.resp
	s.passing.begin(s.x.p.opts.Limits.Silence)
	s.client.begin(s)
	s.resp.OnAbort(s.following.wake)
	s.following.follow(s, &s.x.lookout, s.resp.Socket())
}

// deaf is the other direction of an event stream. It ends the stream when the client
// leaves, and not when it only sends something.
type deaf struct {
	s         *eventsApart
	in        hop.Inflow
	left      int // of unheard
	following dozer
	ended     sync.WaitGroup
}

func (d *deaf) begin(s *eventsApart) {
	d.s, d.left = s, unheard
	d.in.Init(s.conn)
	d.ended.Add(1)
	d.following.follow(d, &s.x.lookout, s.conn)
}

// await implements turns.
func (d *deaf) await() { d.in.Await() }

// poll implements dozing.
func (d *deaf) poll(again bool) bool { return d.in.Poll(again) }

// round implements turns.
func (d *deaf) round() (over bool) {
	p, err := d.in.Next()
	d.left -= len(p)
	over = err != nil || d.left <= 0
	if over {
		d.s.flow.cancel(errClientGone)
	}
	return over
}

// over implements turns.
func (d *deaf) over() {
	d.in.Drop()
	d.ended.Done()
}

// broken implements turns.
func (d *deaf) broken(fault any) {
	d.s.detached.broken(fault)
	d.s.flow.cancel(errClientGone)
}

// await implements turns.
func (s *eventsApart) await() { s.passing.await() }

// poll implements dozing.
func (s *eventsApart) poll(again bool) bool { return s.passing.poll(again) }

// round implements turns.
func (s *eventsApart) round() (over bool) {
	over, err := s.passing.round()
	if over {
		s.finish(err)
	}
	return over
}

// finish ends the answer. It is apart from round for the sake of that one's stack.
func (s *eventsApart) finish(err error) {
	s.spans.cut(&s.flow, err)
	switch {
	case err == nil:
		h := http.Header{}
		fillTrailers(h, s.announced, s.perHop, s.resp.Trailer)
		s.whole = s.out.end(h) == nil
	case errors.Is(s.flow.cause(), errStreamEnds):
		s.whole = s.out.end(nil) == nil
	default:
		s.x.wasCut(s.seen, cutOf(&s.flow, err, false))
		s.x.logCut(s.call(), &s.flow, err)
	}
}

// over implements turns.
func (s *eventsApart) over() {
	s.passing.end()
	conn := s.conn
	if t, ok := conn.(*tls.Conn); ok && !s.whole {
		conn = t.NetConn() // an orderly end of TLS could wait for the client
	}
	_ = conn.Close() // ends the other direction
	s.client.following.wake()
	s.client.ended.Wait()
	s.seen.wrote(s.out.sent)
	s.leave()
}
