package pinboard

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// watchEvery is how often a node asks what became of the sessions it has
	// requests open to. A cut comes within one heartbeat (protocol §5), 3 s.
	watchEvery = time.Second
	// endGrace is how long what is open to a session that has ended before its
	// lease would have may still end by itself. Such a worker has deregistered:
	// nothing lives there, but the last bytes of its streams may be on their way,
	// and so may refusals that send a request elsewhere. With watchEvery it stays
	// within one heartbeat.
	endGrace = time.Second
	// storeTimeout bounds one look into the store. A frozen store must not
	// hold a request for longer than its client waits, nor a heartbeat for
	// longer than the worker's 5 s.
	storeTimeout = 1500 * time.Millisecond
	// forget is how many unused watch rounds a session's record is kept, at least.
	forget = 60
)

// Causes of a cancelled request to a worker.
var (
	errOwnerEnded = errors.New("the owner's session ended")
	errNodeStops  = errors.New("this node is shutting down")
)

// leases is this node's view of worker sessions: who they are, until when their
// leases run as far as this node knows, and which requests are open to them.
//
// The view is a hint for serving, never for placing: that the store decides.
type leases struct {
	store store.Store
	log   *zap.Logger
	// little is what a lease that is made use of has left, as far as is known, when
	// the store is asked for its renewals.
	little time.Duration

	mu      sync.Mutex
	ending  bool // endStreams was called
	stopped bool // cutAll was called
	byID    map[string]*lease
	pending map[string]*activation // by binding
}

// lease is one session as this node knows it. Its identity never changes.
type lease struct {
	store.Session // Headroom, Draining and the like are as first read: not kept up
	origin        upstream.Origin
	minted        minted

	// What follows is guarded by leases.mu.
	follow   string      // the session to watch: its own, or its successor's
	until    time.Time   // the watched session's lease lives at least until then
	replaced bool        // by a successor: serves no new requests
	ended    bool        // and so did every successor
	flows    flows       // open requests
	cutting  *time.Timer // set when it ended and they may go on a little
	unused   int         // watch rounds without a flow or a look-up
	recalled bool        // since the last watch round
	// forgotten: it is not known by its id any more, and not watched.
	forgotten bool
}

// activation is a registration whose answer is being written.
type activation struct {
	count int
	done  chan struct{}
}

func newLeases(s store.Store, log *zap.Logger, ttl time.Duration) *leases {
	return &leases{store: s, log: log, little: ttl / 3, byID: map[string]*lease{}, pending: map[string]*activation{}}
}

// get returns the session's record, from memory or the store. The error is
// store.ErrNoSession if it has ended.
func (l *leases) get(ctx context.Context, sessionID string) (*lease, error) {
	l.mu.Lock()
	known := l.byID[sessionID]
	if known != nil {
		known.unused = 0
	}
	ended := known != nil && known.ended
	l.mu.Unlock()
	switch {
	case ended:
		return nil, store.ErrNoSession
	case known != nil:
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	asked := time.Now()
	record, err := l.store.Session(ctx, sessionID)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.byID[sessionID]; other != nil { // somebody was quicker
		return other, nil
	}
	fresh := &lease{Session: record, origin: upstream.ParseOrigin(record.AdvertiseURL), until: asked.Add(record.TTL), follow: sessionID}
	l.byID[sessionID] = fresh
	return fresh, nil
}

// use returns a session that serves new requests, as far as this node knows, and
// until when; nil if there is none. It is watched from now on: its renewals are not
// heard of otherwise. had is most likely its record.
func (l *leases) use(sessionID string, had *lease) (s *lease, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s = had; s.forgotten || s.ID != sessionID {
		s = l.byID[sessionID]
	}
	if s == nil || s.ended || s.replaced {
		return nil, time.Time{}
	}
	s.unused, s.recalled = 0, true
	return s, s.until
}

// extend notes that the store, asked at the given time, said that the lease has
// so much left. What a node knows of a lease only grows.
func (l *leases) extend(s *lease, asked time.Time, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := asked.Add(left); until.After(s.until) {
		s.until = until
	}
}

// end notes that a session has ended for good and cuts what is open to it, also
// since a time when its worker had another session.
func (l *leases) end(sessionID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.byID {
		if s.follow == sessionID {
			l.cut(s)
		}
	}
}

// succeed notes that a client has a new session. What is open to its former
// ones stays open, for the worker is the same process (protocol §5).
func (l *leases) succeed(clientID string, secret wire.Secret, sessionID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, s := range l.byID {
		switch {
		case s.ClientID != clientID || id == sessionID || s.ended:
		case s.Secret.Equal(secret):
			s.follow, s.replaced = sessionID, true
		default:
			l.cut(s) // the store takes another secret only when this session is over
		}
	}
}

// cut ends a session in this node's view, for new requests at once; the caller
// holds the lock. Past its lease, what is open ends at once too: the worker may
// be frozen.
func (l *leases) cut(s *lease) {
	if s.ended {
		return
	}
	s.ended = true
	grace := min(time.Until(s.until), endGrace)
	if grace <= 0 || s.flows.count == 0 {
		s.cutFlows()
		return
	}
	s.cutting = time.AfterFunc(grace, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.cutFlows()
	})
}

// cutFlows cuts what is open; the caller holds the lock.
func (s *lease) cutFlows() {
	for f := range s.flows.all() {
		f.cancel(errOwnerEnded)
	}
}

// left returns what is left of the lease as this node knows it, 0 or less when
// it is over or nobody watches it.
func (l *leases) left(s *lease) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.ended || s.replaced || s.forgotten {
		return 0
	}
	return time.Until(s.until)
}

// open begins the flow f of a client's context to the session's worker, until it
// is closed. It is cancelled when the session ends.
func (l *leases) open(client context.Context, f *flow, s *lease) {
	f.Context, f.leases, f.lease, f.opened = client, l, s, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.unused = 0
	s.flows.add(f)
	switch {
	case s.ended:
		f.cancel(errOwnerEnded)
	case l.stopped:
		f.cancel(errNodeStops)
	}
}

// shut is the opposite of open.
func (l *leases) shut(f *flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.lease.flows.remove(f)
	if f.lease.cutting != nil && f.lease.flows.count == 0 {
		f.lease.cutting.Stop()
	}
}

// stream says how to end the flow when the node shuts down, which is at once if
// it already does.
func (l *leases) stream(f *flow, end func()) {
	l.mu.Lock()
	f.end = end
	ending := l.ending
	l.mu.Unlock()
	if ending {
		end()
	}
}

// endStreams ends the flows that know how to end, and those that come to know.
func (l *leases) endStreams() {
	l.mu.Lock()
	l.ending = true
	var ends []func()
	for _, s := range l.byID {
		for f := range s.flows.all() {
			if f.end != nil {
				ends = append(ends, f.end)
			}
		}
	}
	l.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// cutAll cancels every flow, and those still to come.
func (l *leases) cutAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, s := range l.byID {
		for f := range s.flows.all() {
			f.cancel(errNodeStops)
		}
	}
}

// activating says that a registration for these bindings is being recorded and
// answered: its worker knows of its session, and those that give way to it take
// no placements, a moment before the store lets it take some, and a request in
// that moment should wait, not fail.
func (l *leases) activating(bindings []string) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ns := range bindings {
		a := l.pending[ns]
		if a == nil {
			a = &activation{done: make(chan struct{})}
			l.pending[ns] = a
		}
		a.count++
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, ns := range bindings {
			a := l.pending[ns]
			if a.count--; a.count == 0 {
				close(a.done)
				delete(l.pending, ns)
			}
		}
	}
}

// awaitActivation waits while this node answers registrations for the binding,
// and reports whether there was one.
func (l *leases) awaitActivation(ctx context.Context, binding string) bool {
	l.mu.Lock()
	a := l.pending[binding]
	l.mu.Unlock()
	if a == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	select {
	case <-a.done:
		return true
	case <-ctx.Done():
		return false
	}
}
