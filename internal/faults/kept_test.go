//go:build linux

package faults_test

import (
	"context"
	"sync"
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
	f := newFleet(t, plan{workers: workerCount, lease: 5 * beat, beat: beat, idle: time.Minute, lawless: -1})
	l := newLoad(f)
	t.Cleanup(l.client.CloseIdleConnections)
	f.settle(t, l)
	numbers, lives := map[string]int{}, map[string]string{}
	for _, s := range f.workers {
		number, first := f.placedOn(t, l, s)
		numbers[first.ID], lives[first.ID] = number, first.Life
	}
	require.Len(t, lives, workerCount)

	// askUntil asks for each of them, through each node, until that time.
	askUntil := func(end time.Duration) {
		var group sync.WaitGroup
		for _, number := range numbers {
			for _, n := range f.nodes {
				group.Go(func() {
					tick := time.NewTicker(thinkTime)
					defer tick.Stop()
					for ; faults.Now() < end; <-tick.C {
						_, _ = l.operate(context.Background(), n, number, 0) // recorded if it is answered
					}
				})
			}
		}
		group.Wait()
	}
	askUntil(faults.Now() + time.Second)
	f.redis.Kill()
	askUntil(faults.Now() + away)
	f.redis.Restart(t)
	askUntil(faults.Now() + 2*beat)

	found := map[string]string{}
	for id, number := range numbers {
		await(t, id+" is served again", func() bool {
			a, err := l.operate(context.Background(), f.nodes[0], number, 0)
			found[id] = a.Life
			return err == nil
		})
	}
	require.Equal(t, lives, found)
	for _, a := range l.acks {
		if life, ours := lives[a.ID]; ours {
			require.Equal(t, life, a.Life, "%s at %v", a.ID, a.Received)
		}
	}
	f.stop()
	report(t, faults.Check(f.history(t, l.acks)), nil)
}
