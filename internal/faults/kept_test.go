//go:build linux

package faults_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

// Leases end while Redis is away for two thirds of one, or soon after, before their
// workers' next heartbeats: the last of a worker is up to a fifth of a lease old when
// Redis goes. All this while clients ask for ids of every worker.
//
// Not parallel, and with the times that workers and pinboard have by default: a busy
// machine can make a heartbeat late.
func TestInstancesAreKeptWhileRedisIsAwayFor10sOfALeaseOf15s(t *testing.T) {
	const beat, away = 3 * time.Second, 10 * time.Second
	p := newPlaced(t, beat)
	f, l := p.fleet, p.load
	p.askUntil(f.nodes, faults.Now()+time.Second)
	f.redis.Kill()
	p.askUntil(f.nodes, faults.Now()+away)
	f.redis.Restart(t)
	p.askUntil(f.nodes, faults.Now()+2*beat)
	p.requireKept(t)
	f.stop()
	report(t, faults.Check(f.history(t, l.acks)), nil)
}

// A worker whose heartbeat has gone to the frozen node gives it up after 5 s and sends
// the next one elsewhere, before its lease ends. With a much shorter lease than the
// usual one it would be too late.
func TestClientsOfOtherNodesNoticeNothingOfANodeThatFreezes(t *testing.T) {
	t.Parallel()
	const beat = 3 * time.Second
	p := newPlaced(t, beat)
	f, l := p.fleet, p.load
	p.askUntil(f.nodes, faults.Now()+time.Second)
	f.nodes[1].process.signal(syscall.SIGSTOP)
	missed := p.askUntil([]*node{f.nodes[0], f.nodes[2]}, faults.Now()+f.lease)
	f.nodes[1].process.signal(syscall.SIGCONT)
	require.Empty(t, missed)
	p.requireKept(t)
	f.stop()
	report(t, faults.Check(f.history(t, l.acks)), nil)
}

// placed is a fleet with an id on each worker, and how that is known.
type placed struct {
	fleet   *fleet
	load    *load
	numbers map[string]int
	lives   map[string]string
}

func newPlaced(t *testing.T, beat time.Duration) *placed {
	t.Helper()
	f := newFleet(t, plan{workers: workerCount, lease: 5 * beat, beat: beat, idle: time.Minute, lawless: -1})
	l := newLoad(f)
	t.Cleanup(l.client.CloseIdleConnections)
	f.settle(t, l)
	p := &placed{fleet: f, load: l, numbers: map[string]int{}, lives: map[string]string{}}
	for _, s := range f.workers {
		number, first := f.placedOn(t, l, s)
		p.numbers[first.ID], p.lives[first.ID] = number, first.Life
	}
	require.Len(t, p.lives, workerCount)
	return p
}

// askUntil asks for each id through each of the nodes until that time, and returns why
// some were not answered.
func (p *placed) askUntil(nodes []*node, end time.Duration) (missed []error) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for _, number := range p.numbers {
		for _, n := range nodes {
			group.Go(func() {
				tick := time.NewTicker(thinkTime)
				defer tick.Stop()
				for ; faults.Now() < end; <-tick.C {
					if _, err := p.load.operate(context.Background(), n, number, 0); err != nil {
						mu.Lock()
						missed = append(missed, fmt.Errorf("id-%d through %s: %w", number, n.name, err))
						mu.Unlock()
					}
				}
			})
		}
	}
	group.Wait()
	return missed
}

// requireKept checks that nobody but its instance from the start has answered for an id.
func (p *placed) requireKept(t *testing.T) {
	t.Helper()
	found := map[string]string{}
	for id, number := range p.numbers {
		await(t, id+" is served", func() bool {
			a, err := p.load.operate(context.Background(), p.fleet.nodes[0], number, 0)
			found[id] = a.Life
			return err == nil
		})
	}
	require.Equal(t, p.lives, found)
	for _, a := range p.load.acks {
		if life, ours := p.lives[a.ID]; ours {
			require.Equal(t, life, a.Life, "%s at %v", a.ID, a.Received)
		}
	}
}
