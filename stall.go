package pinboard

import (
	"sync"
	"time"
)

// stall ends what makes no progress for too long. It sets no deadline while
// there is progress, and so never lifts one that the host's server has set. Its
// methods are safe for concurrent use; a nil *stall never ends anything.
type stall struct {
	limit time.Duration
	end   func()
	// early, if set, is called each time after earlyTime, if there is no progress
	// until then.
	early func()

	mu    sync.Mutex
	timer *time.Timer
	due   time.Time // zero: at rest
	over  bool
}

// earlyTime is well above what a plain request takes.
const earlyTime = 5 * time.Millisecond

// newStall returns a stall at rest; nil for no limit. end is called at most once for each watch,
// and never after rest or stop has returned; it must not call the stall.
func newStall(limit time.Duration, end func()) *stall {
	if limit == 0 {
		return nil
	}
	return &stall{limit: limit, end: end}
}

// watch begins the time, or begins it anew.
func (s *stall) watch() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.due = time.Now().Add(s.limit)
	wait := s.limit
	if s.early != nil {
		wait = min(wait, earlyTime)
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.fire)
	} else {
		s.timer.Reset(wait)
	}
}

// rest ends the time until the next watch.
func (s *stall) rest() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// stop is rest for good.
func (s *stall) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over, s.due = true, time.Time{}
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *stall) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due.IsZero() {
		return
	}
	// A timer may also have fired in the moment in which it was set anew.
	if left := time.Until(s.due); left > 0 {
		if s.early != nil {
			s.early()
			s.timer.Reset(left)
		}
		return
	}
	s.due = time.Time{}
	s.end()
}
