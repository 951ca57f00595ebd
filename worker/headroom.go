package worker

import (
	"context"
	"math"
	"time"

	"go.uber.org/zap"
)

// headroomPatience is how long one attempt at most waits for Options.Headroom.
const headroomPatience = time.Second

// headroom asks Options.Headroom for the figure that each attempt carries
// (protocol §2). Whatever that function does, attempts go on. It belongs to the
// registration's loop, which alone calls figure.
//
// One call runs at a time: a function that never returns costs one goroutine,
// which is nobody's to end, and not another one with each heartbeat.
type headroom struct {
	ask      func() float64
	log      *zap.Logger
	patience time.Duration
	failed   func() // counts a call without a good answer in time

	last    float64             // the last good answer
	pending chan headroomAnswer // of the call that is under way, nil if none is
	slow    bool                // the last call that ended took longer than patience
}

type headroomAnswer struct {
	figure float64
	took   time.Duration
	fault  []zap.Field // of a panic
}

func newHeadroom(opts *Options, failed func()) headroom {
	// A third of the interval: sent that late, a heartbeat is still in time.
	patience := min(headroomPatience, opts.HeartbeatInterval/3)
	return headroom{ask: opts.Headroom, log: opts.Logger, patience: patience, failed: failed}
}

// figure returns what is to be sent now: the answer to a new call if it comes
// in time, else the last good one. After a slow call it no longer waits, and
// takes the answer that came meanwhile, until one was fast again.
func (h *headroom) figure(ctx context.Context) float64 {
	if h.pending != nil {
		select {
		case a := <-h.pending:
			h.take(a)
		default:
			return h.last
		}
	}
	h.pending = make(chan headroomAnswer, 1)
	go h.call(h.pending)
	if h.slow {
		return h.last
	}
	timer := time.NewTimer(h.patience)
	defer timer.Stop()
	select {
	case a := <-h.pending:
		h.take(a)
	case <-timer.C:
		h.failed()
		h.log.Error("Headroom does not return: sending its last good answer until it does", zap.Duration("waited", h.patience))
	case <-ctx.Done(): // nothing is sent any more
	}
	return h.last
}

// call runs the function once. It logs nothing itself: it may outlive the
// worker, and the logger.
func (h *headroom) call(answer chan<- headroomAnswer) {
	a := headroomAnswer{figure: math.NaN()} // stays so if the goroutine is made to exit
	began := time.Now()
	defer func() {
		if v := recover(); v != nil {
			a.fault = []zap.Field{zap.String("callback", "Headroom"), zap.Any("panic", v), zap.Stack("stack")}
		}
		a.took = time.Since(began)
		answer <- a
	}()
	a.figure = h.ask()
}

// take ends the call that was under way.
func (h *headroom) take(a headroomAnswer) {
	h.pending = nil
	h.slow = a.took >= h.patience
	switch {
	case a.fault != nil:
		h.failed()
		h.log.Error("callback panicked", a.fault...)
	case a.figure >= 0 && !math.IsInf(a.figure, 0): // false for NaN
		h.last = a.figure
	default:
		h.failed()
		h.log.Error("Headroom returned no finite number of at least 0", zap.Float64("headroom", a.figure))
	}
}
