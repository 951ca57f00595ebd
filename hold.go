package pinboard

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// firstPause and lastPause are how long an id that requests wait for is not
	// looked up again: the pause grows by a half each time, and is jittered.
	firstPause = 25 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	// batchGrowth is how many more requests are let go each time, while none
	// that went before them has come back.
	batchGrowth = 4
)

// holds are the requests of this node that wait while their ids move
// (Options.PlacementHold). Whatever wakes one, a look-up decides where it goes,
// so holding never places an id earlier than a request that comes then would.
//
// One goroutine for each id looks it up for all who wait for it. When it finds
// an owner it does not let all of them go at once, because the owner may refuse
// the id: a few go first, the rest when one of them has got through.
type holds struct {
	placer   *placer
	limit    time.Duration // 0: nothing is held
	max      int
	maxPerID int
	counters *counters
	stopping chan struct{} // closed by stop

	mu    sync.Mutex
	total int
	sites map[netip.Prefix]int // how many of them are whose; without nobody's
	ids   map[heldName]*heldID
}

// heldName is what requests wait for together: one id, asked for under one host
// name, since another one may be bound elsewhere (protocol §7).
type heldName struct {
	instance
	host string
}

func (a ask) heldName() heldName { return heldName{a.instance, a.host} }

// heldID is an id that requests wait for. It is guarded by holds.mu.
type heldID struct {
	members int     // requests that wait, or try and may wait again
	waiting []*held // those that wait, in the order in which they came
	blocked route   // what did not serve the id last, if anything
	idle    time.Time
	batch   int

	nudged chan struct{} // has a token: look the id up now
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
}

// held is one request's place among them, from when it first has to wait until
// its time is over or it has got through.
type held struct {
	holds *holds
	ask   ask
	site  netip.Prefix // the client's address
	of    *heldID
	turn  chan turn // gets one for each wait
	over  chan struct{}
	timer *time.Timer // closes over

	// What follows is guarded by holds.mu.
	waits bool
	left  bool
}

// turn is where a request that waited is to go, or why it need not wait.
type turn struct {
	route route
	err   error
}

func newHolds(p *placer, opts *Options, c *counters) *holds {
	return &holds{
		placer: p, limit: opts.PlacementHold, max: opts.MaxHeld, maxPerID: opts.MaxHeldPerID, counters: c,
		stopping: make(chan struct{}), sites: map[netip.Prefix]int{}, ids: map[heldName]*heldID{},
	}
}

// stop ends every wait, and lets none begin. It must be called once at most.
func (h *holds) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.stopping)
}

// join returns a place for a request of that address, which must leave it; nil if
// there is none: one address has half of the places at most.
func (h *holds) join(a ask, site netip.Prefix) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.stopping:
		return nil
	default:
	}
	id := h.ids[a.heldName()]
	if h.total >= h.max || h.sites[site] >= max(1, h.max/2) || id != nil && id.members >= h.maxPerID {
		return nil
	}
	if id == nil {
		id = &heldID{nudged: make(chan struct{}, 1), done: make(chan struct{})}
		h.ids[a.heldName()] = id
		var ctx context.Context
		ctx, id.cancel = context.WithCancel(context.Background())
		go h.watch(ctx, id)
	}
	h.total++
	if site.IsValid() {
		h.sites[site]++
	}
	id.members++
	h.counters.held.Add(1)
	h.counters.holds.Add(1)
	w := &held{holds: h, ask: a, site: site, of: id, turn: make(chan turn, 1), over: make(chan struct{})}
	w.timer = time.AfterFunc(h.limit, w.expire)
	return w
}

// wait waits for the request's turn. tried is where it was not served just now,
// and idle how long looking it up is pointless. Its error is ctx's, errHoldOver
// or errHoldStopped, or what a look-up found to be no reason to wait.
func (w *held) wait(ctx context.Context, tried route, idle time.Duration) (rt route, err error) {
	w.begin(tried, idle)
	select {
	case t := <-w.turn:
		return t.route, t.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.over:
		err = errHoldOver
	case <-w.holds.stopping:
		err = errHoldStopped
	}
	w.leave(route{})
	return route{}, err
}

func (w *held) begin(tried route, idle time.Duration) {
	w.holds.mu.Lock()
	defer w.holds.mu.Unlock()
	id := w.of
	if w.left {
		return // its time was over while it tried
	}
	w.waits = true
	id.waiting = append(id.waiting, w)
	id.blocked, id.batch, id.idle = tried, 1, time.Time{}
	if idle > 0 {
		id.idle = time.Now().Add(idle)
	}
}

// expire ends the wait, or gives the place up if the request is being tried.
func (w *held) expire() {
	close(w.over)
	w.holds.mu.Lock()
	waits := w.waits
	w.holds.mu.Unlock()
	if !waits {
		w.leave(route{})
	}
}

// leave gives the place up, once. served, if it is not zero, is where the
// request got through: the others follow. Nothing of the place is left when it
// returns.
func (w *held) leave(served route) {
	h, id := w.holds, w.of
	w.timer.Stop()
	h.mu.Lock()
	if w.left {
		h.mu.Unlock()
		return
	}
	w.left = true
	if w.waits {
		w.waits = false
		id.waiting = slices.DeleteFunc(id.waiting, func(other *held) bool { return other == w })
	}
	h.total--
	if h.sites[w.site]--; h.sites[w.site] <= 0 {
		delete(h.sites, w.site)
	}
	h.counters.held.Add(-1)
	id.members--
	last := id.members == 0
	switch {
	case last:
		delete(h.ids, w.ask.heldName())
		id.cancel()
	case served.lease != nil:
		id.release(len(id.waiting), turn{route: served})
	}
	h.mu.Unlock()
	if last {
		<-id.done
	}
}

// release lets the first n requests go; the caller holds the lock.
func (id *heldID) release(n int, t turn) {
	n = min(n, len(id.waiting))
	for _, w := range id.waiting[:n] {
		w.waits = false
		w.turn <- t // never blocks: the turn before it was taken
	}
	id.waiting = slices.Delete(id.waiting, 0, n)
}

// turnAway lets the requests of one address go, which gets no new ids now; the
// caller holds the lock.
func (id *heldID) turnAway(over *overPlaced) {
	id.waiting = slices.DeleteFunc(id.waiting, func(w *held) bool {
		if w.ask.site != over.site {
			return false
		}
		w.waits = false
		w.turn <- turn{err: over} // never blocks: the turn before it was taken
		return true
	})
}

// watch looks the id up until nobody waits for it any more.
func (h *holds) watch(ctx context.Context, id *heldID) {
	defer close(id.done)
	pause := firstPause
	timer := time.NewTimer(h.rest(id, pause))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-id.nudged:
		}
		if a, ok := h.next(id); ok {
			a.fresh = true // something did not serve it just now
			rt, err := h.placer.resolve(ctx, a)
			if ctx.Err() != nil {
				return
			}
			h.apply(id, rt, err)
		}
		timer.Reset(h.rest(id, pause))
		pause = min(pause*3/2, lastPause)
	}
}

// rest returns how long not to look: not before a quarantine is over, and not
// long past the end of the owner's lease, where that is known.
func (h *holds) rest(id *heldID, pause time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	pause = pause*3/4 + rand.N(pause/2)
	if idle := time.Until(id.idle); idle > 0 {
		return idle + rand.N(firstPause)
	}
	if id.blocked.lease != nil {
		if left := h.placer.leases.left(id.blocked.lease); left > 0 {
			pause = min(pause, max(left, firstPause))
		}
	}
	return pause
}

// next returns what to look up: as the first who waits would.
func (h *holds) next(id *heldID) (ask, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(id.waiting) == 0 {
		return ask{}, false
	}
	return id.waiting[0].ask, true
}

// apply acts on a look-up.
func (h *holds) apply(id *heldID, rt route, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	over, exhausted := errors.AsType[*overPlaced](err)
	switch {
	case exhausted: // what the first may not have, the next one may
		id.turnAway(over)
		id.nudge()
	case isMoving(err):
		id.idle = time.Now().Add(asRefusal(err).idle)
	case err != nil:
		id.release(len(id.waiting), turn{err: err})
	case rt.same(id.blocked):
		// Where it was before. One at a time finds out whether that serves by
		// now; if it did, all would go.
		if id.members == len(id.waiting) {
			id.release(1, turn{route: rt})
		}
	default:
		id.release(id.batch, turn{route: rt})
		id.batch *= batchGrowth
	}
}

// nudge has all ids of these namespaces that requests wait for looked up at
// once: something about their workers has changed, and this node heard of it.
func (h *holds) nudge(namespaces []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, id := range h.ids {
		if slices.Contains(namespaces, i.namespace) {
			id.nudge()
		}
	}
}

// freed is nudge for ids that were released, whose namespaces name bindings.
func (h *holds) freed(releases []wire.Release) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 {
		return
	}
	free := make(map[instance]bool, len(releases))
	for _, r := range releases {
		_, namespace := store.Unbind(r.Namespace)
		free[instance{namespace, r.ID}] = true
	}
	for name, id := range h.ids {
		if free[name.instance] {
			id.nudge()
		}
	}
}

func (id *heldID) nudge() {
	select {
	case id.nudged <- struct{}{}:
	default: // it is about to be looked up
	}
}
