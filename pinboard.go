// Package pinboard gives a fleet one live instance per (namespace, id).
//
// Services that keep state in memory per key, such as a chat thread, a game
// room or an agent's run, want one process to hold each key and a stable URL to
// reach it by. A Pinboard is both the control plane that places ids on worker
// processes and the front door that proxies every request to the worker that
// holds its id. It is an http.Handler: mount it in a server of your own, as
// many times and on as many nodes as you like. Nodes keep no state; they
// coordinate through Redis.
//
// Worker processes register with it: embed package worker in a Go service, or
// use the Python client "pinned".
//
// # Guarantees
//
// A row, the placement of one id, has one owning session. While the session's
// lease lives, only the session itself gives the row up; no connection error,
// failed probe, drain or restart of pinboard places the id elsewhere. Every
// placement of an id carries a higher epoch than any before it, so that a
// worker's own store can fence out an owner that has lost its lease.
//
// Comments cite docs/protocol.md, the wire contract, by its sections.
//
// # Where things are
//
// The node:
//
//	pinboard.go      New, ServeHTTP, Close, Shutdown; background.go what runs beside
//	                 requests, and the wait for those that are left; opencalls.go cuts
//	                 calls below /registry
//	options.go       Options, defaults, validation; env.go and env_redis.go read the environment
//	limits.go        Limits; limiter.go and placements.go count by them, slow.go and
//	                 stall.go end what makes no progress
//	healthz.go       GET /healthz
//
// Whose an id is:
//
//	target.go        which instance a request names; clientip.go who sent it
//	placement.go     resolve, candidates; affinity.go which of them an id prefers
//	known.go         what is answered from memory; routes.go what is remembered
//	gate.go          look-ups while the store does not answer; comeback.go after that
//	bindings.go      host names
//	lease.go         this node's view of sessions, and what is open to them; watch.go
//	                 cuts that when a session ends, and sweeps what it has left
//	hold.go          requests that wait while their id moves; held.go one of them
//
// The data plane, from the client to the worker and back:
//
//	proxy.go         lets a request in, and finds the owner; origin.go looks at the
//	                 page it is from, wellformed.go at its form, cluster.go at calls
//	                 of instances
//	exchange.go      a request on its way to a worker, or to a second one
//	attempt.go       what one worker is sent; headers.go its headers, minted.go the
//	                 attestations
//	transport.go     connections to workers; flow.go the context of what is open
//	refused.go       refusals of workers; refusal.go pinboard's own, unequal.go why
//	                 a node serves nothing
//	relay.go         passes the answer on; passing.go its body, piece by piece
//	tunnel.go        WebSockets
//	apart.go         streams that outlive their request (Options.DetachStreams);
//	                 doze.go those that idle without a goroutine;
//	                 events_apart.go event streams, which chunked.go writes
//
// The registry, which workers and operators call:
//
//	registry.go      routes, credentials, heartbeats, releases; body.go bodies,
//	                 keyed.go locks
//	register.go      registrations; probe.go asks a worker at its URL, reclaimed.go
//	                 tells it epochs
//	operators.go     workers, health, drains; pace.go drains at a rate
//	history.go       has the store keep what happens; events.go and eventstream.go
//	                 show it
//	fleet.go         overview; listing.go placements; stats.go what workers say
//	ui.go            the operators' page, whose files are in internal/ui
//
// What is told of it:
//
//	kinds.go         names of what is counted, in metrics and in the access log
//	counters.go      what this node has done; observed.go one request
//	metrics.go       its metrics; metrics_namespaces.go those of namespaces,
//	                 metrics_store.go of the store, metrics_fleet.go of the fleet
//	accesslog.go     a line for each request
//	traces.go        spans; traceleg.go those of what one worker is sent
//	hooks.go         what the host is told; hookfeed.go of the fleet's workers
//
// Package passport says who is calling. internal/store keeps the directory, in
// Redis (store/redis) or in memory; internal/upstream speaks HTTP to workers;
// internal/wire and internal/attest are shared with package worker.
package pinboard

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/store"
)

// Pinboard is one node: control plane and front door. It is safe for concurrent
// use. New makes one.
type Pinboard struct {
	opts     Options
	log      *zap.Logger
	store    store.Store
	leases   *leases
	placer   *placer
	holds    *holds
	proxy    *proxy
	probe    *prober
	registry *registry
	limiter  *limiter
	pings    singleflight.Group
	unequal  unequal
	pace     *pace
	events   *history
	hooks    *hooks // nil without any
	traces   *traces

	counters   counters
	metrics    *metrics   // nil for none
	access     *accessLog // nil for none
	background background
}

// New returns a Pinboard, or everything that is wrong with the options, each
// fault naming its field. It starts nothing and dials nothing: that begins with
// the first request.
func New(opts Options) (*Pinboard, error) {
	opts = opts.withDefaults()
	opts.Logger = leak.Logger(opts.Logger)
	if opts.AccessLog != nil {
		opts.AccessLog = leak.Logger(opts.AccessLog)
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if opts.LeaseTTL < warnLease {
		opts.Logger.Warn("the lease is shorter than a worker's default buffer and heartbeat: workers may refuse every activation",
			zap.Duration("lease", opts.LeaseTTL))
	}
	p := &Pinboard{opts: opts, log: opts.Logger, store: opts.open()}
	if opts.Metrics != nil {
		p.metrics = newMetrics(p)
		p.store = &meteredStore{p.store, p.metrics}
	}
	p.leases = newLeases(p.store, p.log, opts.LeaseTTL)
	p.events = newHistory(p.store, p.log)
	p.placer = newPlacer(p.store, p.leases, &opts, &p.counters)
	p.placer.events, p.placer.metrics = p.events, p.metrics
	p.holds = newHolds(p.placer, &p.opts, &p.counters)
	p.limiter = newLimiter(opts.Limits)
	p.limiter.reached = &p.counters.limits
	p.pace = newPace(p.store, &p.opts, &p.background)
	p.hooks = newHooks(opts.Hooks, p.store, p.log)
	p.placer.hooks, p.placer.background = p.hooks, &p.background
	p.traces = newTraces(&p.opts)
	transport := newTransport(opts.Transport, &opts.Limits)
	p.proxy = newProxy(p, transport)
	p.probe = newProber(transport)
	p.probe.metrics = p.metrics
	p.registry = newRegistry(p)
	p.background.run, p.background.guard = p.run, p.leases.watch
	p.access = newAccessLog(&p.opts)
	if err := p.meter(); err != nil {
		return nil, err
	}
	return p, nil
}

// ServeHTTP serves the registry below /registry, health at /healthz, and the
// data plane everywhere else (protocol §§2, 4, 5). Below a base path, mount it
// with http.StripPrefix. http.ServeMux redirects paths with "//": put the
// Pinboard in front of it where that matters.
func (p *Pinboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.background.enter() {
		w.Header().Set("Connection", "close")
		err := notNow("this node is shutting down", 0).because(reasonStopping)
		p.noteRefusal(r, err)
		p.writeRefusal(w, r, err)
		return
	}
	defer p.background.leave()
	var apart *detached
	defer func() {
		if apart == nil { // else it would be a bound for the age of the stream
			p.boundEnd(w, r)
		}
	}()
	if !r.ProtoAtLeast(1, 1) {
		// The server overlooks Transfer-Encoding there, and what comes of such a body
		// must not be taken for the client's next request.
		w.Header().Set(headerConnection, "close")
	}
	err := p.limiter.checkTarget(r)
	var t target
	if err == nil {
		t, err = parseTarget(r)
	}
	if err != nil {
		p.noteRefusal(r, err)
		p.turnAway(w, r, err)
		return
	}
	switch {
	case isRegistry(t.path):
		p.registry.serve(w, r, t)
	case t.path == "/healthz":
		p.serveHealthz(w, r)
	default:
		apart = p.proxy.serve(w, r, t)
	}
}

// run is the background work of a node that serves: it ends with ctx.
func (p *Pinboard) run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { p.sweep(ctx) })
	group.Go(func() { p.pace.run(ctx) })
	group.Go(func() {
		p.hooks.begin(ctx)
		group.Go(func() { p.hooks.follow(ctx) })
		p.events.run(ctx)
	})
	group.Wait()
}

// Close takes no new requests, ends event streams, closes WebSockets with code
// 1012, answers held requests with a 503 and stops the background work. It does
// not wait: requests in flight run to their end. Have http.Server.Shutdown call it
// (RegisterOnShutdown), which would wait for streams otherwise; call Shutdown
// afterwards, because the server overlooks WebSockets and detached streams. The
// directory keeps every row. Closing twice does nothing. The error is always nil.
func (p *Pinboard) Close() error {
	if p.background.close() {
		p.holds.stop()
		p.leases.endStreams()
		p.registry.watchers.stop()
	}
	return nil
}

// Shutdown is Close, then waits until no request is left and Hooks have been told
// what there was to tell, and takes Options.Metrics off their registerer. When ctx
// ends first, it cuts what is left, drops the calls of Hooks that wait, and returns
// the context's error.
func (p *Pinboard) Shutdown(ctx context.Context) error {
	_ = p.Close()
	err := p.background.wait(ctx)
	if err != nil {
		p.cutAll()
	}
	err = errors.Join(err, p.hooks.shutdown(ctx))
	p.proxy.closeIdle()
	p.metrics.unregister()
	return err
}
