package pinboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/ui"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

// answerWithin bounds a call's work, apart from waiting for its body: the
// Python client gives up after 5 s.
const answerWithin = 4500 * time.Millisecond

// registry is what workers and operators call (protocol §§2, 4).
type registry struct {
	*Pinboard
	endpoints map[string]endpoint
	clients   keyed // one registration at a time for each clientId
	asking    asking
	watchers  *watchers
	open      openCalls
	within    time.Duration // answerWithin
}

// endpoint is one call of the registry.
type endpoint struct {
	method string
	scope  string
	limit  int64 // of the body in bytes; 0: none is read
	serve  func(ctx context.Context, w http.ResponseWriter, c *registryCall) error
}

// registryCall is a request whose credential is good and whose body has been read.
type registryCall struct {
	*http.Request
	target
	who  *passport.Identity
	body []byte
}

// isRegistry reports whether a raw path, below the base, is the registry's.
func isRegistry(path string) bool {
	return path == "/registry" || strings.HasPrefix(path, "/registry/")
}

func newRegistry(p *Pinboard) *registry {
	g := &registry{Pinboard: p, asking: newAsking(), watchers: newWatchers(), within: answerWithin}
	worker := func(most int64, serve func(context.Context, http.ResponseWriter, *registryCall) error) endpoint {
		return endpoint{http.MethodPost, passport.ScopeWorker, most, serve}
	}
	look := func(serve func(context.Context, http.ResponseWriter, *registryCall) error) endpoint {
		return endpoint{http.MethodGet, passport.ScopeOperator, 0, serve}
	}
	change := func(serve func(context.Context, http.ResponseWriter, *registryCall) error) endpoint {
		return endpoint{http.MethodPost, passport.ScopeOperator, maxOperatorBody, serve}
	}
	g.endpoints = map[string]endpoint{
		wire.PathRegister:      worker(maxWorkerBody, g.register),
		wire.PathHeartbeat:     worker(maxBeatBody, g.heartbeat),
		wire.PathRelease:       worker(maxWorkerBody, g.release),
		wire.PathDeregister:    worker(maxBeatBody, g.deregister),
		"/registry/workers":    look(g.workers),
		"/registry/health":     look(g.health),
		"/registry/placements": look(g.placements),
		"/registry/placement":  look(g.placement),
		"/registry/overview":   look(g.overview),
		"/registry/stats":      look(g.stats),
		"/registry/events":     look(g.listEvents),
		"/registry/drain":      change(g.drain),
		"/registry/undrain":    change(g.undrain),
		"/registry/wind_down":  change(g.windDown),
	}
	return g
}

// serve answers a call below /registry. Nothing of the body is read before the
// credential is good.
func (g *registry) serve(w http.ResponseWriter, r *http.Request, t target) {
	open := g.open.begin(w)
	defer g.open.end(open)
	if asset := ui.Find(t.path); asset != nil {
		g.serveUI(w, r, asset)
		return
	}
	began := time.Now()
	g.observe(t.path, began, g.answer(w, r, t, open, began))
}

// answer is serve. It returns what it has refused, if it has.
func (g *registry) answer(w http.ResponseWriter, r *http.Request, t target, open *openCall, began time.Time) error {
	e, who, err := g.admit(w, r, t)
	if err != nil {
		if e.serve != nil { // the path is one of ours, and safe to log
			g.log.Info("registry call refused", zap.String("path", t.path), zap.Error(err))
		}
		leaveBody(w, r)
		g.writeRefusal(w, r, err)
		return err
	}
	done, err := g.turn(r, t, e, who)
	if err != nil {
		g.log.Warn("registry call turned away", zap.String("path", t.path), zap.String("credential", who.Subject), zap.Error(err))
		leaveBody(w, r)
		g.writeRefusal(w, r, err)
		return err
	}
	defer done()
	left := g.within - time.Since(began)
	c := &registryCall{Request: r, target: t, who: who}
	if e.limit == 0 {
		leaveBody(w, r)
	} else if c.body, err = readBody(w, r, e.limit); err != nil {
		leaveBody(w, r)
		g.writeRefusal(w, r, err)
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), left)
	defer cancel()
	g.open.works(open, cancel)
	g.boundWrites(w, r, g.within+g.opts.Limits.WritePause)
	if err = e.serve(ctx, w, c); err != nil {
		g.writeRefusal(w, r, err)
	}
	return err
}

// admit finds the endpoint, and checks that the caller may use it.
func (g *registry) admit(w http.ResponseWriter, r *http.Request, t target) (endpoint, *passport.Identity, error) {
	e, ok := g.endpoints[t.path]
	if !ok {
		return e, nil, refuse(http.StatusNotFound, "unknown registry path")
	}
	if err := allow(w, r, e.method); err != nil {
		return e, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeTimeout)
	defer cancel()
	who, err := g.opts.Passport.Identify(ctx, r)
	switch {
	case err != nil:
		return e, nil, g.notIdentified(err)
	case who == nil:
		return e, nil, &refusal{status: http.StatusUnauthorized, message: "a known bearer token is required", challenge: true}
	case who.Ambient && foreign(r):
		return e, nil, errForeign
	case !who.HasScope(e.scope):
		return e, nil, refuse(http.StatusForbidden, "the credential lacks the scope "+e.scope)
	}
	return e, who, nil
}

// turn waits until a call may be served, and before that its body read.
func (g *registry) turn(r *http.Request, t target, e endpoint, who *passport.Identity) (done func(), err error) {
	if e.scope != passport.ScopeWorker {
		return func() {}, nil
	}
	registered := func() {}
	if t.path == wire.PathRegister {
		if registered, err = g.limiter.register(r.Context(), who); err != nil {
			return nil, err
		}
	}
	read, err := g.limiter.body(r.Context(), who, r.ContentLength, e.limit)
	if err != nil {
		registered()
		return nil, err
	}
	return func() {
		read()
		registered()
	}, nil
}

// allow returns a 405 if the method is another one. GET includes HEAD.
func allow(w http.ResponseWriter, r *http.Request, method string) error {
	if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
		return nil
	}
	if method == http.MethodGet {
		method = "GET, HEAD"
	}
	w.Header().Set("Allow", method)
	return refuse(http.StatusMethodNotAllowed, "the method must be "+method)
}

// malformed is a 400 for a body that a parser did not take; its errors name
// the field.
func malformed(err error) error { return refuse(http.StatusBadRequest, err.Error()) }

// errReregister tells a worker that its session is over (protocol §2).
var errReregister = &refusal{status: http.StatusConflict, message: "the session is unknown or has ended", reregister: true}

// session returns a session that the caller's claims cover. The error is
// store.ErrNoSession if it has ended.
func (g *registry) session(ctx context.Context, c *registryCall, sessionID string) (*lease, error) {
	s, err := g.leases.get(ctx, sessionID)
	if err != nil {
		return nil, err
	}
	_, host, err := wire.ParseAdvertiseURL(s.AdvertiseURL)
	if err != nil {
		return nil, fmt.Errorf("read the record of a session: advertise URL %w", err)
	}
	if err := claimsCover(c.who, s.Namespaces, host); err != nil {
		return s, err
	}
	return s, claimsReach(c.who, s.BackendAddr)
}

// coversNamespaces returns a 403 unless the caller's claims cover them all.
func coversNamespaces(who *passport.Identity, namespaces []string) error {
	for _, ns := range namespaces {
		if !who.AllowsNamespace(ns) {
			return refuse(http.StatusForbidden, "the namespace "+ns+" is outside the credential's claims")
		}
	}
	return nil
}

// heartbeat renews a session (protocol §2). What the worker reports is applied
// first; only whether it is degraded depends on the probe.
func (g *registry) heartbeat(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	beat, err := wire.ParseHeartbeat(c.body)
	if err != nil {
		return malformed(err)
	}
	s, err := g.session(ctx, c, beat.SessionID)
	if err != nil {
		return g.sessionOver(ctx, beat.SessionID, err)
	}
	asked := time.Now()
	answer, err := g.renew(ctx, beat)
	if err != nil {
		return g.sessionOver(ctx, beat.SessionID, err)
	}
	heard := time.Now()
	g.leases.extend(s, asked, answer.TTL)
	degraded, err := g.check(ctx, c.who, s, beat, answer.Degraded)
	if err != nil {
		return g.sessionOver(ctx, beat.SessionID, err)
	}
	if err := c.Context().Err(); err != nil {
		return err
	}
	passed := time.Since(heard)
	drain := g.pace.heard(&s.Session, answer.Drain)
	jsonbody.Write(w, http.StatusOK, wire.Beat{
		ExpiresInMs:   answer.TTL.Milliseconds(),
		Draining:      drain.Draining,
		DrainDeadline: drainDeadline(drain, passed),
		Degraded:      degraded,
		Messages:      messages(answer.Messages, passed),
	})
	return nil
}

// sessionOver turns store.ErrNoSession into the 409 that says so. A worker that
// was displaced must hear that, and not register for ever, also when this node
// knows only that the session has ended.
func (g *registry) sessionOver(ctx context.Context, sessionID string, err error) error {
	if !errors.Is(err, store.ErrNoSession) {
		return err
	}
	by, displaced := errors.AsType[*store.Superseded](err)
	if !displaced {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		_, err := g.store.Session(ctx, sessionID)
		if by, displaced = errors.AsType[*store.Superseded](err); !displaced {
			if err != nil && !errors.Is(err, store.ErrNoSession) {
				return err
			}
			// What it can't do now it would try again ever less often, and come back
			// long after the store.
			if err := g.ping(ctx); err != nil {
				return fmt.Errorf("the session is over, and no other can be recorded: %w", err)
			}
			return errReregister
		}
	}
	g.log.Info("displaced worker told", zap.String("session", sessionID), zap.String("by", by.ClientID))
	if s := g.leases.known(sessionID); s != nil {
		g.events.tellStopped(s, by)
	}
	return &refusal{status: http.StatusConflict, message: by.Error(), superseded: true}
}

func (g *registry) renew(ctx context.Context, beat *wire.Heartbeat) (store.BeatAnswer, error) {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := g.store.Heartbeat(bounded, store.Beat{
		SessionID: beat.SessionID, Headroom: beat.Headroom, Draining: beat.Draining, Acks: beat.Acks,
	})
	g.placer.back.note(ctx, asked, err)
	g.placer.back.wrote(ctx, asked, err)
	return answer, err
}

// check probes the worker and records the outcome if it is another than the
// last one (protocol §2).
func (g *registry) check(ctx context.Context, who *passport.Identity, s *lease, beat *wire.Heartbeat, was bool) (degraded bool, err error) {
	done, ok := g.limiter.probe(who)
	if !ok {
		g.log.Warn("worker not probed: too many probes are under way", zap.String("client", s.ClientID))
		return was, nil
	}
	defer done()
	// Part of the time is kept for the record.
	end, _ := ctx.Deadline()
	probing, cancel := context.WithDeadline(ctx, end.Add(-g.within/9))
	defer cancel()
	_, fault := g.traces.ask(probing, g.probe, probe{
		url: s.AdvertiseURL, secret: s.Secret, challenge: beat.Challenge, challengeValue: beat.ChallengeValue,
		rules: s.BackendHosts, pinned: s.BackendAddr,
	})
	if degraded = fault != nil; degraded == was {
		return degraded, nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return was, ctx.Err() // the worker hung up: that says nothing of its URL
	}
	recording, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = g.store.SetDegraded(recording, s.ID, degraded)
	fields := []zap.Field{zap.String("client", s.ClientID), zap.String("url", s.AdvertiseURL)}
	switch {
	case errors.Is(err, store.ErrNoSession):
		return degraded, err
	case err != nil:
		// The lease is renewed all the same; the next beat tries again.
		g.log.Warn("outcome of a probe not recorded", append(fields, zap.Bool("degraded", degraded), zap.Error(err))...)
	case degraded:
		e := about(&s.Session, store.EventDegraded)
		e.Detail = asRefusal(fault).message
		g.events.tell(e)
		g.log.Warn("worker degraded: its advertise URL fails the probe", append(fields, zap.Error(fault))...)
	default:
		g.events.tell(about(&s.Session, store.EventRecovered))
		g.log.Info("worker no longer degraded", fields...)
	}
	return degraded, nil
}

// release frees rows (protocol §2).
func (g *registry) release(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	asked, err := wire.ParseRelease(c.body)
	if err != nil {
		return malformed(err)
	}
	c.body = nil
	releases := asked[:0]
	checked, hostnames := map[string]bool{}, map[string]string{}
	for _, r := range asked {
		if wire.CheckNamespace(r.Namespace) != nil || wire.CheckID(r.ID) != nil {
			continue // no row has such a name
		}
		if !checked[r.Namespace] {
			if err := coversNamespaces(c.who, []string{r.Namespace}); err != nil {
				return err
			}
			checked[r.Namespace] = true
		}
		hostname, known := hostnames[r.SessionID]
		if !known {
			if hostname, err = g.hostnameOf(ctx, r.SessionID); err != nil {
				return err
			}
			hostnames[r.SessionID] = hostname
		}
		r.Namespace = store.Bind(hostname, r.Namespace)
		releases = append(releases, r)
	}
	released := 0
	if len(releases) > 0 {
		if released, err = g.store.Release(ctx, releases); err != nil {
			return err
		}
		g.hooks.released(releases, released, "released", g.leases.clientOf)
		g.placer.released(releases)
		g.holds.freed(releases)
	}
	jsonbody.Write(w, http.StatusOK, wire.Released{Released: released})
	return nil
}

// hostnameOf returns the host name that a session is bound under. One that has
// ended has no rows to release.
func (g *registry) hostnameOf(ctx context.Context, sessionID string) (string, error) {
	s, err := g.leases.get(ctx, sessionID)
	switch {
	case errors.Is(err, store.ErrNoSession):
		return "", nil
	case err != nil:
		return "", err
	}
	return s.Hostname, nil
}

// deregister ends a session (protocol §2).
func (g *registry) deregister(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	body, err := wire.ParseDeregister(c.body)
	if err != nil {
		return malformed(err)
	}
	s, err := g.session(ctx, c, body.SessionID)
	if err != nil && !errors.Is(err, store.ErrNoSession) {
		return err
	}
	// Also where the session is over: an earlier attempt may have ended it in
	// a part of its buckets only.
	ending, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := g.store.Deregister(ending, body.SessionID); err != nil {
		return err
	}
	g.leases.end(body.SessionID)
	if s != nil {
		g.holds.nudge(s.Namespaces)
		g.events.tell(about(&s.Session, store.EventDeregistered))
		g.log.Info("worker deregistered", zap.String("client", s.ClientID), zap.String("session", s.ID))
	}
	jsonbody.Write(w, http.StatusOK, wire.Released{})
	return nil
}

// drainDeadline is what is left of a drain, in seconds, some time after the
// store was asked; nil without a deadline. It is never negative, and goes on
// being there when it has passed (protocol §2).
func drainDeadline(d store.Drain, passed time.Duration) *float64 {
	if !d.Draining || !d.Deadline {
		return nil
	}
	return secondsLeft(d.Left, passed)
}

func messages(waiting []store.Message, passed time.Duration) []wire.Message {
	var out []wire.Message
	for _, m := range waiting {
		message := wire.Message{MsgID: m.ID, Type: wire.MessageWindDown, Namespace: m.Namespace, ID: m.InstanceID}
		if !m.Revoke {
			message.Deadline = secondsLeft(m.Left, passed)
		}
		out = append(out, message)
	}
	return out
}

func secondsLeft(left, passed time.Duration) *float64 {
	s := max(0, left-passed).Seconds()
	return &s
}
