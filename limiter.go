package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// slotPatience is how long a worker's call waits for its turn before it is
	// told to come back: well below the 5 s after which the Python client gives
	// up.
	slotPatience = time.Second
	// slotEvery is how often it looks for one.
	slotEvery = 20 * time.Millisecond
	// tellEvery is how often the log tells of what may happen with every request.
	tellEvery = 10 * time.Second
)

var (
	errURLTooLong     = refuse(http.StatusRequestURITooLong, "the request target is too long").limited(limitURL)
	errHeaderTooLarge = refuse(http.StatusRequestHeaderFieldsTooLarge, "the request's header is too large").limited(limitHeader)
	errBodyTooLong    = refuse(http.StatusRequestEntityTooLarge, "the body is too long").limited(limitBody)

	errBusyNode    = notNow("this node has as many requests open as it takes", time.Second).limited(limitRequests)
	errBusyID      = notNow("the instance has as many requests open as it may have", time.Second).limited(limitID)
	errBusyAddress = &refusal{
		status: http.StatusTooManyRequests, retryAfter: time.Second, limit: limitAddress,
		message: "your address has as many requests open as it may have",
	}
	errBusyIDAddress = &refusal{
		status: http.StatusTooManyRequests, retryAfter: time.Second, limit: limitID,
		message: "your address has as many requests open to the instance as it may have",
	}
	errBusyRegistry = notNow("too many workers are registering", 2*time.Second).limited(limitRegistrations)
	errBusyBodies   = notNow("too many workers are registering", 2*time.Second).limited(limitRegistryBytes)
)

// limiter counts what is in use of a node's Limits.
type limiter struct {
	limits Limits

	requests      *quota.Quota[netip.Prefix] // of the data plane, by client address
	ids           *quota.Quota[instance]
	sitesOfIDs    *quota.Quota[siteOfID] // what of ids is counted by client address, too
	few           int                    // how many requests of an id are not
	registrations *quota.Quota[credential]
	probes        *quota.Quota[credential]
	bodies        *semaphore.Weighted // bytes of bodies of workers' calls
	bodiesMu      sync.Mutex
	bodiesOf      map[credential]*bodiesOf // of those who have, or wait for, some of them
	replay        atomic.Int64             // bytes that replay buffers may hold
	reached       *tally[limitName]        // what was reached without a refusal
	told          seldom                   // that requests are turned away
}

// tell has the log say, once in a while, that requests are turned away.
func (l *limiter) tell(log *zap.Logger, why error) {
	if l.told.due() {
		log.Warn("requests are turned away", zap.Error(why))
	}
}

// seldom is when the log last told of something that may happen often, in Unix ns.
type seldom struct{ atomic.Int64 }

// due reports whether the log is to tell of it now, and takes note that it does.
func (s *seldom) due() bool {
	last, now := s.Load(), time.Now().UnixNano()
	return now-last >= int64(tellEvery) && s.CompareAndSwap(last, now)
}

// credential names whose call it is.
type credential struct{ provider, subject string }

func credentialOf(who *passport.Identity) credential {
	return credential{who.Provider, who.Subject}
}

// siteOfID is what one client address has of an id.
type siteOfID struct {
	id   *quota.Share
	site netip.Prefix
}

// few is how many requests of an id are not counted by client address, where it may
// have more than four times as many. An address gets half of what the id may have, or
// up to so many less.
const few = 64

func newLimiter(l Limits) *limiter {
	half := max(1, l.RequestsPerID/2)
	few := min(few, half/2)
	return &limiter{
		limits:        l,
		reached:       new(tally[limitName]),
		requests:      quota.New[netip.Prefix](l.Requests, l.RequestsPerAddress),
		ids:           quota.New[instance](l.Requests, l.RequestsPerID),
		sitesOfIDs:    quota.New[siteOfID](l.Requests, half-few),
		few:           few,
		registrations: quota.New[credential](l.Registrations, l.RegistrationsPerKey),
		probes:        quota.New[credential](l.Probes, l.ProbesPerKey),
		bodies:        semaphore.NewWeighted(l.RegistryBytes),
		bodiesOf:      map[credential]*bodiesOf{},
	}
}

// checkTarget returns a refusal for a request target that is too long.
func (l *limiter) checkTarget(r *http.Request) error {
	if len(r.RequestURI) > l.limits.URLBytes {
		return errURLTooLong
	}
	return nil
}

// checkHeader returns a refusal for a header that is too large. reserved says that
// it has lines that only pinboard and its workers may use.
func (l *limiter) checkHeader(r *http.Request) (reserved bool, err error) {
	size, lines := len(r.Host), 0
	for name, values := range r.Header {
		reserved = reserved || wire.Reserved(name)
		lines += len(values)
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	if size > l.limits.HeaderBytes || lines > l.limits.HeaderLines {
		return false, errHeaderTooLarge
	}
	return reserved, nil
}

// boundBody refuses a body that says that it is too long, and has one that turns
// out to be fail.
func (l *limiter) boundBody(w http.ResponseWriter, r *http.Request) error {
	most := l.limits.BodyBytes
	if most == 0 || !hasBody(r) {
		return nil
	}
	if r.ContentLength > most {
		return errBodyTooLong
	}
	r.Body = http.MaxBytesReader(w, r.Body, most)
	return nil
}

// enter counts a request of the data plane by its client's address, until leave.
func (l *limiter) enter(site netip.Prefix) (*quota.Share, error) {
	share, err := l.requests.Take(site)
	switch err {
	case nil:
		return share, nil
	case quota.ErrShare:
		return nil, errBusyAddress
	}
	return nil, errBusyNode
}

func (l *limiter) leave(share *quota.Share) { l.requests.Give(share) }

// counted is what a request counts for besides its client's address.
type counted struct {
	id     *quota.Share
	siteOf *quota.Share // nil if it is among the few
}

// enterID counts a request that was let in by its instance, whose namespace names
// the binding, until leaveID. One address must not have all that the instance may
// have, whoever else asks for it.
func (l *limiter) enterID(name instance, site netip.Prefix) (c counted, err error) {
	if c.id, err = l.ids.Take(name); err != nil {
		return counted{}, errBusyID
	}
	// The few are no more at any time: the last of them has seen all others.
	if !site.IsValid() || c.id.Use() <= l.few {
		return c, nil
	}
	if c.siteOf, err = l.sitesOfIDs.Take(siteOfID{c.id, site}); err != nil {
		l.ids.Give(c.id)
		return counted{}, errBusyIDAddress
	}
	return c, nil
}

func (l *limiter) leaveID(c counted) {
	if c.siteOf != nil {
		l.sitesOfIDs.Give(c.siteOf)
	}
	l.ids.Give(c.id)
}

// keep returns how much of a body may be kept for a second worker, until free:
// nothing if too much is kept already.
func (l *limiter) keep(most int, length int64) (n int) {
	if length >= 0 && length < int64(most) {
		most = int(length)
	}
	size := int64(most)
	if l.replay.Add(size) > l.limits.ReplayBytes {
		l.replay.Add(-size)
		l.reached.add(limitReplay, 1)
		return 0
	}
	return most
}

func (l *limiter) free(kept int) {
	if kept > 0 {
		l.replay.Add(-int64(kept))
	}
}

// register waits for a worker's turn to register.
func (l *limiter) register(ctx context.Context, who *passport.Identity) (done func(), err error) {
	key := credentialOf(who)
	ctx, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	tick := time.NewTicker(slotEvery)
	defer tick.Stop()
	for {
		share, err := l.registrations.Take(key)
		if err == nil {
			return func() { l.registrations.Give(share) }, nil
		}
		select {
		case <-ctx.Done():
			return nil, errBusyRegistry
		case <-tick.C:
		}
	}
}

// probe reports whether a heartbeat may probe its worker; then done must be
// called.
func (l *limiter) probe(who *passport.Identity) (done func(), ok bool) {
	key := credentialOf(who)
	share, err := l.probes.Take(key)
	if err != nil {
		l.reached.add(limitProbes, 1)
		return nil, false
	}
	return func() { l.probes.Give(share) }, true
}

// bodiesOf is what one credential may have of the bodies.
type bodiesOf struct {
	*semaphore.Weighted
	calls int // that have or want some, guarded by bodiesMu
}

// bodiesFor returns what bounds the bodies of one credential: half of all, but no less
// than the longest one. The call must leave it.
func (l *limiter) bodiesFor(key credential) *bodiesOf {
	l.bodiesMu.Lock()
	defer l.bodiesMu.Unlock()
	of := l.bodiesOf[key]
	if of == nil {
		of = &bodiesOf{Weighted: semaphore.NewWeighted(max(l.limits.RegistryBytes/2, maxWorkerBody))}
		l.bodiesOf[key] = of
	}
	of.calls++
	return of
}

func (l *limiter) leaveBodies(key credential, of *bodiesOf) {
	l.bodiesMu.Lock()
	defer l.bodiesMu.Unlock()
	if of.calls--; of.calls == 0 {
		delete(l.bodiesOf, key)
	}
}

// body waits until the body of a worker's call may be read: length is what the
// call says, below 0 if it does not, and most what it may be; one that is longer
// is not read.
func (l *limiter) body(ctx context.Context, who *passport.Identity, length, most int64) (done func(), err error) {
	if length < 0 {
		length = most
	}
	if length <= smallBody || length > most {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	key := credentialOf(who)
	own := l.bodiesFor(key)
	if own.Acquire(ctx, length) != nil {
		l.leaveBodies(key, own)
		return nil, errBusyBodies
	}
	if l.bodies.Acquire(ctx, length) != nil {
		own.Release(length)
		l.leaveBodies(key, own)
		return nil, errBusyBodies
	}
	return func() {
		l.bodies.Release(length)
		own.Release(length)
		l.leaveBodies(key, own)
	}, nil
}

// checkInstances returns an error for a worker with too many live ids.
func (l *limiter) checkInstances(reg *wire.Register) error {
	n := 0
	for _, ids := range reg.Instances {
		n += len(ids)
	}
	if n > l.limits.Instances {
		return &wire.FieldError{Field: "instances", Reason: fmt.Sprintf("has %d ids, must have at most %d", n, l.limits.Instances)}
	}
	return nil
}

// Limits returns the limits of the node, defaults filled in: for the host's
// server, whose MaxHeaderBytes has to leave room for URLBytes and HeaderBytes.
func (p *Pinboard) Limits() Limits { return p.opts.Limits }
