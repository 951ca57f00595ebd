package pinboard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// maxStale bounds how often a placement is tried again because workers
	// came or went meanwhile; after that it is placed without a preference.
	maxStale = 3
	// retryNoCandidate is when to come back while workers are there but none
	// takes placements.
	retryNoCandidate = time.Second
)

// placer finds out whose an id is, and has it placed when it is nobody's.
type placer struct {
	store    store.Store
	leases   *leases
	counters *counters
	metrics  *metrics // nil for none
	events   *history
	hooks    *hooks
	factor   float64
	shards   int
	lease    time.Duration
	// background waits for what outlives its request.
	background *background

	vouched vouched
	gate    gate
	back    comeback
	calls   singleflight.Group
	routes  routeMemory
	viewsMu sync.Mutex
	views   map[bucket]store.View // as last read
	bound   boundNames
	made    placements
}

// ask is a look-up of one id.
type ask struct {
	instance
	// host is the host name that the client asked, "" for none. settled says
	// that nothing is bound under it.
	host    string
	settled bool
	// prefer names a session that a first placement prefers: a cluster
	// caller's own.
	prefer string
	// key returns the affinity key of the request; it is called on the request's
	// goroutine, at most once a look-up, and only for a first placement.
	key func() (string, bool)
	// site is the client's address, for which placements count; zero for nobody.
	site netip.Prefix
	// refused is the placement that its worker would not serve.
	refused *store.Refused
	// fresh asks the store, whatever this node recalls.
	fresh bool
}

// route is where an id lives.
type route struct {
	lease *lease
	epoch int64
	// until is how long the owner's lease ran when the store last said that
	// the id is the owner's. The lease may have been renewed since, but this
	// node can't know that the id was not given up and placed elsewhere. Later
	// than that, the worker's fence against this placement may be gone, too
	// (protocol §5). Nothing is sent by the route then.
	until time.Time
	// recalled: the store was not asked, so that the route may be out of date.
	recalled bool
	// placed: the store was asked, and placed the id just now.
	placed bool
}

// over reports whether the route must not be used any more.
func (rt route) over() bool { return time.Until(rt.until) <= 0 }

// same reports whether both are the same placement.
func (rt route) same(other route) bool { return rt.lease == other.lease && rt.epoch == other.epoch }

func newPlacer(s store.Store, l *leases, opts *Options, c *counters) *placer {
	return &placer{
		store: s, leases: l, counters: c, factor: opts.Affinity.BalanceFactor, shards: opts.Shards,
		lease: opts.LeaseTTL,
		views: map[bucket]store.View{},
		back:  comeback{lease: opts.LeaseTTL},
		made:  placements{limit: opts.Limits.PlacementsPerAddress},
	}
}

// resolve returns the id's owner, recalling it if it can, and placing the id if it
// has none. Errors are
// refusals for the client (protocol §5), the caller's context error, or the
// store's failing. When the store does not answer, a placement that this node
// knows of serves for as long as its owner's lease ran when the store last
// confirmed it.
func (p *placer) resolve(ctx context.Context, a ask) (route, error) {
	p.counters.resolves.Add(1)
	a = p.pick(a) // from here on its namespace names the binding
	if rt, ok := p.recall(ctx, a); ok {
		p.counters.cacheHits.Add(1)
		return rt, nil
	}
	asked := time.Now()
	rt, err := p.find(ctx, a)
	if err == nil && rt.recalled {
		p.counters.cacheHits.Add(1)
		p.counters.outages.Add(1)
		return rt, nil
	}
	p.counters.resolved.add(foundOf(&rt, err, ctx.Err() != nil), 1)
	p.metrics.lookedUp(asked)
	return rt, err
}

// find is resolve for what this node can't recall.
func (p *placer) find(ctx context.Context, a ask) (route, error) {
	rt, err := p.lookUp(ctx, a)
	for range maxPicks {
		if !p.pickAgain(&a, err) {
			break
		}
		rt, err = p.lookUp(ctx, a)
	}
	if errors.Is(err, errNoCandidate) && p.leases.awaitActivation(ctx, a.namespace) {
		rt, err = p.lookUp(ctx, a)
	}
	if err == nil {
		p.routes.put(a.instance, rt)
		return rt, nil
	}
	if _, decided := errors.AsType[*refusal](err); decided && !errors.Is(err, errStoreAway) {
		p.routes.drop(a.instance)
		return route{}, err
	}
	if ctx.Err() != nil {
		return route{}, err // the client has left: that says nothing of the route
	}
	if known := p.outlasts(a.instance); known != nil && a.refused == nil {
		rt := known.route
		rt.recalled = true
		return rt, nil
	}
	return route{}, err
}

// outlasts returns the route that an id is served by while the store does not answer;
// nil if there is none.
func (p *placer) outlasts(i instance) *remembered {
	known := p.routes.get(i)
	if known == nil || known.over() || p.leases.left(known.lease) <= 0 {
		return nil
	}
	return known
}

// lookUp asks the store, once more where that needs the affinity key.
func (p *placer) lookUp(ctx context.Context, a ask) (route, error) {
	var by affinity
	if !p.looksFirst(&a) {
		by = a.affinity()
	}
	rt, err := p.put(ctx, a, by)
	if errors.Is(err, errKeyNeeded) {
		rt, err = p.put(ctx, a, a.affinity())
	}
	return rt, err
}

// put puts a question to the store; simultaneous look-ups of one id share one.
func (p *placer) put(ctx context.Context, a ask, by affinity) (route, error) {
	if a.refused != nil {
		return p.query(ctx, a, by)
	}
	question := a.host + " " + a.String()
	if !by.known {
		question = "? " + question
	}
	if !p.made.may(a.site) {
		question += " " // its answer is not for those who may have the id placed
	}
	rt, err := p.share(ctx, question, a, by)
	if over, ok := errors.AsType[*overPlaced](err); ok && over.site != a.site {
		// Somebody else's answer. This one is for one address alone.
		return p.share(ctx, question+" "+a.site.String(), a, by)
	}
	return rt, err
}

// share asks a question of the store, or waits for the answer if somebody asks
// it already.
func (p *placer) share(ctx context.Context, question string, a ask, by affinity) (route, error) {
	// The question outlives the client that happened to ask first.
	shared := context.WithoutCancel(ctx)
	answer := p.calls.DoChan(question, func() (any, error) {
		deepen()
		return p.query(shared, a, by)
	})
	select {
	case res := <-answer:
		if res.Err != nil {
			return route{}, res.Err
		}
		return res.Val.(route), nil // query returns routes
	case <-ctx.Done():
		p.background.stay() // the store must not be used after Shutdown
		go func() {
			defer p.background.leave()
			<-answer
		}()
		return route{}, ctx.Err()
	}
}

// deepen lets the stack of a new goroutine grow while there is little on it. A look-up
// needs more than what a goroutine begins with, and to move what it has put there by
// then costs some microseconds.
//
//go:noinline
func deepen() byte {
	var room [4 << 10]byte
	return room[rand.IntN(len(room))]
}

// query asks the store. It may be on nobody's goroutine, so that it calls nothing of the
// host's that is for requests. The error is errKeyNeeded where that would have to be.
func (p *placer) query(ctx context.Context, a ask, by affinity) (route, error) {
	var rt route
	var unplaced bool
	caller := ctx
	err := p.gate.do(ctx, func(ctx context.Context) error {
		generation := p.vouched.generation(p.bucket(a.instance))
		asked := time.Now()
		res, err := p.place(ctx, a, by)
		p.back.note(caller, asked, err)
		if unplaced = err == nil && res.Outcome == store.StaleView; err != nil || unplaced {
			return err
		}
		if res.ClockSet {
			p.leases.log.Warn("the store's clock was set forward: nothing is placed here for one lease", zap.String("binding", a.namespace))
		}
		defer p.tellPlacement(&a, &res)
		if ref := refusalFor(res); ref != nil {
			return ref
		}
		s, err := p.leases.get(ctx, res.SessionID)
		if err != nil {
			return err
		}
		p.leases.extend(s, asked, res.Left)
		rt = route{lease: s, epoch: res.Epoch, until: asked.Add(res.Left), placed: res.Outcome == store.Placed}
		p.vouched.vouch(p.bucket(a.instance), generation, s.ID, a.unless())
		if generation == "" {
			// So that what is told from now on is vouched for. An error does no harm
			// here.
			if known, err := p.known(ctx, a.instance); err == nil {
				p.vouched.note(p.bucket(a.instance), known.Generation)
			}
		}
		return nil
	})
	if err == nil && unplaced {
		return route{}, errKeyNeeded
	}
	if errors.Is(err, store.ErrNoSession) {
		// The bucket's record outlived the session's by a moment: the owner
		// has just gone, and the next look-up will find that out.
		return route{}, moving("the owner has just gone", time.Second).because(reasonOwnerGone)
	}
	return rt, err
}

// errNoCandidate: workers, but all draining, degraded or not yet active.
var errNoCandidate = moving("no worker takes placements now", retryNoCandidate).because(reasonNoWorker)

// refusalFor returns what to tell the client, or nil when there is an owner to
// ask.
func refusalFor(res store.Result) error {
	switch {
	case res.Outcome == store.Elsewhere:
		return errElsewhere
	case res.Outcome == store.UnknownNamespace && res.Left <= 0:
		return errVacant
	case res.Outcome == store.UnknownNamespace:
		return refuse(http.StatusNotFound, "unknown namespace")
	case res.Outcome == store.Quarantined:
		ref := moving("placement waits for owners from before the store lost its memory", res.Left).because(reasonQuarantine)
		ref.idle = res.Left
		return ref
	case res.Outcome == store.NoCandidate:
		return errNoCandidate
	case res.Stopped:
		return ownerDown(res.Left)
	}
	return nil
}

// ownerDown answers for an owner that can't be reached inside its lease. The
// wait is capped: a worker that shuts down plainly frees its ids sooner.
func ownerDown(leaseLeft time.Duration) *refusal {
	return moving("the owner does not answer", min(leaseLeft, 3*time.Second)).because(reasonOwnerDown)
}

// lookOnly is a Request.View that is never current: the answer is StaleView
// where a placement is needed.
const lookOnly int64 = -2

// place resolves, with a preference taken from a view of the candidates that
// the store confirms to be current. The outcome is StaleView where the id has no owner
// and the affinity key is not known.
func (p *placer) place(ctx context.Context, a ask, by affinity) (store.Result, error) {
	hostname, namespace := store.Unbind(a.namespace)
	req := store.Request{
		Hostname: hostname, Namespace: namespace, ID: a.id, Unless: a.unless(), Refused: a.refused,
		Preferred: a.prefer, View: store.AnyView, BalanceFactor: p.factor, Dice: rollDice(),
	}
	if err := p.back.begin(ctx, p.store); err != nil {
		return store.Result{}, err
	}
	if left, cutOff := p.back.left(); left > 0 && a.refused == nil {
		req.View = lookOnly
		res, err := p.store.Resolve(ctx, req)
		if err == nil && (res.Outcome == store.StaleView || cutOff && res.Outcome == store.UnknownNamespace) {
			return res, moving("placement waits for workers that may have been cut off from the store", left).because(reasonRecovering)
		}
		return res, err
	}
	if a.prefer != "" {
		req.PreferredBy = store.ByCaller
		return p.store.Resolve(ctx, req)
	}
	if !by.known {
		req.View = lookOnly
		return p.store.Resolve(ctx, req)
	}
	if !p.counts(&a) {
		return p.claim(ctx, a, req, by.key)
	}
	giveBack, err := p.made.take(a.site)
	if err != nil {
		return store.Result{}, err
	}
	res, err := p.claim(ctx, a, req, by.key)
	if err != nil || res.Outcome != store.Placed {
		giveBack()
	}
	return res, err
}

// claim has the id placed by the affinity key, unless it has got an owner.
func (p *placer) claim(ctx context.Context, a ask, req store.Request, key string) (store.Result, error) {
	if key != "" {
		for range maxStale {
			view := p.view(a.instance)
			req.Preferred, req.View = rendezvous(key, view.Candidates, a.refused), view.Version
			res, err := p.store.Resolve(ctx, req)
			if err != nil || res.Outcome != store.StaleView {
				return res, err
			}
			if err := p.refresh(ctx, a.instance); err != nil {
				return store.Result{}, err
			}
		}
	}
	req.Preferred, req.View = "", store.AnyView
	return p.store.Resolve(ctx, req)
}

// bucket names what the store keeps together for one atomic step.
type bucket struct {
	namespace string
	shard     int
}

func (p *placer) bucket(i instance) bucket {
	return bucket{namespace: i.namespace, shard: store.Shard(i.id, p.shards)}
}

// view returns the candidates as last read, the zero View if never.
func (p *placer) view(i instance) store.View {
	p.viewsMu.Lock()
	defer p.viewsMu.Unlock()
	return p.views[p.bucket(i)]
}

func (p *placer) refresh(ctx context.Context, i instance) error {
	view, err := p.store.Candidates(ctx, i.namespace, i.id)
	if err != nil {
		return fmt.Errorf("read the candidates of %s: %w", i.namespace, err)
	}
	p.viewsMu.Lock()
	defer p.viewsMu.Unlock()
	if len(p.views) >= maxBound {
		clear(p.views) // each is read again when it is needed
	}
	p.views[p.bucket(i)] = view
	return nil
}

func rollDice() (d store.Dice) {
	for i := range d {
		d[i] = rand.Uint32() >> 1
	}
	return d
}
