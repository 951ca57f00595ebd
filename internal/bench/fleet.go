package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// headroom is so much that no placement of a run makes a difference.
const headroom = 1e9

// fleet is a directory in a redis-server of its own.
type fleet struct {
	server *redistest.Server
	client rueidis.Client
	cfg    store.Config
	store  store.Store
}

// startFleet starts one, with further arguments of redis-server.
func startFleet(args ...string) (*fleet, error) {
	server, err := redistest.Start(redistest.Options{TCP: true, Args: args})
	if err != nil {
		return nil, err
	}
	client, err := rueidis.NewClient(server.ClientOption())
	if err != nil {
		server.Stop()
		return nil, err
	}
	f := &fleet{
		server: server, client: client,
		cfg: store.Config{Prefix: "pinboard", LeaseTTL: time.Hour, Shards: 1},
	}
	f.store = redis.New(client).Open(f.cfg)
	return f, nil
}

// another returns a client with connections of its own.
func (f *fleet) another() (rueidis.Client, error) { return rueidis.NewClient(f.server.ClientOption()) }

func (f *fleet) stop() {
	f.client.Close()
	f.server.Stop()
}

// populate registers workers with a new namespace, places rows ids on them, and
// returns its candidates. Its quarantine is over.
func (f *fleet) populate(ctx context.Context, namespace string, workers, rows int) (store.View, error) {
	for w := range workers {
		r := store.Registration{
			SessionID: rand.Text(), ClientID: rand.Text(), Secret: wire.NewSecret(rand.Text()),
			Namespaces: []string{namespace}, AdvertiseURL: "http://" + rand.Text(), Headroom: headroom,
			Instances: map[string][]string{},
		}
		for i := w; i < rows; i += workers {
			r.Instances[namespace] = append(r.Instances[namespace], fmt.Sprintf("thread-%08d", i))
		}
		if _, err := f.store.Register(ctx, r); err != nil {
			return store.View{}, err
		}
		if err := f.store.Activate(ctx, r.SessionID); err != nil {
			return store.View{}, err
		}
	}
	// The quarantine is a lease long, and so short for a node with such a lease.
	brief := f.cfg
	brief.LeaseTTL = time.Millisecond
	for {
		res, err := redis.New(f.client).Open(brief).Resolve(ctx, request(namespace, "first"))
		if err != nil {
			return store.View{}, err
		}
		if res.Outcome == store.Placed {
			return f.store.Candidates(ctx, namespace, "first")
		}
		if res.Outcome != store.Quarantined {
			return store.View{}, fmt.Errorf("the first placement: outcome %d", res.Outcome)
		}
	}
}

func request(namespace, id string) store.Request {
	req := store.Request{Namespace: namespace, ID: id, View: store.AnyView, BalanceFactor: 2}
	for i := range req.Dice {
		req.Dice[i] = mathrand.Uint32() >> 1
	}
	return req
}

// recorder is a client that sends nothing, and keeps the last command.
type recorder struct {
	rueidis.Client
	last []string
}

func (r *recorder) Do(_ context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	r.last = cmd.Commands()
	return rueidis.RedisResult{}
}

// Where the words of a placement's command are: see resolve.lua. They begin with
// EVALSHA, its digest, and three keys by their number.
const (
	// limitAt is the one that says how far Redis' clock can have come.
	limitAt = 3 + 3 + 3
	// idsAt is where those of the first id begin, and idWords how many an id has.
	idsAt, idWords = 3 + 3 + 5, 4
)

// commands returns the command by which so many of the requests are asked of Redis
// together.
func (f *fleet) commands(ctx context.Context, together int, next func(i int) store.Request) func(i int) []string {
	r := &recorder{Client: f.client}
	d := redis.New(r).Open(f.cfg)
	// A node that places knows the clock, but by far not as long ahead as it may take
	// until a command is sent that is recorded now.
	limit := strconv.FormatInt(time.Now().Add(time.Hour).UnixMicro(), 10)
	return func(i int) []string {
		var words []string
		for n := range together {
			_, _ = d.Resolve(ctx, next(i*together+n)) // there is no answer
			if words == nil {
				words = append(words, r.last[:idsAt]...)
			}
			words = append(words, r.last[idsAt:idsAt+idWords]...)
		}
		words[limitAt] = limit
		return words
	}
}

// resolveAll has so many ask the store itself, side by side, each for so many ids, and
// returns the rate.
func (f *fleet) resolveAll(ctx context.Context, askers, per int, next func(i int) store.Request) (float64, error) {
	errs := make([]error, askers)
	var group sync.WaitGroup
	begun := time.Now()
	for w := range askers {
		group.Go(func() {
			for i := range per {
				res, err := f.store.Resolve(ctx, next(w*per+i))
				if err == nil && res.Outcome != store.Placed {
					err = fmt.Errorf("outcome %d", res.Outcome)
				}
				if err != nil {
					errs[w] = err
					return
				}
			}
		})
	}
	group.Wait()
	return float64(askers*per) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// measure runs something that makes n calls and returns its rate.
func (f *fleet) measure(ctx context.Context, n int, run func() (rate float64, err error)) (sample, error) {
	before, err := f.busy(ctx)
	if err != nil {
		return sample{}, err
	}
	rate, err := run()
	if err != nil {
		return sample{}, err
	}
	after, err := f.busy(ctx)
	return sample{rate: rate, cpu: float64(n) / (after - before)}, err
}

// busy returns for how many seconds the thread has run that runs Redis' commands.
func (f *fleet) busy(ctx context.Context) (seconds float64, err error) {
	user, err := f.number(ctx, "cpu", "used_cpu_user_main_thread")
	if err != nil {
		return 0, err
	}
	system, err := f.number(ctx, "cpu", "used_cpu_sys_main_thread")
	return user + system, err
}

func (f *fleet) info(ctx context.Context, section string) (string, error) {
	return f.client.Do(ctx, f.client.B().Info().Section(section).Build()).ToString()
}
