//go:build linux

package faults_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

// inflict does a fault to the fleet, and returns what takes it back.
func (f *fleet) inflict(t *testing.T, step faults.Step) (heal func()) {
	t.Helper()
	switch step.Fault {
	case faults.WorkerKilled, faults.WorkerFrozen, faults.WorkerTold, faults.WorkerDrained, faults.WorkerReplaced:
		return f.inflictOnWorker(t, step, f.workers[step.Target])
	case faults.WorkerClock:
		return clockOff(t, f.workers[step.Target].clock, step)
	case faults.NodeClock:
		return clockOff(t, f.nodes[step.Target].clock, step)
	case faults.NodeKilled, faults.NodeFrozen:
		return f.inflictOnNode(t, step, f.nodes[step.Target])
	case faults.RedisRestarted, faults.RedisLost, faults.RedisFlushed, faults.RedisPaused, faults.RedisFrozen,
		faults.RedisFull, faults.RedisReadOnly, faults.RedisForgetful:
		return f.inflictOnRedis(t, step)
	}
	return f.inflictOnLinks(step)
}

func nothing() {}

// clockOff sets a wall clock off by what the step's other number says.
func clockOff(t *testing.T, c *wallClock, step faults.Step) (heal func()) {
	t.Helper()
	c.step(t, []time.Duration{20 * time.Second, time.Hour, -time.Hour}[step.Other])
	return func() { c.step(t, 0) }
}

func (f *fleet) inflictOnWorker(t *testing.T, step faults.Step, s *slot) (heal func()) {
	t.Helper()
	p := s.process
	switch step.Fault {
	case faults.WorkerKilled:
		s.killWorker()
		return func() { f.startWorker(t, s) }
	case faults.WorkerFrozen:
		p.signal(syscall.SIGSTOP)
		return func() { p.signal(syscall.SIGCONT) }
	case faults.WorkerTold:
		p.signal(syscall.SIGTERM)
		return func() {
			p.endsWithin(drain + 3*time.Second) // else a new one takes its URL over
			f.startWorker(t, s)
		}
	case faults.WorkerReplaced:
		f.startWorker(t, s)
		return p.kill
	case faults.WorkerDrained:
		w, ok := f.worker(s)
		if !ok || f.operate(f.nodes[step.Other], http.MethodPost, "drain", map[string]any{"clientId": w.ClientID}, nil) != nil {
			return nothing // the node, or its Redis, is not to be had: so nothing was promised
		}
		return func() {
			_ = f.operate(f.nodes[step.Other], http.MethodPost, "undrain", map[string]any{"clientId": w.ClientID}, nil)
		}
	}
	panic("unknown fault " + step.Fault)
}

func (f *fleet) inflictOnNode(t *testing.T, step faults.Step, n *node) (heal func()) {
	t.Helper()
	if step.Fault == faults.NodeKilled {
		n.killNode()
		return func() { f.startNode(t, n) }
	}
	p := n.process
	p.signal(syscall.SIGSTOP)
	return func() { p.signal(syscall.SIGCONT) }
}

func (f *fleet) inflictOnRedis(t *testing.T, step faults.Step) (heal func()) {
	t.Helper()
	restart := func() { f.redis.Restart(t) }
	switch step.Fault {
	case faults.RedisRestarted:
		f.redis.Kill()
		return restart
	case faults.RedisLost:
		f.command(t, "FLUSHALL")
		f.redis.Kill()
		return restart
	case faults.RedisFlushed:
		f.command(t, "FLUSHALL")
	case faults.RedisForgetful:
		f.command(t, "SCRIPT", "FLUSH")
	case faults.RedisPaused:
		f.command(t, "CLIENT", "PAUSE", strconv.FormatInt(step.Hold.Milliseconds(), 10), "ALL")
	case faults.RedisFrozen:
		f.redis.Freeze()
		return f.redis.Thaw
	case faults.RedisFull:
		f.command(t, "CONFIG", "SET", "maxmemory", "1")
		return func() { f.command(t, "CONFIG", "SET", "maxmemory", "0") }
	case faults.RedisReadOnly:
		f.command(t, "CONFIG", "SET", "min-replicas-to-write", "1")
		return func() { f.command(t, "CONFIG", "SET", "min-replicas-to-write", "0") }
	}
	return nothing
}

// command has Redis do something. The connection may be one of before a
// restart, which is found out by using it.
func (f *fleet) command(t *testing.T, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return f.control.Do(ctx, f.control.B().Arbitrary(words...).Build()).Error() == nil
	}, waitLimit, 20*time.Millisecond, "%v", words)
}

func (f *fleet) inflictOnLinks(step faults.Step) (heal func()) {
	links, slow := f.links(step), time.Duration(0)
	switch step.Fault {
	case faults.LinksReset, faults.LinksHalfClosed:
		for _, l := range links {
			if step.Fault == faults.LinksReset {
				l.Reset()
			} else {
				l.HalfClose(step.Other == 0)
			}
		}
		return nothing
	case faults.WorkerLate:
		slow = f.lease * 6 / 5
	case faults.NodeStoreSlow:
		slow = f.lease / 8
	}
	for _, l := range links {
		if slow > 0 {
			l.Delay(slow)
		} else {
			l.Cut()
		}
	}
	return func() {
		for _, l := range links {
			l.Mend()
		}
	}
}

// links returns the ways that a fault is about.
func (f *fleet) links(step faults.Step) (links []*faults.Link) {
	switch step.Fault {
	case faults.WorkerUnreached:
		return []*faults.Link{&f.workers[step.Target].from[step.Other]}
	case faults.NodeStoreless, faults.NodeStoreSlow:
		return []*faults.Link{&f.nodes[step.Target].store}
	case faults.NodeUnreached:
		return []*faults.Link{&f.nodes[step.Target].front}
	case faults.LinksReset, faults.LinksHalfClosed:
		links = []*faults.Link{&f.nodes[step.Target].store, &f.nodes[step.Target].front}
		for _, s := range f.workers {
			links = append(links, &s.from[step.Target], &s.to[step.Target])
		}
		return links
	}
	s := f.workers[step.Target]
	for i := range f.nodes {
		links = append(links, &s.to[i])
		if step.Fault == faults.WorkerCut {
			links = append(links, &s.from[i])
		}
	}
	return links
}

// timed is something to do at some time of a run.
type timed struct {
	at   time.Duration
	do   func()
	what string
}

// play inflicts the steps of a schedule, one after the other as they are due,
// and takes each back. It returns what it did when.
func (f *fleet) play(t *testing.T, steps []faults.Step) (done []timed) {
	t.Helper()
	begin := faults.Now()
	late := time.Duration(0) // a slow step puts all later ones off
	var heals []timed
	for len(steps)+len(heals) > 0 {
		i := earliest(heals)
		if i >= 0 && (len(steps) == 0 || heals[i].at <= begin+steps[0].At+late) {
			waitUntil(heals[i].at)
			done = append(done, timed{at: faults.Now(), what: heals[i].what})
			heals[i].do()
			heals = slices.Delete(heals, i, i+1)
			continue
		}
		step := steps[0]
		steps = steps[1:]
		waitUntil(begin + step.At + late)
		now := faults.Now()
		late = max(late, now-begin-step.At)
		done = append(done, timed{at: now, what: step.String()})
		heal := f.inflict(t, step)
		heals = append(heals, timed{at: faults.Now() + step.Hold, do: heal, what: "end of: " + step.String()})
	}
	return done
}

func earliest(list []timed) int {
	first := -1
	for i, entry := range list {
		if first < 0 || entry.at < list[first].at {
			first = i
		}
	}
	return first
}

// waitUntil waits for a time of faults.Now.
func waitUntil(at time.Duration) {
	timer := time.NewTimer(at - faults.Now())
	defer timer.Stop()
	<-timer.C
}
