package pinboard

import (
	"context"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/upstream"
)

// Why a wait ended without a turn.
var (
	errHoldOver    = errors.New("the time to wait is over")
	errHoldStopped = errors.New("this node is shutting down, and nothing waits any more")
)

// hold has the request wait until the id may be served. It reports whether to
// try again, and where if that is known already; if not, out is the answer.
func (e *exchange) hold(out *outcome) (next route, again bool) {
	if e.x.p.holds.limit == 0 || e.body != nil && !e.body.Suspend() {
		return route{}, false // off, or it can't be sent again
	}
	proxying := &e.x.p.counters.proxying
	proxying.add(e.kind, -1)
	defer proxying.add(e.kind, 1)
	if e.held == nil {
		if e.held = e.x.p.holds.join(e.call.ask, e.call.from); e.held == nil {
			e.x.p.counters.limits.add(limitHeld, 1)
			return route{}, false // too many wait already
		}
	}
	select {
	case <-e.held.over:
		return route{}, false // this was the last try
	default:
	}
	ctx, stop := e.patience()
	defer stop()
	idle := time.Duration(0)
	if out.err != nil {
		idle = asRefusal(out.err).idle
	} else {
		out.close()
	}
	e.trail.waits()
	next, err := e.held.wait(ctx, e.tried, idle)
	e.trail.waited(err)
	switch {
	case err == nil, errors.Is(err, errHoldOver):
		return next, true
	case errors.Is(err, errHoldStopped):
		if e.r.ProtoMajor == 1 {
			e.w.Header()[headerConnection] = []string{"close"}
		}
		err = notNow("this node is shutting down", time.Second).because(reasonStopping)
	case e.r.Context().Err() != nil:
		err = e.gone()
	case ctx.Err() != nil:
		err = clientFault(e.body.Err())
	}
	*out = outcome{err: err}
	return route{}, false
}

// patience returns the context of a wait: it ends with the client, which shows
// only once its body has been read, so far as that can be sent again.
func (e *exchange) patience() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(e.r.Context())
	if e.body != nil && !e.expects { // else the client would be asked for it in vain
		e.sending = true
		e.body.ReadAhead(func(err error) {
			if err != io.EOF {
				cancel()
			}
		})
	}
	return ctx, cancel
}

// settle ends the hold of a request that is about to be answered.
func (e *exchange) settle(out *outcome) {
	if e.held == nil {
		if out.refused && e.x.p.holds.limit > 0 {
			sayWhen(out.resp)
		}
		return
	}
	switch {
	case out.err == nil && !out.refused:
		e.held.leave(e.tried)
		return
	case out.err == nil:
		sayWhen(out.resp)
	}
	e.held.leave(route{})
	if e.r.Context().Err() == nil {
		e.x.p.counters.holdsGivenUp.Add(1)
	}
}

// sayWhen has a worker's refusal say when to come back, as some do not.
func sayWhen(resp *upstream.Response) {
	const name = "Retry-After"
	if resp.Header.Get(name) == "" {
		resp.Header = append(resp.Header.Without(name), upstream.Field{Name: name, Value: "1"})
	}
}

// tell logs what operators want to know of a request, but not each time that it
// is tried again while it waits.
func (e *exchange) tell(message string, owner *lease, more ...zap.Field) {
	if e.held != nil {
		e.x.debug(message, &e.call, owner, more...)
		return
	}
	e.x.info(message, &e.call, owner, more...)
}
