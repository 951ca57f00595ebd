package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/store/redis"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// routed is how many ids there are, served how many workers serve them, and
	// side how many requests are under way at a time.
	routed, served, side = 1000, 5, 32
	// moves is how many of the ids move.
	moves = 2000
	// beats is how often a worker's heartbeat comes.
	beats = 3 * time.Second
)

const anonymous = `{"providers": [], "namespaces": {"*": {"allow": "anonymous"}}}`

// routes measures requests to placed ids: what they cost in Redis, and how soon
// another node follows a move.
func routes(ctx context.Context, s settings) error {
	f, err := startFleet()
	if err != nil {
		return err
	}
	defer f.stop()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	defer worker.Close()
	sessions, err := f.serve(ctx, worker.URL)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() { f.beat(ctx, sessions) })
	defer beating.Wait()
	defer stop()

	told, err := f.node(ctx, false)
	if err != nil {
		return err
	}
	defer told.close()
	untold, err := f.node(ctx, true)
	if err != nil {
		return err
	}
	defer untold.close()
	if err := f.count(ctx, "with tracking", told, s.calls); err != nil {
		return err
	}
	if err := f.count(ctx, "without tracking", untold, s.calls); err != nil {
		return err
	}
	if err := f.follow(ctx); err != nil {
		return err
	}
	each := &kind{name: "without tracking", round: func(ctx context.Context) (sample, error) {
		return f.measure(ctx, s.calls, func() (float64, error) { return untold.ask(ctx, s.calls) })
	}}
	none := &kind{name: "with tracking", against: each, round: func(ctx context.Context) (sample, error) {
		return f.measure(ctx, s.calls, func() (float64, error) { return told.ask(ctx, s.calls) })
	}}
	kinds := []*kind{each, none}
	if err := takeTurns(ctx, s.rounds, kinds); err != nil {
		return err
	}
	return report(os.Stdout, kinds)
}

// serve registers workers that are all at one URL, behind names of their own.
func (f *fleet) serve(ctx context.Context, url string) (sessions []string, err error) {
	first, err := f.populate(ctx, "/routes", 1, 1)
	if err != nil {
		return nil, err
	}
	for _, c := range first.Candidates { // it only ended the quarantine
		if err := f.store.Deregister(ctx, c.SessionID); err != nil {
			return nil, err
		}
	}
	for i := range served {
		r := store.Registration{
			SessionID: rand.Text(), ClientID: rand.Text(), Secret: wire.NewSecret(rand.Text()), Headroom: headroom,
			Namespaces: []string{"/routes"}, AdvertiseURL: fmt.Sprintf("%s/%d", url, i), Instances: map[string][]string{},
		}
		for n := i; n < routed; n += served {
			r.Instances["/routes"] = append(r.Instances["/routes"], routedID(n))
		}
		if _, err := f.store.Register(ctx, r); err != nil {
			return nil, err
		}
		if err := f.store.Activate(ctx, r.SessionID); err != nil {
			return nil, err
		}
		sessions = append(sessions, r.SessionID)
	}
	return sessions, nil
}

func routedID(n int) string { return "route-" + strconv.Itoa(n%routed) }

func (f *fleet) beat(ctx context.Context, sessions []string) {
	tick := time.NewTicker(beats / served)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_, _ = f.store.Heartbeat(ctx, store.Beat{SessionID: sessions[i%served], Headroom: headroom})
		}
	}
}

// node is a pinboard with a client of its own.
type node struct {
	*pinboard.Pinboard
	client rueidis.Client
}

func (f *fleet) node(ctx context.Context, untold bool) (*node, error) {
	option := f.server.ClientOption()
	option.DisableCache = untold
	client, err := rueidis.NewClient(option)
	if err != nil {
		return nil, err
	}
	who, err := passport.Parse([]byte(anonymous), os.LookupEnv)
	if err != nil {
		return nil, err
	}
	pb, err := pinboard.New(pinboard.Options{Redis: client, Passport: who})
	if err != nil {
		return nil, err
	}
	n := &node{Pinboard: pb, client: client}
	_, err = n.ask(ctx, 2*routed) // all ids are known then
	return n, err
}

func (n *node) close() {
	_ = n.Shutdown(context.Background())
	n.client.Close()
}

// ask makes that many requests, and returns their rate.
func (n *node) ask(ctx context.Context, requests int) (float64, error) {
	errs := make([]error, side)
	var group sync.WaitGroup
	begun := time.Now()
	per := max(1, requests/side)
	for w := range side {
		group.Go(func() {
			for i := range per {
				req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/routes/"+routedID(w*per+i), nil)
				answer := httptest.NewRecorder()
				n.ServeHTTP(answer, req)
				if answer.Code != http.StatusOK {
					errs[w] = fmt.Errorf("status %d: %s", answer.Code, answer.Body)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(side*per) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// count prints what Redis runs while a node serves requests, and while it does
// not for as long.
func (f *fleet) count(ctx context.Context, name string, n *node, requests int) error {
	before, err := f.commandsRun(ctx)
	if err != nil {
		return err
	}
	begun := time.Now()
	if _, err := n.ask(ctx, requests); err != nil {
		return err
	}
	took := time.Since(begun)
	busy, err := f.commandsRun(ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	idle, err := f.commandsRun(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d requests to %d ids in %.1f s; commands in Redis while they ran, and in as long a time after them:\n",
		name, requests, routed, took.Seconds())
	for _, command := range slices.Sorted(maps.Keys(idle)) {
		during, after := busy[command]-before[command], idle[command]-busy[command]
		if during+after > 0 {
			fmt.Printf("  %-20s %8d %8d\n", command, during, after)
		}
	}
	return nil
}

func (f *fleet) commandsRun(ctx context.Context) (map[string]int, error) {
	text, err := f.info(ctx, "commandstats")
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls="); ok {
			calls, _, _ := strings.Cut(rest, ",")
			if all[name], err = strconv.Atoi(calls); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// follow moves ids, and prints after how many round trips, of a connection that goes
// on asking, another node's handle knew.
func (f *fleet) follow(ctx context.Context) error {
	option := f.server.ClientOption()
	option.PipelineMultiplex = -1 // one connection, so that it is the one that is told
	client, err := rueidis.NewClient(option)
	if err != nil {
		return err
	}
	defer client.Close()
	handle := redis.New(client).Open(f.cfg)
	trips := map[int]int{}
	for i := range moves {
		id := routedID(i)
		if _, err := handle.Known(ctx, "/routes", id); err != nil {
			return err
		}
		epoch, err := f.move(ctx, id)
		if err != nil {
			return err
		}
		for n := 0; ; n++ {
			known, err := handle.Known(ctx, "/routes", id)
			if err != nil {
				return err
			}
			if known.Epoch == epoch {
				trips[n]++
				break
			}
			if err := client.Do(ctx, client.B().Ping().Build()).Error(); err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d moves; round trips of another node until it knew:", moves)
	for _, n := range slices.Sorted(maps.Keys(trips)) {
		fmt.Printf("  %d: %d moves", n, trips[n])
	}
	fmt.Println()
	return nil
}

// move has an id placed on another worker, and returns its epoch.
func (f *fleet) move(ctx context.Context, id string) (int64, error) {
	row, err := f.store.Lookup(ctx, "/routes", id)
	if err != nil {
		return 0, err
	}
	req := request("/routes", id)
	req.Refused = &store.Refused{SessionID: row.SessionID, ClientID: row.ClientID, Epoch: row.Epoch}
	res, err := f.store.Resolve(ctx, req)
	if err == nil && res.Outcome != store.Placed {
		err = fmt.Errorf("move: outcome %d", res.Outcome)
	}
	return res.Epoch, err
}
