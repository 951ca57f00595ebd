package pinboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// minDrainRate and maxDrainRate bound Options.DrainRate, per second.
	minDrainRate, maxDrainRate = 0.001, 1e6
	// paceRetry is the pause after a step that the store did not do.
	paceRetry = time.Second
	// paceDrift is how far what is left of a drain may be off what this node
	// has counted; beyond that its deadline was moved.
	paceDrift = time.Second
)

// pace moves the instances of a worker that an operator drains off at
// Options.DrainRate, as long as the drain leaves the time: it asks one after
// the other to wind down, the oldest placement first, and keeps the drain from
// the worker meanwhile, which would close all of them at once. The worker hears
// of the drain itself when a heartbeat's time is left of it.
//
// Which drain is kept from its worker depends on what the store says alone, so that
// all nodes say the same. Who asks instances is whichever node gets the
// worker's heartbeats: if they are several, they keep the same order at the same
// rate, and to be asked twice changes nothing for an instance. A node that ends
// leaves the rest to the next one; where there is none, to the drain's end.
type pace struct {
	store   store.Store
	log     *zap.Logger
	rate    float64       // 0: off
	reserve time.Duration // of the drain's time, at its end
	tasks   chan func(ctx context.Context)
	// What was promised to an operator is done before the node ends, or until it
	// is cut.
	background *background
	promised   context.Context
	cut        context.CancelFunc

	mu    sync.Mutex
	moves map[string]*move // by clientId
}

// move is how one drain is seen by this node.
type move struct {
	clientID string
	bindings []string
	until    time.Time // the drain's deadline
}

func newPace(s store.Store, opts *Options, b *background) *pace {
	p := &pace{
		store: s, log: opts.Logger, rate: opts.DrainRate, reserve: opts.LeaseTTL / 3,
		tasks: make(chan func(context.Context)), background: b, moves: map[string]*move{},
	}
	p.promised, p.cut = context.WithCancel(context.Background())
	return p
}

// run does the work, until ctx ends.
func (p *pace) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case task := <-p.tasks:
			group.Go(func() { task(ctx) })
		case <-ctx.Done():
			return
		}
	}
}

// paces reports whether a drain goes at the rate now.
func (p *pace) paces(d store.Drain) bool {
	return p.rate > 0 && d.Draining && d.Deadline && d.Left > p.reserve
}

// told is what the worker hears of a drain.
func (p *pace) told(d store.Drain) store.Drain {
	if p.paces(d) {
		return store.Drain{}
	}
	return d
}

// heard takes note of a worker's heartbeat, and returns what the worker hears of
// its drain. It does not wait.
func (p *pace) heard(s *store.Session, d store.Drain) store.Drain {
	if p.rate == 0 {
		return d
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.paces(d) {
		delete(p.moves, s.ClientID)
		return d
	}
	for id, m := range p.moves {
		if now.After(m.until) {
			delete(p.moves, id)
		}
	}
	m := &move{clientID: s.ClientID, bindings: s.Bindings(), until: now.Add(d.Left)}
	if known := p.moves[s.ClientID]; known != nil && known.same(d, now) {
		return store.Drain{}
	}
	select {
	case p.tasks <- func(ctx context.Context) { p.follow(ctx, m) }:
		p.moves[s.ClientID] = m
	default: // the next heartbeat does it
	}
	return store.Drain{}
}

// same reports whether what the store says is the drain as it was.
func (m *move) same(d store.Drain, now time.Time) bool {
	return d.Draining && d.Deadline && (d.Left-m.until.Sub(now)).Abs() <= paceDrift
}

// follow asks all ids of the worker to wind down, each in its turn, until the
// drain ends or becomes another one.
func (p *pace) follow(ctx context.Context, m *move) {
	rows, ok := p.rows(ctx, m)
	if !ok {
		p.forget(m) // the next heartbeat begins anew
		return
	}
	p.log.Info("drain moves instances off", zap.String("client", m.clientID), zap.Int("instances", len(rows)), zap.Float64("rate", p.rate))
	for i := 0; i < len(rows) && p.current(m); {
		began := time.Now()
		next, err := p.ask(ctx, m, rows[i])
		switch {
		case err != nil:
			p.log.Warn("drain not at its rate: an instance could not be asked to wind down", zap.String("client", m.clientID), zap.Error(err))
			next = paceRetry
		case next == 0:
			return
		default:
			// Also where the id has moved meanwhile: nodes that began at
			// different times keep step.
			i++
			left := max(0, time.Until(m.until)-p.reserve)
			next = min(next, left/time.Duration(max(1, len(rows)-i)))
		}
		select {
		case <-time.After(next - time.Since(began)):
		case <-ctx.Done():
			return
		}
	}
}

func (p *pace) forget(m *move) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves[m.clientID] == m {
		delete(p.moves, m.clientID)
	}
}

// current reports whether the drain is still this one.
func (p *pace) current(m *move) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moves[m.clientID] == m
}

// ask asks one id to wind down until the drain's deadline, if the drain is still
// on and the id still the worker's. It returns the time to the next turn, 0 when
// the drain has ended.
func (p *pace) ask(ctx context.Context, m *move, row store.Row) (next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	client, err := p.store.Client(ctx, m.clientID)
	switch {
	case errors.Is(err, store.ErrNoClient):
		return 0, nil
	case err != nil:
		return 0, err
	case !p.paces(client.Drain) || !m.same(client.Drain, time.Now()):
		return 0, nil
	}
	return time.Duration(float64(time.Second) / p.rate), p.windDown(ctx, m, row, &client.Drain.Left)
}

// windDown queues a message for an id if it is still the worker's. That it moves
// between the look and the message is as if it had moved once more.
func (p *pace) windDown(ctx context.Context, m *move, row store.Row, deadline *time.Duration) error {
	binding := store.Bind(row.Hostname, row.Namespace)
	now, err := p.store.Lookup(ctx, binding, row.ID)
	if err == nil && now.ClientID == m.clientID {
		err = p.store.WindDown(ctx, binding, row.ID, deadline)
	}
	if errors.Is(err, store.ErrNotPlaced) {
		return nil
	}
	return err
}

// takeBack tells the ids that are left on a worker that they need not wind down:
// its drain was revoked, or has no deadline any more. It goes on after the operator's
// request, of which it is part, and no longer than the drain would have.
func (p *pace) takeBack(s *store.Session, before store.Drain) {
	if p.rate == 0 || !before.Draining || !before.Deadline {
		return
	}
	m := &move{clientID: s.ClientID, bindings: s.Bindings()}
	p.mu.Lock()
	delete(p.moves, s.ClientID)
	p.mu.Unlock()
	p.background.stay()
	go func() {
		defer p.background.leave()
		ctx, cancel := context.WithTimeout(p.promised, before.Left)
		defer cancel()
		p.revoke(ctx, m)
	}()
}

func (p *pace) revoke(ctx context.Context, m *move) {
	rows, ok := p.rows(ctx, m)
	for ; !ok; rows, ok = p.rows(ctx, m) {
		if !retry(ctx) {
			return
		}
	}
	for i := 0; i < len(rows); {
		asking, cancel := context.WithTimeout(ctx, storeTimeout)
		err := p.windDown(asking, m, rows[i], nil)
		cancel()
		if err == nil {
			i++
			continue
		}
		// Only so many messages wait for a worker at a time.
		p.log.Info("wind-downs not taken back yet", zap.String("client", m.clientID), zap.Int("left", len(rows)-i), zap.Error(err))
		if !retry(ctx) {
			return
		}
	}
}

// retry waits for a while, and reports whether there is any sense in another try.
func retry(ctx context.Context) bool {
	select {
	case <-time.After(paceRetry):
		return true
	case <-ctx.Done():
		return false
	}
}

// rows returns the rows of a worker, the oldest placement first, and false if
// the store could not tell.
func (p *pace) rows(ctx context.Context, m *move) (rows []store.Row, ok bool) {
	for _, binding := range m.bindings {
		for cursor := ""; ; {
			page, next, err := p.page(ctx, binding, cursor)
			if err != nil {
				p.log.Warn("a worker's placements can't be read for its drain", zap.String("client", m.clientID), zap.Error(err))
				return nil, false
			}
			for _, row := range page {
				if row.ClientID == m.clientID {
					rows = append(rows, row)
				}
			}
			if cursor = next; cursor == "" {
				break
			}
		}
	}
	slices.SortFunc(rows, func(a, b store.Row) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ID, b.ID))
	})
	return rows, true
}

func (p *pace) page(ctx context.Context, binding, cursor string) ([]store.Row, string, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return p.store.Rows(ctx, binding, cursor, maxPageSize)
}
