package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// registration keeps this process registered with pinboard (protocol §2): one
// loop, in which each attempt ends before the next begins.
type registration struct {
	opts       *Options
	log        *zap.Logger
	clock      clock
	client     *client
	lease      *lease
	dir        *directory
	namespaces func() []string
	envs       func() map[string]string
	metrics    *metrics // set before start

	// Minted once for each process: a restarted one can't claim what its
	// predecessor held.
	clientID string
	secret   wire.Secret

	echo     drain // the operator's, as last applied (protocol §2)
	backoff  backoff
	headroom headroom
	acks     map[string]struct{} // applied, and not yet confirmed by a 200

	wake    chan struct{} // a next attempt is due now
	cancel  context.CancelFunc
	running sync.WaitGroup // the loop, and what it started

	releases *releaseQueue

	superseded      atomic.Bool
	draining        atomic.Bool // this worker's own drain
	reregistrations atomic.Int64

	session atomic.Pointer[string] // nil without one; changes with mu

	mu              sync.Mutex
	changed         chan struct{} // closed when pinboard has said something new
	prevSession     string
	registered      bool
	deregistered    bool        // the session
	challenge       wire.Secret // the current pair, empty before the first attempt
	challengeAnswer wire.Secret
}

func newRegistration(opts *Options, now clock, jitter func() float64, l *lease, dir *directory) *registration {
	r := &registration{
		opts: opts, log: opts.Logger, clock: now, client: newClient(opts), lease: l, dir: dir,
		clientID: randomHex(16), secret: wire.NewSecret(randomHex(32)),
		backoff: backoff{interval: opts.HeartbeatInterval, jitter: jitter},
		acks:    map[string]struct{}{},
		wake:    make(chan struct{}, 1), changed: make(chan struct{}), releases: newReleaseQueue(),
	}
	r.headroom = newHeadroom(opts, func() { r.metrics.callbackFailed("Headroom") })
	return r
}

// start runs the loop until stop.
func (r *registration) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.running.Go(func() { r.run(ctx) })
}

// goLocal stands in for a registration where there is no pinboard.
func (r *registration) goLocal() {
	r.mu.Lock()
	r.registered = true
	r.mu.Unlock()
	r.lease.grantForever()
	r.broadcast()
}

// stop ends the loop; running waits for it.
func (r *registration) stop() {
	if r.cancel != nil {
		r.cancel()
	}
}

func (r *registration) run(ctx context.Context) {
	for {
		// Emptied before the attempt reads anything: what changes while the
		// attempt runs leads to another one at once.
		select {
		case <-r.wake:
		default:
		}
		// The rate is fixed from when an attempt starts: a slow answer does
		// not stretch it.
		started := r.clock().mono
		if r.sessionID() == "" {
			r.register(ctx)
		} else {
			r.heartbeat(ctx)
		}
		if ctx.Err() != nil || r.superseded.Load() {
			return
		}
		timer := time.NewTimer(r.interval() - (r.clock().mono - started))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-r.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

func (r *registration) interval() time.Duration {
	if r.sessionID() != "" {
		return r.opts.HeartbeatInterval
	}
	return r.backoff.delay()
}

// setDraining tells pinboard with an attempt of its own, not at the next tick.
func (r *registration) setDraining(draining bool) {
	if r.draining.Swap(draining) == draining {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *registration) register(ctx context.Context) {
	body := r.registerBody(ctx)
	sent := r.clock() // not before: Options.Headroom may take its time
	a, err := r.client.post(ctx, wire.PathRegister, body)
	switch {
	case ctx.Err() != nil:
		return
	case unreached(err):
		r.backoff.unreachable()
		r.metrics.registrationFailed("transport")
		r.log.Warn("registration failed", zap.String("url", r.client.url(wire.PathRegister)), zap.Error(err))
	case err != nil:
		r.registrationFailed("transport")
		r.log.Warn("registration failed", zap.String("url", r.client.url(wire.PathRegister)), zap.Error(err))
	case a.status == http.StatusUnauthorized:
		r.registrationFailed("unauthorized")
		r.log.Error("registration rejected with 401: check the deployment token (PINBOARD_TOKEN)", r.rejection(a)...)
	case a.status == http.StatusServiceUnavailable:
		// Not yet: pinboard, or this worker's own advertise URL, is not ready.
		r.metrics.controlFailed("register", "deferred")
		r.backoff.deferBy(a.retryAfter)
		level := zap.InfoLevel
		if r.backoff.failures >= 3 {
			level = zap.WarnLevel
		}
		r.log.Log(level, "registration deferred", zap.Int("attempt", r.backoff.failures), zap.String("error", a.why()),
			zap.String("url", r.client.url(wire.PathRegister)))
	case a.status != http.StatusOK:
		r.registrationFailed("rejected")
		r.log.Warn("registration rejected", r.rejection(a)...)
	default:
		r.accept(ctx, sent, a)
	}
}

// rejection tells of an answer that is no session: what was called, too, since it
// may be that something else than the registry is there.
func (r *registration) rejection(a *answer) []zap.Field {
	fields := []zap.Field{
		zap.Int("status", a.status), zap.String("error", a.why()), zap.String("url", r.client.url(wire.PathRegister)),
	}
	if a.elsewhere() {
		fields = append(fields, zap.String("hint", "this is no answer of pinboard's registry: is the base path of PINBOARD_URL right?"))
	}
	return fields
}

func (r *registration) registrationFailed(reason string) {
	r.backoff.failed()
	r.metrics.registrationFailed(reason)
}

func (r *registration) registerBody(ctx context.Context) *wire.Register {
	body := &wire.Register{
		ClientID: r.clientID, Secret: r.secret, Namespaces: r.namespaces(), AdvertiseURL: r.opts.AdvertiseURL,
		Headroom: r.headroom.figure(ctx), Draining: r.draining.Load(), Instances: r.dir.held(),
		Hostname: r.opts.Hostname, Env: r.opts.Env, Envs: r.envs(),
		Takeover: string(r.opts.Takeover), Epoch: r.opts.Epoch,
	}
	// The new pair is answerable from here on, before the call is made.
	body.Challenge, body.ChallengeValue = r.newChallenge()
	r.mu.Lock()
	defer r.mu.Unlock()
	body.PrevSessionID = r.prevSession
	return body
}

func (r *registration) accept(ctx context.Context, sent instant, a *answer) {
	session, okSession := get[string](a, "sessionId")
	ttl, okTTL := a.expiresIn()
	if !okSession || session == "" || !okTTL {
		r.registrationFailed("malformed")
		r.log.Error("registration answered without a session or a lease time")
		return
	}
	r.backoff.reset()
	clear(r.acks)
	// Duplicates quit before the lease is renewed: no request gets to an
	// instance that another session owns.
	for _, ref := range r.duplicates(a) {
		r.metrics.duplicateQuits.Inc()
		r.log.Warn("placed elsewhere meanwhile: quitting the instance",
			zap.String("namespace", ref.Namespace), zap.String("id", ref.ID))
		r.dir.abort(key{ref.Namespace, ref.ID}, errDuplicate)
	}
	r.reclaimed(a)
	r.lease.renewed(sent, ttl)
	r.applyDrain(a)

	r.mu.Lock()
	r.session.Store(&session)
	r.prevSession, r.registered = "", true
	r.mu.Unlock()
	r.broadcast()
	r.log.Info("registered with pinboard", zap.Duration("lease", ttl), zap.Strings("namespaces", r.namespaces()))
	if ttl <= r.opts.LeaseBuffer+r.opts.HeartbeatInterval {
		r.log.Warn("the lease is not longer than LeaseBuffer and HeartbeatInterval together: activations will be refused",
			zap.Duration("lease", ttl))
	}
	r.flushLater(ctx)
}

// duplicates reads the ids that other sessions own; entries that are not
// understood are passed over.
func (r *registration) duplicates(a *answer) []wire.Ref {
	if raw, ok := a.fields["duplicates"]; !ok || string(raw) == "null" {
		return nil
	}
	list, ok := get[[]json.RawMessage](a, "duplicates")
	if !ok {
		r.metrics.controlFailed("register", "malformed_duplicates")
		r.log.Error("registration answered with malformed duplicates")
		return nil
	}
	var refs []wire.Ref
	for _, raw := range list {
		var entry map[string]any
		_ = json.Unmarshal(raw, &entry) // what is not an object has no names
		namespace, okNamespace := entry["ns"].(string)
		id, okID := entry["id"].(string)
		if !okNamespace || !okID {
			r.metrics.controlFailed("register", "malformed_duplicates")
			r.log.Error("registration answered with a malformed duplicate")
			continue
		}
		refs = append(refs, wire.Ref{Namespace: namespace, ID: id})
	}
	return refs
}

// lost notes that pinboard no longer knows the session.
func (r *registration) lost() {
	r.mu.Lock()
	r.prevSession, r.registered = r.sessionID(), false
	r.session.Store(nil)
	r.mu.Unlock()
	r.reregistrations.Add(1)
	r.log.Warn("pinboard does not know the session: registering again, instances are kept")
}

// broadcast wakes those who wait for the registration or the lease to change.
func (r *registration) broadcast() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *registration) changes() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// sessionID returns the current session, "" if there is none. All requests ask.
func (r *registration) sessionID() string {
	if session := r.session.Load(); session != nil {
		return *session
	}
	return ""
}

func (r *registration) isRegistered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.registered
}

// newChallenge mints the pair that the next attempt carries and that the
// challenge route answers from now on.
func (r *registration) newChallenge() (challenge string, value wire.Secret) {
	challenge, value = randomHex(16), wire.NewSecret(randomHex(16))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.challenge, r.challengeAnswer = wire.NewSecret(challenge), value
	return challenge, value
}

// answerChallenge returns the value of the current challenge, and false for any
// other challenge and before the first attempt.
func (r *registration) answerChallenge(challenge string) (value string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.challenge.Empty() || !r.challenge.Equal(wire.NewSecret(challenge)) {
		return "", false
	}
	return r.challengeAnswer.Reveal(), true
}

func randomHex(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw) // never fails (crypto/rand)
	return hex.EncodeToString(raw)
}
