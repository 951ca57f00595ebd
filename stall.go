package pinboard

import (
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/rounds"
)

// stall ends what makes no progress for too long. It sets no deadline while
// there is progress, and so never lifts one that the host's server has set. Its
// methods are safe for concurrent use; a nil *stall never ends anything.
type stall struct {
	limit time.Duration
	end   func()
	// early, if set, is called each time after a moment, if there is no progress until
	// then.
	early func()
	// rounds, if set, say when that moment is over; the timer begins only then. It is for
	// what most often rests again before.
	rounds *rounds.Rounds[*stall]

	mu    sync.Mutex
	timer *time.Timer
	armed bool      // the timer runs
	due   time.Time // zero: at rest
	over  bool
	since uint32
	noted bool
}

// newStall returns a stall at rest; nil for no limit. end is called at most once for each watch,
// and never after rest or stop has returned; it must not call the stall.
func newStall(limit time.Duration, end func()) *stall {
	if limit == 0 {
		return nil
	}
	return &stall{limit: limit, end: end}
}

// after has the timer begin only after a moment.
func (s *stall) after(r *rounds.Rounds[*stall]) {
	if s != nil {
		s.rounds = r
	}
}

// watch begins the time, or begins it anew.
func (s *stall) watch() {
	if s != nil {
		s.watchSince(time.Now())
	}
}

// watchSince is watch for a time that has begun just before.
func (s *stall) watchSince(begun time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	s.due = begun.Add(s.limit)
	if s.rounds == nil || s.limit <= 2*rounds.Time {
		s.arm(s.limit)
		return
	}
	s.since = s.rounds.Now()
	s.note()
}

// note has the rounds ask; the caller holds the lock.
func (s *stall) note() {
	if !s.noted {
		s.noted = true
		s.rounds.Note(s)
	}
}

// Due is for rounds.
func (s *stall) Due(now uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noted = false
	switch {
	case s.due.IsZero():
	case !rounds.Long(s.since, now):
		s.note()
	default:
		if s.early != nil {
			s.early()
		}
		s.arm(time.Until(s.due))
	}
}

// arm begins the timer; the caller holds the lock.
func (s *stall) arm(wait time.Duration) {
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.fire)
	} else {
		s.timer.Reset(wait)
	}
}

// halt ends the time; the caller holds the lock.
func (s *stall) halt() {
	s.due = time.Time{}
	if s.armed {
		s.armed = false
		s.timer.Stop()
	}
}

// rest ends the time until the next watch.
func (s *stall) rest() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halt()
}

// stop is rest for good.
func (s *stall) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.halt()
}

func (s *stall) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.due.IsZero() {
		return
	}
	// A timer may also have fired in the moment in which the time began anew.
	if left := time.Until(s.due); left > 0 {
		s.arm(left)
		return
	}
	s.due = time.Time{}
	s.end()
}
