//go:build linux

package faults_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/redistest"
)

const (
	// lease is short, because most faults are about its end, but long enough
	// for a worker to keep it on a busy machine: five heartbeats.
	lease     = 2 * time.Second
	heartbeat = 400 * time.Millisecond
	buffer    = 500 * time.Millisecond
	idle      = 3 * time.Second
	drain     = 2 * time.Second
	tick      = 100 * time.Millisecond

	nodeCount   = 3
	workerCount = 5
	pythonFrom  = 3 // these workers and later ones are Python's, if there is a Python
)

const passportDocument = `{
 "providers": [{"type": "staticToken", "id": "keys", "keys": [
   {"name": "fleet", "token": {"env": "FAULTS_TOKEN"}, "scopes": ["pinboard:worker", "pinboard:operator"],
    "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}}]}],
 "namespaces": {"*": {"allow": "anonymous"}}}`

// fleet is a deployment with a gate between any two of its parts.
type fleet struct {
	dir   string // of journals and outputs
	token string
	lease time.Duration
	beat  time.Duration
	idle  time.Duration

	namespaces []string

	redis   *redistest.Server // nil if the plan has another store
	url     func(*node) string
	control rueidis.Client // around all gates
	http    *http.Client   // for operators, around all gates

	nodes   []*node
	workers []*slot

	mu        sync.Mutex
	unguarded map[string]bool
	retired   []*process // former processes of slots that still run
}

// node is a place for a pinboard process: what it is after a restart, too.
type node struct {
	*process
	starts  int
	clock   *wallClock
	addr    atomic.Value // string: where the process listens
	down    atomic.Bool  // nothing listens there
	number  int
	running atomic.Int64 // the process's id

	store  faults.Link // to Redis
	front  faults.Link // from clients
	gate   *faults.Gate
	toGate *faults.Gate
}

// slot is a place for a worker process, at one advertise URL.
type slot struct {
	*process
	number  int
	starts  int
	lawless bool
	clock   *wallClock
	addr    atomic.Value // string: where the process listens

	from [nodeCount]faults.Link // each node to it
	to   [nodeCount]faults.Link // it to each node
	gate *faults.Gate           // its advertise URL
	out  *faults.Gate           // its pinboard URL
	turn atomic.Int64
}

// plan says how a fleet differs from the usual one.
type plan struct {
	workers int
	lease   time.Duration
	beat    time.Duration // of heartbeats; heartbeat if 0
	idle    time.Duration
	lawless int // the number of a worker that ignores its lease, and is a Go one; -1 for none

	namespaces []string // one if nil
	// store starts another store than the usual one, and returns the
	// REDIS_URL that leads nodes to it.
	store func(*testing.T, *fleet) (url string)
}

var usual = plan{workers: workerCount, lease: lease, idle: idle, lawless: -1}

// newFleet starts a fleet. Its directory is removed unless the test fails.
func newFleet(t *testing.T, p plan) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp(leak.Dir(), "pinboard-faults-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("journals and outputs are kept in %s", dir)
			return
		}
		if leak.Dir() == "" { // else it is looked through
			_ = os.RemoveAll(dir)
		}
	})
	f := &fleet{
		dir: dir, token: "fleet-" + rand.Text(), lease: p.lease, beat: cmp.Or(p.beat, heartbeat), idle: p.idle, unguarded: map[string]bool{},
		namespaces: p.namespaces,
		http:       &http.Client{Transport: &http.Transport{}, Timeout: 5 * time.Second},
	}
	t.Cleanup(f.http.CloseIdleConnections)
	if f.namespaces == nil {
		f.namespaces = []string{"/rooms"}
	}
	if p.store == nil {
		f.startRedis(t)
	} else {
		url := p.store(t, f)
		f.url = func(*node) string { return url }
	}
	for i := range nodeCount {
		n := f.newNode(t, i)
		f.mu.Lock() // the gates of a store of several servers look through them
		f.nodes = append(f.nodes, n)
		f.mu.Unlock()
	}
	for i := range p.workers {
		f.workers = append(f.workers, f.newSlot(t, i))
		f.workers[i].lawless = i == p.lawless
	}
	for _, n := range f.nodes {
		f.startNode(t, n)
	}
	for _, n := range f.nodes {
		await(t, n.name+" listens", func() bool { return !n.down.Load() })
	}
	for _, s := range f.workers {
		f.startWorker(t, s)
	}
	await(t, "all workers are registered", func() bool { return len(f.listed()) == p.workers })
	return f
}

// startRedis starts the usual store: one server, behind a gate for each node.
func (f *fleet) startRedis(t *testing.T) {
	t.Helper()
	f.redis = redistest.New(t, redistest.Options{TCP: true, AOF: true})
	f.control = around(t, f.redis)
	f.url = func(n *node) string { return "redis://" + n.toGate.Addr() }
}

// around returns a client that does not go through a gate.
func around(t *testing.T, server *redistest.Server) rueidis.Client {
	t.Helper()
	option := server.ClientOption()
	option.DisableCache = true
	return redistest.NewClient(t, option)
}

func (f *fleet) newGate(t *testing.T, route faults.Route) *faults.Gate {
	t.Helper()
	gate, err := faults.NewGate(route)
	require.NoError(t, err)
	t.Cleanup(gate.Close)
	return gate
}

func (f *fleet) newNode(t *testing.T, number int) *node {
	t.Helper()
	n := &node{number: number, clock: newWallClock(t, f.dir, fmt.Sprintf("node-%d", number))}
	n.addr.Store("")
	n.down.Store(true)
	n.toGate = f.newGate(t, func(*net.TCPAddr) (*faults.Link, string) { return &n.store, f.redis.Addr() })
	n.gate = f.newGate(t, func(*net.TCPAddr) (*faults.Link, string) { return &n.front, n.addr.Load().(string) })
	return n
}

// startNode starts the node's process. It is reached as soon as it listens,
// which it does when its Redis is there.
func (f *fleet) startNode(t *testing.T, n *node) {
	t.Helper()
	n.process = start(t, f.dir, fmt.Sprintf("node-%d.%d", n.number, n.starts), []string{
		"PINBOARD_PASSPORT=" + passportDocument, "FAULTS_TOKEN=" + f.token, "FAULTS_CLOCK=" + n.clock.path,
		"REDIS_URL=" + f.url(n), "PORT=0",
		"PINBOARD_TRUSTED_PROXIES=127.0.0.0/8",
		"PINBOARD_LEASE_TTL_MS=" + strconv.FormatInt(f.lease.Milliseconds(), 10),
	}, nil, n.listens, pinboardBinary)
	n.starts++
	n.running.Store(int64(n.pid()))
}

// listens notes where the node's process listens, once it has printed that.
func (n *node) listens(o *output) {
	addr, ok := o.between(`"addr":"`, `"`)
	if !ok || !n.down.Load() {
		return
	}
	n.addr.Store("127.0.0.1" + addr[strings.LastIndexByte(addr, ':'):])
	if n.gate.Plug() == nil { // else clients do not reach it, which a run does not outlive
		n.down.Store(false)
	}
}

// killNode ends the node's process at once.
func (n *node) killNode() {
	n.kill()
	n.down.Store(true)
	n.gate.Unplug()
}

func (f *fleet) newSlot(t *testing.T, number int) *slot {
	t.Helper()
	s := &slot{number: number, clock: newWallClock(t, f.dir, fmt.Sprintf("worker-%d", number))}
	s.addr.Store("")
	s.gate = f.newGate(t, func(peer *net.TCPAddr) (*faults.Link, string) {
		pids := make([]int, nodeCount)
		for i, n := range f.nodes {
			pids[i] = int(n.running.Load())
		}
		pid, ok := faults.Owner(peer, s.gate.Addr(), pids)
		for i := range pids {
			if ok && pids[i] == pid {
				return &s.from[i], s.addr.Load().(string)
			}
		}
		return nil, ""
	})
	// As a deployment's balancer does: to the next node that accepts.
	s.out = f.newGate(t, func(*net.TCPAddr) (*faults.Link, string) {
		for range nodeCount {
			i := int(s.turn.Add(1)) % nodeCount
			if n := f.nodes[i]; !n.down.Load() {
				return &s.to[i], n.addr.Load().(string)
			}
		}
		return nil, ""
	})
	return s
}

// startWorker starts a process in the slot; the one that was there, if it still
// runs, is not reached any more.
func (f *fleet) startWorker(t *testing.T, s *slot) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	file, err := listener.(*net.TCPListener).File()
	require.NoError(t, err)
	defer func() { _, _ = file.Close(), listener.Close() }()
	name := fmt.Sprintf("worker-%d.%d", s.number, s.starts)
	s.starts++
	env := []string{
		"APP_PROCESS=" + name, "APP_JOURNAL=" + filepath.Join(f.dir, name+".journal"),
		"APP_NAMESPACES=" + strings.Join(f.namespaces, ","), "FAULTS_CLOCK=" + s.clock.path,
		"APP_PINBOARD_URL=http://" + s.out.Addr(), "APP_TOKEN=" + f.token, "APP_ADVERTISE_URL=http://" + s.gate.Addr(),
		// Not all at one beat, else they would all come back from a flush at once.
		"APP_HEARTBEAT=" + inSeconds(f.beat-time.Duration(s.number)*f.beat/20), "APP_BUFFER=" + inSeconds(buffer), "APP_LEASE=" + inSeconds(f.lease),
		"APP_IDLE=" + inSeconds(f.idle), "APP_DRAIN=" + inSeconds(drain), "APP_TICK=" + inSeconds(tick),
	}
	if s.lawless {
		env = append(env, "APP_LAWLESS=1")
	}
	if s.process != nil && !s.endsWithin(0) {
		f.retired = append(f.retired, s.process)
	}
	if s.number >= pythonFrom && pythonBinary != "" && !s.lawless {
		f.mu.Lock()
		f.unguarded[name] = true
		f.mu.Unlock()
		s.process = start(t, f.dir, name, env, []*os.File{file}, nil, pythonBinary, filepath.Join("testdata", "worker.py"))
	} else {
		s.process = start(t, f.dir, name, env, []*os.File{file}, nil, goworkerBinary)
	}
	s.addr.Store(listener.Addr().String())
	require.NoError(t, s.gate.Plug())
}

// killWorker ends the slot's process at once.
func (s *slot) killWorker() {
	s.gate.Unplug()
	s.kill()
}

func inSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// listedWorker is a live worker as operators see it.
type listedWorker struct{ ClientID, SessionID, AdvertiseURL string }

// listed returns the live workers as the first node that answers sees them.
func (f *fleet) listed() []listedWorker {
	for _, n := range f.nodes {
		var list struct{ Workers []listedWorker }
		if !n.down.Load() && f.operate(n, http.MethodGet, "workers", nil, &list) == nil {
			return list.Workers
		}
	}
	return nil
}

// worker returns the slot's worker, if it is live.
func (f *fleet) worker(s *slot) (listedWorker, bool) {
	for _, w := range f.listed() {
		if w.AdvertiseURL == "http://"+s.gate.Addr() {
			return w, true
		}
	}
	return listedWorker{}, false
}

// operate makes an operator's call.
func (f *fleet) operate(n *node, method, call string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://"+n.addr.Load().(string)+"/registry/"+call, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+f.token)
	res, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", method, call, res.StatusCode, answer)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(answer, into)
	}
	return err
}

// stop ends everything that writes to the record.
func (f *fleet) stop() {
	for _, s := range f.workers {
		s.kill()
	}
	for _, p := range f.retired {
		p.kill()
	}
	for _, n := range f.nodes {
		n.kill()
	}
}

// history reads the record of a fleet that has stopped.
func (f *fleet) history(t *testing.T, acks []faults.Ack) faults.History {
	t.Helper()
	journals, err := filepath.Glob(filepath.Join(f.dir, "*.journal"))
	require.NoError(t, err)
	h := faults.History{Acks: acks, Unguarded: f.unguarded}
	for _, path := range journals {
		events, err := faults.ReadJournal(path)
		require.NoError(t, err)
		h.Events = append(h.Events, events...)
	}
	return h
}
