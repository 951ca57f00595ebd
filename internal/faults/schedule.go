package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is what can be done to a fleet.
type Fault string

// All faults. Those with a hold time are taken back after it.
const (
	WorkerKilled    Fault = "worker killed"      // kill -9; started anew
	WorkerFrozen    Fault = "worker frozen"      // SIGSTOP, SIGCONT
	WorkerTold      Fault = "worker told"        // SIGTERM: it drains, ends, and is started anew
	WorkerDrained   Fault = "worker drained"     // by an operator, and undrained
	WorkerReplaced  Fault = "worker replaced"    // another process answers at its URL; it lives on for the hold time
	WorkerCut       Fault = "worker cut off"     // nothing passes to or from it
	WorkerUnheard   Fault = "worker unheard"     // what it sends to pinboard is lost
	WorkerUnreached Fault = "worker unreached"   // a node does not reach it
	WorkerLate      Fault = "worker late"        // its heartbeats arrive past its lease
	WorkerClock     Fault = "worker's clock off" // its wall clock, and right again
	NodeKilled      Fault = "node killed"        // kill -9; started anew
	NodeFrozen      Fault = "node frozen"        // SIGSTOP, SIGCONT
	NodeStoreless   Fault = "node without store" // a node does not reach Redis
	NodeStoreSlow   Fault = "node with slow store"
	NodeUnreached   Fault = "node unreached" // clients do not reach a node
	NodeClock       Fault = "node's clock off"
	LinksReset      Fault = "links reset" // all connections to or from a node
	LinksHalfClosed Fault = "links half closed"
	RedisRestarted  Fault = "redis restarted" // with its data
	RedisLost       Fault = "redis lost"      // restarted without its data
	RedisFlushed    Fault = "redis flushed"
	RedisPaused     Fault = "redis paused" // CLIENT PAUSE
	RedisFrozen     Fault = "redis frozen" // SIGSTOP, SIGCONT
	RedisFull       Fault = "redis full"   // maxmemory
	RedisReadOnly   Fault = "redis read-only"
	RedisForgetful  Fault = "redis forgets scripts"
)

// part is what a fault is done to.
type part string

const (
	workerPart part = "worker"
	nodePart   part = "node"
	redisPart  part = "redis"
)

var faults = []struct {
	Fault
	part
}{
	{WorkerKilled, workerPart}, {WorkerFrozen, workerPart}, {WorkerTold, workerPart}, {WorkerDrained, workerPart},
	{WorkerReplaced, workerPart}, {WorkerCut, workerPart}, {WorkerUnheard, workerPart}, {WorkerUnreached, workerPart},
	{WorkerLate, workerPart}, {WorkerClock, workerPart},
	{NodeKilled, nodePart}, {NodeFrozen, nodePart}, {NodeStoreless, nodePart}, {NodeStoreSlow, nodePart},
	{NodeUnreached, nodePart}, {LinksReset, nodePart}, {LinksHalfClosed, nodePart},
	{NodeClock, nodePart},
	{RedisRestarted, redisPart}, {RedisLost, redisPart}, {RedisFlushed, redisPart}, {RedisPaused, redisPart},
	{RedisFrozen, redisPart}, {RedisFull, redisPart}, {RedisReadOnly, redisPart}, {RedisForgetful, redisPart},
}

// Step is a fault that is inflicted at some time after the start of a run, and
// taken back after some time.
type Step struct {
	Fault
	// Target is the number of the worker or node that it is done to.
	Target int
	// Other is a number of a node, for what is between a worker and a node.
	Other int
	At    time.Duration
	Hold  time.Duration
}

// String tells the step on one line.
func (s Step) String() string {
	return fmt.Sprintf("%v: %s (target %d, other %d) for %v", s.At, s.Fault, s.Target, s.Other, s.Hold)
}

// Shape is what a schedule is for.
type Shape struct {
	Nodes, Workers int
	Lease          time.Duration
}

// Schedule returns faults for at least so long a time, always the same for one
// seed. Up to three faults, of different parts, overlap. All faults occur about
// equally often: none twice before each has been there once. Half of the hold
// times are shorter than a lease, half are longer.
func Schedule(seed uint64, shape Shape, length time.Duration) []Step {
	random := rand.New(rand.NewPCG(seed, 0))
	var steps []Step
	var deck []int
	for at := time.Duration(0); at < length; {
		count := 1 + random.IntN(3)
		busy := map[string]bool{}
		round := time.Duration(0)
		for range count {
			if len(deck) == 0 {
				deck = random.Perm(len(faults))
			}
			i, step := draw(random, shape, deck, busy)
			if i < 0 {
				break
			}
			deck = slices.Delete(deck, i, i+1)
			step.At = at + upTo(random, shape.Lease/4)
			round = max(round, step.At-at+step.Hold)
			steps = append(steps, step)
		}
		// Now and then a lease of peace, else just time to start anew.
		at += round + shape.Lease/4 + time.Duration(random.IntN(2))*shape.Lease/2
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return int(a.At - b.At) })
	return steps
}

// draw finds the first fault of the deck that no other one of the round is in
// the way of, or returns -1.
func draw(random *rand.Rand, shape Shape, deck []int, busy map[string]bool) (int, Step) {
	for i, card := range deck {
		f := faults[card]
		step := Step{Fault: f.Fault, Other: random.IntN(shape.Nodes)}
		switch f.part {
		case workerPart:
			step.Target = random.IntN(shape.Workers)
		case nodePart:
			step.Target = random.IntN(shape.Nodes)
		}
		step.Hold = shape.Lease/5 + upTo(random, shape.Lease*3/5)
		if random.IntN(2) == 0 {
			step.Hold += shape.Lease
		}
		name := fmt.Sprint(f.part, step.Target)
		if !busy[name] {
			busy[name] = true
			return i, step
		}
	}
	return -1, Step{}
}

func upTo(random *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(limit)))
}
