package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/store"
)

// maxTogether is how many ids are asked for in one call at most: some tenths of a
// millisecond of Redis' time, and more than that only if none of them goes where it is
// preferred.
const maxTogether = 32

// maxFree is how many calls are under way at once before any waits for the end of
// one. While there are that few, Redis reads and answers them together.
const maxFree = 4

// gathering has ids that are asked for at the same time go in one call, which costs
// Redis far less than one for each. What is asked for while fewer than maxFree calls
// are under way goes at once. What is asked for else waits until one has ended, or until
// there are maxTogether, and goes in one. So nothing waits for a timer, nor for longer
// than one call takes; and if those who asked have all given one up, it counts as
// ended. The zero value is ready.
type gathering struct {
	mu     sync.Mutex
	queues map[alike]*queue // those with a call under way
}

// alike is what ids must have in common to go in one call: resolve.lua is told it
// once.
type alike struct {
	bucket bucketKeys
	view   int64
	factor float64
	unless string
	set    bool // the bucket's clock was found set forward
	// refused is of one who asks: there are never two.
	refused *store.Refused
}

func likeness(bucket bucketKeys, req store.Request) alike {
	return alike{bucket: bucket, view: req.View, factor: req.BalanceFactor, unless: req.Unless, refused: req.Refused}
}

// queue is those who ask alike.
type queue struct {
	calls   int // under way
	waiting []*asker
}

// asker is one who asks for one id.
type asker struct {
	ctx    context.Context
	req    store.Request
	in     *together // nil while it waits
	told   chan struct{}
	answer *answer // once told is closed
}

// together is one call.
type together struct {
	ctx    context.Context
	cancel context.CancelFunc
	askers []*asker
	left   int // who have not given up
	ended  bool
	sent   time.Time // first
}

// resolve asks for one id, with others. It returns when ctx ends, whatever the client
// does and whoever else asks. The answer was asked for at the time returned.
func (d *directory) resolve(ctx context.Context, bucket bucketKeys, req store.Request, set bool) (*answer, time.Time) {
	key := likeness(bucket, req)
	key.set = set
	one := &asker{ctx: ctx, req: req, told: make(chan struct{})}
	if c := d.gathering.join(key, one); c != nil {
		go d.ask(key, c)
	}
	select {
	case <-one.told:
		return one.answer, one.in.sent
	case <-ctx.Done():
		if next := d.gathering.leave(key, one); next != nil {
			go d.ask(key, next)
		}
		return failed(resolveScript.name, ctx.Err()), time.Time{}
	}
}

// ask makes a call, and then those for which others have gathered meanwhile.
func (d *directory) ask(key alike, c *together) {
	for ; c != nil; c = d.gathering.end(key, c) {
		for i, a := range d.askOnce(key, c) {
			c.askers[i].answer = a
			close(c.askers[i].told)
		}
	}
}

// askOnce returns what is answered to each. An error that Redis tells may be of one
// id alone, so that those that were not answered are then asked for by themselves.
func (d *directory) askOnce(key alike, c *together) []*answer {
	reqs := make([]store.Request, len(c.askers))
	for i, one := range c.askers {
		reqs[i] = one.req
	}
	c.sent = d.clocks.now()
	answers := inTurn(d.send(c.ctx, []call{d.resolveCall(key, d.clocks.limit(key.bucket, c.sent), reqs...)})[0], len(reqs))
	rest := reqs[len(answers):]
	if len(rest) == 0 {
		return answers
	}
	calls := make([]call, len(rest))
	limit := d.clocks.limit(key.bucket, d.clocks.now())
	for i, req := range rest {
		calls[i] = d.resolveCall(key, limit, req)
	}
	for _, res := range d.send(c.ctx, calls) {
		answers = append(answers, inTurn(res, 1)...)
	}
	return answers
}

// inTurn takes the answers to n ids apart. There are fewer, of the first of several, where
// Redis has told an error of one behind them.
func inTurn(res rueidis.RedisResult, n int) []*answer {
	whole := read(resolveScript.name, res)
	answered := len(whole.values)
	if _, told := rueidis.IsRedisErr(res.Error()); told && n > 1 {
		return nil
	}
	if answered == 0 || answered > n {
		whole.fail(errForm)
		answered = n
	}
	answers := make([]*answer, answered)
	for i := range answers {
		answers[i] = whole.list()
	}
	return answers
}

// join returns the call that has to be made for it, if it does not wait for others.
func (g *gathering) join(key alike, one *asker) *together {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := g.queues[key]
	if q == nil {
		q = &queue{}
		if g.queues == nil {
			g.queues = map[alike]*queue{}
		}
		g.queues[key] = q
	}
	q.waiting = append(q.waiting, one)
	if q.calls >= maxFree && len(q.waiting) < maxTogether {
		return nil
	}
	return q.depart()
}

// leave is for one who has given up. It returns a call that has to be made now.
func (g *gathering) leave(key alike, one *asker) *together {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := one.in
	if c == nil {
		q := g.queues[key] // is there as long as any wait
		q.waiting = slices.DeleteFunc(q.waiting, func(a *asker) bool { return a == one })
		return nil
	}
	if c.left--; c.left > 0 {
		return nil
	}
	if c.cancel != nil {
		c.cancel()
	}
	return g.over(key, c)
}

// end is for a call that has been answered. It returns one that has to be made now.
func (g *gathering) end(key alike, c *together) *together {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	return g.over(key, c)
}

func (g *gathering) over(key alike, c *together) *together {
	if c.ended {
		return nil
	}
	c.ended = true
	q := g.queues[key]
	q.calls--
	if len(q.waiting) > 0 {
		return q.depart()
	}
	if q.calls == 0 {
		delete(g.queues, key)
	}
	return nil
}

// depart makes a call of all who wait. One who goes alone goes with its own context.
func (q *queue) depart() *together {
	c := &together{askers: q.waiting, left: len(q.waiting)}
	q.waiting = nil
	q.calls++
	for _, one := range c.askers {
		one.in = c
	}
	c.ctx = c.askers[0].ctx
	if len(c.askers) > 1 {
		c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(c.ctx))
	}
	return c
}
