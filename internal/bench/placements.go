package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/pinboard-go/pinboard/internal/store"
)

// yardstick is a script of n operations on a small hash, every other one a write.
func yardstick(n int) string {
	var b strings.Builder
	for i := range n {
		if i%2 == 0 {
			b.WriteString("redis.call('HGET', KEYS[1], 'a') ")
		} else {
			b.WriteString("redis.call('HSET', KEYS[1], 'a', ARGV[1]) ")
		}
	}
	return b.String() + "return {2, 'a', 1, 1, 0}"
}

// placements measures first placements, by script and through the store.
func placements(ctx context.Context, s settings) error {
	f, err := startFleet()
	if err != nil {
		return err
	}
	defer f.stop()
	fmt.Printf("filling a namespace with %d rows\n", s.rows)
	large, err := f.populate(ctx, "/large", 2, s.rows)
	if err != nil {
		return err
	}
	own, err := f.callsOfOne(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("a placement that prefers a worker is %d commands in Redis\n", own)

	six, same := f.yardstick("redis-benchmark, 6 commands", s, 6), f.yardstick(fmt.Sprintf("redis-benchmark, %d commands", own), s, own)
	ours := &kind{name: fmt.Sprintf("our load, %d commands", own), against: same, round: f.ownLoad(s, own)}
	inLarge := func(context.Context) (string, store.View, error) { return "/large", large, nil }
	few := &kind{name: "placed, 2 workers, 1,000 rows", against: same, round: f.byScript(s, f.inNew(2), 1, true)}
	full := &kind{name: "32 ids together", against: same, round: f.byScript(s, f.inNew(2), 32, true)}
	some := &kind{name: "64 ask", against: same, atLeast: 0.7, round: f.throughStore(s, 64, f.inNew(2))}
	kinds := []*kind{
		six, same, ours, few,
		{name: "2 ids together", against: same, round: f.byScript(s, f.inNew(2), 2, true)},
		{name: "8 ids together", against: same, round: f.byScript(s, f.inNew(2), 8, true)},
		full,
		{name: "the same against 6 commands", against: six, round: func(context.Context) (sample, error) { return last(few), nil }},
		{name: "without a preference", against: few, round: f.byScript(s, f.inNew(2), 1, false)},
		{name: "1,000 workers", against: few, atLeast: 0.8, round: f.byScript(s, f.inNew(1000), 1, true)},
		{name: "32 ids together, 10 workers", against: same, round: f.byScript(s, f.inNew(10), 32, true)},
		{name: "32 ids together, 1,000 workers", against: full, atLeast: 0.8, round: f.byScript(s, f.inNew(1000), 32, true)},
		{name: "32 ids together, without a preference", against: same, round: f.byScript(s, f.inNew(2), 32, false)},
		{name: fmt.Sprintf("%d rows", s.rows), against: few, atLeast: 0.8, round: f.byScript(s, inLarge, 1, true)},
		{name: "through the store, 2 workers, one asks", against: same, round: f.throughStore(s, 1, f.inNew(2))},
		some,
		{name: "800 ask", against: same, round: f.throughStore(s, connections*pipeline, f.inNew(2))},
		{name: "64 ask, 1,000 workers", against: some, atLeast: 0.8, round: f.throughStore(s, 64, f.inNew(1000))},
		{name: fmt.Sprintf("64 ask, %d rows", s.rows), against: some, atLeast: 0.8, round: f.throughStore(s, 64, inLarge)},
	}
	if err := takeTurns(ctx, s.rounds, kinds); err != nil {
		return err
	}
	return report(os.Stdout, kinds)
}

func last(k *kind) sample { return k.samples[len(k.samples)-1] }

func (f *fleet) yardstick(name string, s settings, n int) *kind {
	return &kind{name: name, round: func(ctx context.Context) (sample, error) {
		digest, err := f.load(ctx, yardstick(n))
		if err != nil {
			return sample{}, err
		}
		return f.measure(ctx, s.calls, func() (float64, error) {
			return redisBenchmark(ctx, f.server.Addr(), s.calls, "EVALSHA", digest, "1", "yardstick:__rand_int__", "x")
		})
	}}
}

func (f *fleet) load(ctx context.Context, script string) (digest string, err error) {
	return f.client.Do(ctx, f.client.B().ScriptLoad().Script(script).Build()).ToString()
}

// ownLoad sends the yardstick as placements are sent.
func (f *fleet) ownLoad(s settings, n int) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		digest, err := f.load(ctx, yardstick(n))
		if err != nil {
			return sample{}, err
		}
		all := pipesOf(s.calls, func(int) []string {
			return []string{"EVALSHA", digest, "1", "yardstick:" + strconv.Itoa(mathrand.IntN(1e8)), "x"}
		})
		return f.measure(ctx, s.calls, func() (float64, error) { return all.send(ctx, f.server.Addr(), 2) })
	}
}

// directory returns a namespace to place ids in, and who may have them.
type directory func(ctx context.Context) (namespace string, view store.View, err error)

// inNew is a new namespace, which begins with 1,000 rows.
func (f *fleet) inNew(workers int) directory {
	return func(ctx context.Context) (namespace string, view store.View, err error) {
		namespace = "/" + rand.Text()[:8]
		view, err = f.populate(ctx, namespace, workers, 1000)
		return namespace, view, err
	}
}

// byScript places new ids, so many in one call, by the script alone. Its rates are of ids.
func (f *fleet) byScript(s settings, in directory, together int, prefer bool) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		namespace, view, err := in(ctx)
		if err != nil {
			return sample{}, err
		}
		all := pipesOf(s.calls/together, f.commands(ctx, together, newIDs(namespace, view, prefer)))
		return f.measure(ctx, all.n()*together, func() (float64, error) {
			rate, err := all.send(ctx, f.server.Addr(), int64(store.Placed))
			return rate * float64(together), err
		})
	}
}

// newIDs are requests for ids that nobody has asked for, as a node makes them:
// with a preference taken from the candidates.
func newIDs(namespace string, view store.View, prefer bool) func(int) store.Request {
	run := rand.Text()[:8]
	return func(i int) store.Request {
		req := request(namespace, run+"-"+strconv.Itoa(i))
		if prefer {
			req.View, req.Preferred = view.Version, view.Candidates[mathrand.IntN(len(view.Candidates))].SessionID
		}
		return req
	}
}

func (f *fleet) throughStore(s settings, askers int, in directory) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		namespace, view, err := in(ctx)
		if err != nil {
			return sample{}, err
		}
		per := max(1, s.calls/askers)
		return f.measure(ctx, per*askers, func() (float64, error) { return f.resolveAll(ctx, askers, per, newIDs(namespace, view, true)) })
	}
}

// callsOfOne returns how many commands a placement's script runs.
func (f *fleet) callsOfOne(ctx context.Context) (int, error) {
	view, err := f.populate(ctx, "/one", 2, 0)
	if err != nil {
		return 0, err
	}
	next := newIDs("/one", view, true)
	if _, err := f.store.Resolve(ctx, next(0)); err != nil { // it has more to find out
		return 0, err
	}
	if err := f.client.Do(ctx, f.client.B().ConfigResetstat().Build()).Error(); err != nil {
		return 0, err
	}
	if _, err := f.store.Resolve(ctx, next(1)); err != nil {
		return 0, err
	}
	text, err := f.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	n := 0
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":calls=")
		if !ok || strings.Contains(name, "evalsha") || strings.Contains(name, "config") {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		one, err := strconv.Atoi(calls)
		if err != nil {
			return 0, err
		}
		n += one
	}
	return n, nil
}
