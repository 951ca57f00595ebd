//go:build linux

package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/internal/redistest"
)

// clockSteps are what wall clocks are off by, one after the other: within what
// attestations allow, which is 30 s, and far over it; forth, back, and right
// again.
var clockSteps = []time.Duration{20 * time.Second, -20 * time.Second, time.Hour, 0, -time.Hour, 0}

// TestSteppedClocksOfNodesAndWorkers steps the wall clocks of a node and of
// workers, one of them Python's if there is a Python. Nobody's lease may outlast
// its time by that, and nobody's session may end; past 30 s a node and a worker
// whose clocks differ do not understand each other, and do at once when they
// agree again.
func TestSteppedClocksOfNodesAndWorkers(t *testing.T) {
	t.Parallel()
	if !*long { // single steps are in every run's schedule
		t.Log("run with -long")
		return
	}
	f := newFleet(t, usual)
	l := startLoad(t, f, 1)
	f.requireRecovered(t, l)
	sessions := f.listed()
	var done []timed
	for _, stepped := range []func(time.Duration){
		func(by time.Duration) { f.nodes[0].clock.step(t, by) },
		func(by time.Duration) { f.workers[0].clock.step(t, by) },
		func(by time.Duration) { f.workers[pythonFrom].clock.step(t, by) },
	} {
		for _, by := range clockSteps {
			done = append(done, timed{at: faults.Now(), what: "a clock is off by " + by.String()})
			stepped(by)
			waitUntil(faults.Now() + lease/2)
		}
		f.requireRecovered(t, l)
	}
	require.ElementsMatch(t, sessions, f.listed(), "no session was lost")
	acks := l.end()
	f.stop()
	h := f.history(t, acks)
	t.Logf("answers: %v", l.statuses)
	report(t, faults.Check(h), done)
	f.requireCleanOutputs(t)
}

// TestASteppedClockIsRefusedClearly looks at what one client is told meanwhile.
func TestASteppedClockIsRefusedClearly(t *testing.T) {
	t.Parallel()
	f := newFleet(t, plan{workers: 1, lease: lease, idle: ample, lawless: -1})
	l := newLoad(f)
	number, first := f.placedOn(t, l, f.workers[0])
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		f.nodes[0].clock.step(t, by)
		await(t, "the node's attestations are refused", func() bool {
			status, retry := f.status(t, f.nodes[0], number)
			return status == http.StatusServiceUnavailable && retry == "1"
		})
		a, err := l.operate(context.Background(), f.nodes[1], number, 0)
		require.NoError(t, err, "the other nodes go on")
		require.Equal(t, first.Life, a.Life)
		f.nodes[0].clock.step(t, 0)
		await(t, "it is as before", func() bool {
			a, err := l.operate(context.Background(), f.nodes[0], number, 0)
			return err == nil && a.Life == first.Life && a.Epoch == first.Epoch
		})
	}
	l.client.CloseIdleConnections()
}

// status asks for an id with what is no operation.
func (f *fleet) status(t *testing.T, n *node, number int) (status int, retryAfter string) {
	t.Helper()
	res, err := f.http.Post("http://"+n.gate.Addr()+f.idOf(number)+"/op", "", nil)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	return res.StatusCode, res.Header.Get("Retry-After")
}

// redisClock is the wall clock of a redis-server's host.
type redisClock struct{ path string }

// start starts a Redis whose wall clock can be stepped. libfaketime is
// put before the C library; that one before Redis' own allocator, which would
// ask for the time before there is any.
func (c *redisClock) start(t *testing.T, f *fleet) (url string) {
	t.Helper()
	c.path = filepath.Join(f.dir, "redis.clock")
	c.step(t, 0)
	libraries, err := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	require.NoError(t, err)
	require.NotEmpty(t, libraries, "libfaketime is needed, Debian's package of this name")
	f.redis = redistest.New(t, redistest.Options{TCP: true, AOF: true, Env: []string{
		"LD_PRELOAD=" + libraries[0] + " libc.so.6", "FAKETIME_TIMESTAMP_FILE=" + c.path,
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1",
	}})
	f.control = around(t, f.redis)
	return "redis://" + f.redis.Addr()
}

func (c *redisClock) step(t *testing.T, by time.Duration) {
	t.Helper()
	text := strconv.FormatFloat(by.Seconds(), 'f', -1, 64) + "s\n"
	if by >= 0 {
		text = "+" + text
	}
	// Redis may read it at any time: so it is replaced, not written to.
	require.NoError(t, os.WriteFile(c.path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(c.path+".new", c.path))
}

// TestASteppedClockOfRedis steps the wall clock of Redis' host, while clients
// write, one worker is not heard and another one is killed. The one whose lease
// Redis ends early serves on; the other one's must not be held for live.
func TestASteppedClockOfRedis(t *testing.T) {
	t.Parallel()
	var clock redisClock
	f := newFleet(t, plan{workers: workerCount, lease: 2 * lease, idle: idle, lawless: -1, store: clock.start})
	l := startLoad(t, f, 1)
	f.requireRecovered(t, l)
	var done []timed
	random := rand.New(rand.NewPCG(1, 1))
	steps := []time.Duration{20 * time.Second, -time.Hour, 0}
	if *long {
		steps = append(steps, time.Hour, 0, 20*time.Second, -20*time.Second, 0, -time.Hour, time.Hour)
	}
	for _, by := range steps {
		unheard := f.workers[random.IntN(workerCount)]
		dead := f.workers[(unheard.number+1)%workerCount]
		hear := f.inflict(t, faults.Step{Fault: faults.WorkerUnheard, Target: unheard.number})
		revive := f.inflict(t, faults.Step{Fault: faults.WorkerKilled, Target: dead.number})
		done = append(done, timed{at: faults.Now(), what: fmt.Sprintf("Redis' clock is off by %v, %s is unheard, %s is killed", by, unheard.name, dead.name)})
		clock.step(t, by)
		waitUntil(faults.Now() + f.lease)
		hear()
		revive()
		f.requireRecovered(t, l)
	}
	acks := l.end()
	f.stop()
	h := f.history(t, acks)
	t.Logf("answers: %v", l.statuses)
	report(t, faults.Check(h), done)
	f.requireCleanOutputs(t)
}
