package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"
)

const (
	// maxFrame bounds what is read of one frame: maxText characters at their
	// longest in JSON, and the name.
	maxFrame = 8 << 10
	// A member may send so many messages at once, and one more each sayEvery.
	// One who sends faster is read slower, and nothing is lost.
	sayBurst = 5
	sayEvery = 200 * time.Millisecond
	// keepAlive is how often an idle connection is pinged. It is shorter than
	// the minute after which many a proxy on the way ends a silent connection.
	keepAlive = 20 * time.Second
	// sendTimeout is how long one frame, or the answer to a ping, may take.
	sendTimeout = 10 * time.Second
)

// goodbye is why the room ends a connection, as the page will be told.
type goodbye struct {
	code   websocket.StatusCode
	reason string
}

func (g goodbye) Error() string { return g.reason }

var (
	errFull    = goodbye{websocket.StatusTryAgainLater, "The room is full."}
	errSlow    = goodbye{websocket.StatusPolicyViolation, "The connection was too slow to keep up."}
	errBad     = goodbye{websocket.StatusPolicyViolation, "The room did not understand that message."}
	errRestart = goodbye{websocket.StatusServiceRestart, "The room moves to another worker."}
)

// member is one connection. One goroutine reads from it, one writes to it.
type member struct {
	room     *room
	conn     *websocket.Conn
	id       int
	frames   chan []byte   // to be sent
	presence chan struct{} // the number of members has changed

	ctx context.Context // ends when the member is to go, or the instance ends
	end context.CancelCauseFunc
}

// serveSocket is a member's stay. While it lasts the instance is not idle.
func (r *room) serveSocket(w http.ResponseWriter, req *http.Request) {
	// Accept refuses pages of other origins. Pinboard passes the browser's
	// Host on; so must what stands in front of pinboard.
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		return // it has answered
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxFrame)
	m := &member{room: r, conn: conn, frames: make(chan []byte, queue), presence: make(chan struct{}, 1)}
	m.ctx, m.end = context.WithCancelCause(r.in.Context())
	defer m.end(nil)
	if !r.join(m) {
		// Closed by a code, since a page can't see the status of a refused
		// upgrade.
		_ = conn.Close(errFull.code, errFull.reason)
		return
	}
	defer r.leave(m)
	var writer sync.WaitGroup
	writer.Go(func() { m.write(req.Context()) })
	m.end(m.read(req.Context()))
	writer.Wait()
}

// read returns when the client has gone, or why it has to go.
func (m *member) read(ctx context.Context) error {
	pace := rate.NewLimiter(rate.Every(sayEvery), sayBurst)
	for {
		_, frame, err := m.conn.Read(ctx) // answers pings, too
		if err != nil {
			return err
		}
		if err := pace.Wait(m.ctx); err != nil {
			return err
		}
		s, ok := parse(frame)
		if !ok {
			return errBad
		}
		m.room.say(m, s)
	}
}

// write sends what is queued until the member is to go, and takes leave.
func (m *member) write(ctx context.Context) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case frame := <-m.frames:
			err = m.send(ctx, frame)
		case <-m.presence:
			err = m.send(ctx, m.room.presenceFrame())
		case <-tick.C:
			if err = m.ping(ctx); err == nil {
				err = m.send(ctx, m.room.presenceFrame())
			}
		case <-m.ctx.Done():
			m.takeLeave()
			return
		}
	}
	_ = m.conn.CloseNow() // which ends read
}

func (m *member) send(ctx context.Context, frame []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return m.conn.Write(ctx, websocket.MessageText, frame)
}

func (m *member) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return m.conn.Ping(ctx)
}

// takeLeave closes the connection in good order, in seconds at most. When the
// instance ends, the worker keeps the connection from ending before the id is
// free, so that a page which connects again finds the next owner.
func (m *member) takeLeave() {
	why := errRestart
	var g goodbye
	switch {
	case errors.As(context.Cause(m.ctx), &g):
		why = g
	case m.room.in.Context().Err() == nil:
		_ = m.conn.CloseNow() // the client has gone
		return
	}
	_ = m.conn.Close(why.code, why.reason)
}
