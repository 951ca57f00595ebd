package pinboard

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/upstream"
)

// passing is the body of an answer on its way to the client, every piece of it at
// once.
type passing struct {
	to   recipient
	flow *flow
	resp *upstream.Response
	// piece is what has come already, and err how the body has ended.
	piece []byte
	err   error

	// pulls has room for those that go on at once; nil if to is no puller. stride is how
	// much it is to pull at a time, slow how many in a row were not quick.
	pulls  pulls
	stride int64
	slow   int

	silent  *stall      // since the last byte
	head    *time.Timer // until the head is sent, nil if it was
	late    sync.WaitGroup
	freeing sync.WaitGroup
	free    func() bool
}

// recipient is who gets an answer. Its errors are clientErrors.
type recipient interface {
	write(p []byte) error
	flush() error
	// finishBy has writes fail that are not done then, at any time.
	finishBy(t time.Time)
}

// puller is a recipient that can have the kernel pass on what comes by a socket.
type puller interface {
	// pull passes on all of src.
	pull(src io.Reader) (n int64, err error)
}

const (
	// A pull begins with minStride bytes, as much as is written at a time otherwise, and
	// takes twice as many, up to maxStride, after each that took no longer than quick. So
	// a client that reads slowly has the pause that writes may make for every little.
	minStride, maxStride = 32 << 10, 256 << 10
	quick                = 50 * time.Millisecond
	// maxSlow in a row that were not quick are the last ones of an answer.
	maxSlow = 3
	// maxPulls is how many go on at once. Each holds a pipe, which is two files, for as
	// long as its client does not read: as many as there are slow readers could leave
	// none for connections to workers. The others are written.
	maxPulls = 64
)

// pulls is full while as many go on as may.
type pulls chan struct{}

func (p pulls) enter() bool {
	select {
	case p <- struct{}{}:
		return true
	default:
		return false
	}
}

func (p pulls) leave() { <-p }

// begin sends the head of an answer whose body may be long in coming: at once if its
// length is not known, else after a moment, so that a short answer is one packet.
// end must be called.
func (p *passing) begin(silence time.Duration) {
	p.unblock()
	switch {
	case p.resp.Length == 0 || len(p.piece) > 0:
	case p.resp.Length < 0:
		_ = p.to.flush()
	default:
		p.late.Add(1)
		p.head = time.AfterFunc(headDelay, func() {
			defer p.late.Done()
			_ = p.to.flush()
		})
	}
	p.silent = newStall(silence, func() { p.flow.cancel(errSilent) })
}

// unblock has writes to the client end when the flow does: a client that does not
// read must not hold a request that was cut.
func (p *passing) unblock() {
	p.flow.follow()
	p.freeing.Add(1)
	p.free = p.flow.AfterFunc(func() {
		defer p.freeing.Done()
		deadline := longAgo
		if errors.Is(p.flow.cause(), errStreamEnds) {
			deadline = time.Now().Add(endTime)
		}
		p.to.finishBy(deadline)
	})
}

// end takes back what begin has set up.
func (p *passing) end() {
	p.written()
	p.silent.stop()
	if !p.free() {
		p.freeing.Wait()
	}
}

// written ends the wait for more to be sent with the head.
func (p *passing) written() {
	if p.head != nil && !p.head.Stop() {
		p.late.Wait()
	}
	p.head = nil
}

// await waits for more, on a small stack. It may also return at once.
func (p *passing) await() {
	if len(p.piece) == 0 && p.err == nil {
		p.silent.watch()
		p.resp.Await()
	}
}

// poll reports whether there is more, and does not wait. It is for a resp with a Socket.
func (p *passing) poll(again bool) bool {
	if len(p.piece) > 0 || p.err != nil || p.resp.Poll(again) {
		return true
	}
	p.silent.watch()
	return false
}

// round passes on what there is, or waits for it, until there is nothing more. It
// reports whether that was all; what is not a clientError then is the worker's
// failing.
func (p *passing) round() (over bool, err error) {
	for {
		if len(p.piece) == 0 && p.err == nil && p.pulls != nil {
			if err := p.pull(); err != nil {
				return true, err
			}
		}
		if len(p.piece) == 0 && p.err == nil {
			p.silent.watch()
			p.piece, p.err = p.resp.Next()
			p.silent.rest()
		}
		p.written()
		if len(p.piece) > 0 {
			if err := p.to.write(p.piece); err != nil {
				return true, err
			}
			p.piece = nil
		}
		switch {
		case p.err == io.EOF:
			return true, nil
		case p.err != nil:
			if p.resp.Length < 0 {
				_ = p.to.flush() // what came before that: see more
			}
			return true, p.err
		}
		if !p.resp.Ready() && !p.more() {
			err := p.to.flush()
			return err != nil, err
		}
	}
}

// more reports whether more of an answer without a length has come, which it looks for if
// the last read was filled. So the server sends the end of a chunk together with the next,
// and not in a write of two bytes.
func (p *passing) more() bool {
	return p.resp.Length < 0 && p.resp.Socket() != nil && p.resp.Poll(false)
}

// pull has the kernel pass on what has come already, if that is much. The error is as
// that of round.
func (p *passing) pull() error {
	for p.pulls != nil {
		if again, err := p.pullOnce(); !again || err != nil {
			return err
		}
	}
	return nil
}

func (p *passing) pullOnce() (again bool, err error) {
	if !p.pulls.enter() {
		return false, nil
	}
	defer p.pulls.leave()
	src := p.resp.Direct(p.stride)
	if src == nil {
		return false, nil
	}
	p.written()
	begun := time.Now()
	n, err := p.to.(puller).pull(src)
	p.resp.Passed(n)
	switch {
	case err != nil: // of the client, for the worker's bytes are there
		return false, &clientError{err}
	case n == 0:
		return false, nil // Next says why
	case time.Since(begun) <= quick:
		p.stride, p.slow = min(2*p.stride, maxStride), 0
	default:
		p.stride = minStride
		if p.slow++; p.slow == maxSlow {
			p.pulls = nil // not worth a pipe, which others could use
		}
	}
	return true, nil
}
