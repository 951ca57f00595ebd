package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// together is what comes back at once after Redis was wiped.
const together = 100_000

// worker is a registration that is repeated.
type worker struct {
	store.Registration
	ids int
}

// newWorker returns one with n ids, spread over its namespaces.
func newWorker(n int, namespaces ...string) *worker {
	w := &worker{ids: n, Registration: store.Registration{
		ClientID: rand.Text(), Secret: wire.NewSecret(rand.Text()), Namespaces: namespaces,
		AdvertiseURL: "http://" + rand.Text(), Headroom: headroom, Instances: map[string][]string{},
	}}
	for i := range n {
		ns := namespaces[i%len(namespaces)]
		w.Instances[ns] = append(w.Instances[ns], fmt.Sprintf("%s-%07d", w.ClientID[:8], i))
	}
	return w
}

func (w *worker) register(ctx context.Context, s store.Store) error {
	w.SessionID = rand.Text()
	done, err := s.Register(ctx, w.Registration)
	if err == nil && len(done.Duplicates) > 0 {
		err = fmt.Errorf("%d ids are others'", len(done.Duplicates))
	}
	return err
}

// scale measures for how long Redis is busy with one command, and what others
// feel of it, while very many rows come and go.
func scale(ctx context.Context, s settings) error {
	f, err := startFleet("--slowlog-log-slower-than", "1000", "--slowlog-max-len", "100000")
	if err != nil {
		return err
	}
	defer f.stop()
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\trows\tscripts\tmean ms\tover 5 ms\tover 20 ms\tslowest ms\tPING median, slowest ms\tCPU us a row")
	namespaces := []string{"/a", "/b", "/c", "/d"}
	one := newWorker(together, namespaces...)
	many := make([]*worker, 20)
	for i := range many {
		many[i] = newWorker(together/len(many), namespaces...)
	}
	large := newWorker(s.rows, "/large")
	var memory int
	steps := []struct {
		what string
		rows int
		do   func() error
	}{
		{"yardstick: scripts of 300 commands", 1000 * 100, func() error { return f.plainScripts(ctx, 1000, 300) }},
		{"one worker comes back", together, func() error { return one.register(ctx, f.store) }},
		{"20 workers come back", together, func() error { return registerAll(ctx, f.store, many) }},
		{"a worker registers all", s.rows, func() error { return f.filled(ctx, large, &memory) }},
		{"it registers again", s.rows, func() error { return large.register(ctx, f.store) }},
		{"all are listed", s.rows, func() error { return f.walk(ctx, "/large", s.rows) }},
		{"half are released", s.rows / 2, func() error { return f.release(ctx, large, s.rows/2) }},
		{"it deregisters", s.rows / 2, func() error { return f.store.Deregister(ctx, large.SessionID) }},
		{"the others are swept", s.rows / 2, func() error { return f.sweepAll(ctx) }},
	}
	for i, step := range steps {
		if i < 3 {
			if err := f.client.Do(ctx, f.client.B().Flushall().Build()).Error(); err != nil {
				return err
			}
		}
		line, err := f.watched(ctx, step.rows, step.do)
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\n", step.what, step.rows, line)
	}
	fmt.Fprintf(t, "used_memory a row, less its id: %.0f bytes\n", float64(memory)/float64(s.rows)-16)
	return t.Flush()
}

// plainScripts runs a script that does about as much as ours, over and over: how
// long the slowest takes is this machine's doing.
func (f *fleet) plainScripts(ctx context.Context, n, commands int) error {
	digest, err := f.load(ctx, yardstick(commands))
	if err != nil {
		return err
	}
	for range n / 8 {
		cmds := make([]rueidis.Completed, 8)
		for i := range cmds {
			cmds[i] = f.client.B().Evalsha().Sha1(digest).Numkeys(1).Key("yardstick").Arg("x").Build()
		}
		for _, res := range f.client.DoMulti(ctx, cmds...) {
			if err := res.Error(); err != nil {
				return err
			}
		}
	}
	return nil
}

func registerAll(ctx context.Context, s store.Store, workers []*worker) error {
	errs := make([]error, len(workers))
	var group sync.WaitGroup
	for i, w := range workers {
		group.Go(func() { errs[i] = w.register(ctx, s) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (f *fleet) filled(ctx context.Context, w *worker, memory *int) error {
	before, err := f.number(ctx, "memory", "used_memory")
	if err != nil {
		return err
	}
	if err := w.register(ctx, f.store); err != nil {
		return err
	}
	after, err := f.number(ctx, "memory", "used_memory")
	*memory = int(after - before)
	return err
}

func (f *fleet) walk(ctx context.Context, namespace string, rows int) error {
	seen := 0
	for cursor, more := "", true; more; more = cursor != "" {
		page, next, err := f.store.Rows(ctx, namespace, cursor, 1000)
		if err != nil {
			return err
		}
		seen, cursor = seen+len(page), next
	}
	if seen != rows {
		return fmt.Errorf("%d rows instead of %d", seen, rows)
	}
	return nil
}

// release frees the first rows of a worker of one namespace, in arrays as large
// as a request to the registry may have.
func (f *fleet) release(ctx context.Context, w *worker, rows int) error {
	freed := 0
	for some := range slices.Chunk(w.Instances[w.Namespaces[0]][:rows], 10_000) {
		releases := make([]wire.Release, len(some))
		for i, id := range some {
			releases[i] = wire.Release{SessionID: w.SessionID, Namespace: w.Namespaces[0], ID: id}
		}
		n, err := f.store.Release(ctx, releases)
		if err != nil {
			return err
		}
		freed += n
	}
	if freed != rows {
		return fmt.Errorf("%d rows were freed instead of %d", freed, rows)
	}
	return nil
}

func (f *fleet) sweepAll(ctx context.Context) error {
	for {
		if _, more, err := f.store.Sweep(ctx); err != nil || !more {
			return err
		}
	}
}

// watched runs something and tells what Redis was busy with meanwhile.
func (f *fleet) watched(ctx context.Context, rows int, do func() error) (string, error) {
	for _, cmd := range [][]string{{"CONFIG", "RESETSTAT"}, {"SLOWLOG", "RESET"}} {
		if err := f.client.Do(ctx, f.client.B().Arbitrary(cmd...).Build()).Error(); err != nil {
			return "", err
		}
	}
	before, err := f.busy(ctx)
	if err != nil {
		return "", err
	}
	pings, err := f.whilePinging(ctx, do)
	if err != nil {
		return "", err
	}
	after, err := f.busy(ctx)
	if err != nil {
		return "", err
	}
	scripts, mean, err := f.scripts(ctx)
	if err != nil {
		return "", err
	}
	slow, err := f.slow(ctx)
	if err != nil {
		return "", err
	}
	over := func(ms float64) (n int) {
		for _, took := range slow {
			if took > ms {
				n++
			}
		}
		return n
	}
	slowest := "below 1"
	if len(slow) > 0 {
		slowest = fmt.Sprintf("%.1f", slices.Max(slow))
	}
	slices.Sort(pings)
	return fmt.Sprintf("%d\t%.2f\t%d\t%d\t%s\t%.1f, %.1f\t%.1f", scripts, mean, over(5), over(20), slowest,
		pings[len(pings)/2], pings[len(pings)-1], (after-before)*1e6/float64(rows)), nil
}

// whilePinging has a client of its own ask for a PING every millisecond, and
// returns for how many milliseconds it waited each time.
func (f *fleet) whilePinging(ctx context.Context, do func() error) (pings []float64, err error) {
	prober, err := f.another()
	if err != nil {
		return nil, err
	}
	defer prober.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = do()
	}()
	for {
		begun := time.Now()
		if err := prober.Do(ctx, prober.B().Ping().Build()).Error(); err != nil {
			<-done
			return nil, err
		}
		pings = append(pings, time.Since(begun).Seconds()*1000)
		select {
		case <-done:
			return pings, err
		case <-time.After(time.Millisecond):
		}
	}
}

// scripts returns how many scripts ran since the statistics were reset, and how
// long one took, in milliseconds.
func (f *fleet) scripts(ctx context.Context) (n int, mean float64, err error) {
	text, err := f.info(ctx, "commandstats")
	if err != nil {
		return 0, 0, err
	}
	us := 0
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_eval"); ok {
			_, rest, _ = strings.Cut(rest, ":")
			var calls, took int
			if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d", &calls, &took); err != nil {
				return 0, 0, err
			}
			n, us = n+calls, us+took
		}
	}
	return n, float64(us) / 1000 / float64(max(1, n)), nil
}

// slow returns how long each slow command took, in milliseconds.
func (f *fleet) slow(ctx context.Context) (took []float64, err error) {
	entries, err := f.client.Do(ctx, f.client.B().SlowlogGet().Count(-1).Build()).ToArray()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		parts, err := entry.ToArray()
		if err != nil || len(parts) < 4 {
			return nil, fmt.Errorf("an entry of the slow log: %w", err)
		}
		command, err := parts[3].AsStrSlice()
		if err != nil {
			return nil, err
		}
		us, err := parts[2].AsInt64()
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(command[0], "EVAL") {
			took = append(took, float64(us)/1000)
		}
	}
	return took, nil
}

func (f *fleet) number(ctx context.Context, section, field string) (float64, error) {
	text, err := f.info(ctx, section)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == field {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("INFO has no %s", field)
}
