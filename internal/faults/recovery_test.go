//go:build linux

package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

const (
	probeEvery = 20 * time.Millisecond
	repeats    = 3
)

// recovery is a fault whose effect on the clients of one id is measured.
type recovery struct {
	name  string
	bound string // what is promised
	limit time.Duration
	owner int // the number of its worker
	// cause inflicts the fault, which lasts until it returns, and returns what
	// puts the fleet in order again.
	cause func(*testing.T, *fleet, *slot) (heal func())
	// fromEnd counts from when cause has returned.
	fromEnd bool
	// fresh asks for ids that were never placed, too.
	fresh bool
}

func recoveries() []recovery {
	step := func(fault faults.Fault) func(*testing.T, *fleet, *slot) func() {
		return func(t *testing.T, f *fleet, s *slot) func() {
			return f.inflict(t, faults.Step{Fault: fault, Target: s.number})
		}
	}
	// Redis' TTLs run on while it is away, and leases end.
	away := func(d time.Duration) func(*testing.T, *fleet, *slot) func() {
		return func(t *testing.T, f *fleet, _ *slot) func() {
			f.redis.Kill()
			waitUntil(faults.Now() + d)
			f.redis.Restart(t)
			return nothing
		}
	}
	of := func(number int) string {
		if number >= pythonFrom && pythonBinary != "" {
			return "Python"
		}
		return "Go"
	}
	var list []recovery
	for _, number := range []int{0, pythonFrom} {
		list = append(list,
			recovery{name: of(number) + " worker killed", bound: "a lease and 1 s", limit: lease + time.Second, owner: number, cause: step(faults.WorkerKilled)},
			recovery{name: of(number) + " worker frozen", bound: "a lease and 1 s", limit: lease + time.Second, owner: number, cause: step(faults.WorkerFrozen)},
			recovery{name: of(number) + " worker drained by an operator", bound: "1 s", limit: time.Second, owner: number, cause: step(faults.WorkerDrained)},
			recovery{name: of(number) + " worker shut down", bound: "1 s", limit: time.Second, owner: number, cause: step(faults.WorkerTold)},
			recovery{name: "Redis back within a lease, " + of(number) + " owner", bound: "a heartbeat and 1 s, kept", limit: heartbeat + time.Second, owner: number, fromEnd: true, cause: away(lease - 3*heartbeat)},
			// 10 s of the default lease.
			recovery{name: "Redis back after 2/3 of a lease, " + of(number) + " owner", bound: "a heartbeat and 1 s, kept", limit: heartbeat + time.Second, owner: number, fromEnd: true, cause: away(lease * 2 / 3)},
			recovery{name: "Redis back after 5 leases, " + of(number) + " owner", bound: "a heartbeat and 1 s", limit: heartbeat + time.Second, owner: number, fromEnd: true, cause: away(lease * 5)},
			recovery{name: "Redis back empty, " + of(number) + " owner", bound: "a lease and a heartbeat", limit: lease + heartbeat, owner: number, fromEnd: true,
				cause: func(t *testing.T, f *fleet, _ *slot) func() {
					f.inflict(t, faults.Step{Fault: faults.RedisLost})()
					return nothing
				}},
		)
	}
	return append(list,
		recovery{name: "Redis back empty, a new id", bound: "a lease and a heartbeat", limit: lease + heartbeat, fromEnd: true, fresh: true,
			cause: func(t *testing.T, f *fleet, _ *slot) func() {
				f.inflict(t, faults.Step{Fault: faults.RedisLost})()
				return nothing
			}},
		recovery{name: "another node killed", bound: "nothing noticed", cause: func(t *testing.T, f *fleet, _ *slot) func() {
			return f.inflict(t, faults.Step{Fault: faults.NodeKilled, Target: 1})
		}},
	)
}

// TestRecovery measures and prints; that the ids recover at all is what it
// requires, not how fast: the machine may be slow.
func TestRecovery(t *testing.T) {
	if !*long {
		t.Log("measured with -long")
		return
	}
	f := newFleet(t, plan{workers: workerCount, lease: lease, idle: time.Minute, lawless: -1}) // nothing ends by idling
	l := newLoad(f)
	t.Cleanup(l.client.CloseIdleConnections)
	var table strings.Builder
	fmt.Fprintf(&table, "lease %v, heartbeat %v, %d times each\n%-42s %-26s %-10s %-8s %s\n", lease, heartbeat, repeats, "fault", "promised", "longest", "refused", "instance")
	for _, r := range recoveries() {
		worst, refused, kept := time.Duration(0), 0, 0
		for range repeats {
			m := f.measure(t, l, r)
			worst, refused = max(worst, m.gap), refused+m.refused
			if m.kept {
				kept++
			}
		}
		note := ""
		if r.limit > 0 && worst > r.limit || r.limit == 0 && refused > 0 {
			note = "  MORE THAN PROMISED"
		}
		fmt.Fprintf(&table, "%-42s %-26s %-10v %-8d kept %d of %d%s\n", r.name, r.bound, worst.Round(time.Millisecond), refused, kept, repeats, note)
	}
	t.Log("\n" + table.String())
	f.stop()
	report(t, faults.Check(f.history(t, l.acks)), nil)
}

// measured is what the clients of one id saw of a fault.
type measured struct {
	gap     time.Duration // the longest time without a good answer, from the fault on
	refused int           // answers that were not good, and calls without one
	kept    bool          // the instance lives on
}

// probe is one call and how it ended.
type probe struct {
	ack faults.Ack
	err error
}

// measure inflicts a fault while clients of an id of the slot's call it often.
func (f *fleet) measure(t *testing.T, l *load, r recovery) measured {
	t.Helper()
	s := f.workers[r.owner]
	f.settle(t, l)
	number, first := f.placedOn(t, l, s)
	if r.fresh {
		number = l.unused()
		first = faults.Ack{}
	}
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	var mu sync.Mutex
	var probes []probe
	group.Go(func() {
		for tick := time.NewTicker(probeEvery); ; {
			group.Go(func() {
				a, err := l.operate(ctx, f.nodes[0], number, 0)
				mu.Lock()
				defer mu.Unlock()
				probes = append(probes, probe{a, err})
			})
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	from := faults.Now()
	heal := r.cause(t, f, s)
	if r.fromEnd {
		from = faults.Now()
	}
	// Long enough for what is promised, and for what comes after a first good
	// answer: a drain moves the id a moment later.
	waitUntil(faults.Now() + 2*lease)
	await(t, "an answer since then", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.ContainsFunc(probes, func(p probe) bool { return p.err == nil && p.ack.Sent > from+lease })
	})
	end := faults.Now()
	stop()
	group.Wait()
	heal()
	return evaluate(probes, first, from, end)
}

func evaluate(probes []probe, first faults.Ack, from, end time.Duration) (m measured) {
	slices.SortFunc(probes, func(a, b probe) int { return int(a.ack.Received - b.ack.Received) })
	last := from
	for _, p := range probes {
		switch {
		case p.err != nil && p.ack.Sent > from && p.ack.Sent < end-patience:
			m.refused++
		case p.err == nil && p.ack.Received > from:
			m.gap = max(m.gap, p.ack.Received-last)
			last = p.ack.Received
			m.kept = p.ack.Life == first.Life
		}
	}
	return m
}

// settle waits until the fleet is whole: all nodes and workers, all of them
// taking placements.
func (f *fleet) settle(t *testing.T, l *load) {
	t.Helper()
	for _, n := range f.nodes {
		await(t, "a node listens", func() bool { return !n.down.Load() })
	}
	await(t, "all workers are registered", func() bool { return len(f.listed()) == len(f.workers) })
	f.requireRecovered(t, l)
	require.NoError(t, f.operate(f.nodes[0], http.MethodGet, "health", nil, nil))
}
