package e2e_test

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

const (
	// lease is short, because tests wait for leases to end, but long enough
	// for a worker to keep it on a busy machine: six heartbeats.
	lease     = 3 * time.Second
	heartbeat = 500 * time.Millisecond
	buffer    = time.Second

	memory = "memory"
	redis  = "redis"
)

const passportDocument = `{
 "providers": [{"type": "staticToken", "id": "keys", "keys": [
   {"name": "fleet", "token": {"env": "E2E_FLEET_TOKEN"}, "scopes": ["pinboard:worker"],
    "claims": {"pinboard": {"namespaces": ["*"], "allowedBackendHosts": ["127.0.0.1"]}}},
   {"name": "operator", "token": {"env": "E2E_OPERATOR_TOKEN"}, "scopes": ["pinboard:operator"],
    "claims": {"pinboard": {"namespaces": ["*"]}}},
   {"name": "ada", "token": {"env": "E2E_ADA_TOKEN"}, "scopes": ["chat", "write"],
    "claims": {"team": "blue", "limits": {"rooms": 3}}}]}],
 "namespaces": {"/rooms": {"allow": "anonymous"}, "/kept": {"allow": "anonymous"},
                "/members": {"allow": "authenticated", "scopes": ["chat"]}}}`

// fleet is a deployment of its own: a store, pinboard nodes and workers.
type fleet struct {
	store    string
	settings []string // more variables of the nodes
	redisURL string
	redis    *redistest.Server // nil on memory

	fleetToken, operatorToken, adaToken string

	// front is where workers and clients reach pinboard when its nodes come
	// and go; nil while the first node's own address does.
	front   *balancer
	nodes   []*node
	workers []*worker
	client  *caller
}

// node is a running cmd/pinboard.
type node struct {
	*process
	url string
}

// newFleet returns a fleet with one node and no worker.
func newFleet(t *testing.T, store string) *fleet {
	t.Helper()
	f := emptyFleet(t, store)
	f.startNode(t)
	return f
}

// newFrontedFleet returns a fleet with so many nodes behind one address.
func newFrontedFleet(t *testing.T, store string, nodes int) *fleet {
	t.Helper()
	f := emptyFleet(t, store)
	f.front = newBalancer(t)
	for range nodes {
		f.startNode(t)
	}
	return f
}

func emptyFleet(t *testing.T, store string) *fleet {
	t.Helper()
	f := &fleet{
		store: store, redisURL: "memory:", client: &caller{http.Client{Transport: &http.Transport{DisableCompression: true}}},
		fleetToken: "fleet-" + rand.Text(), operatorToken: "operator-" + rand.Text(), adaToken: "ada-" + rand.Text(),
	}
	if store == redis {
		f.redis = redistest.New(t, redistest.Options{TCP: true})
		f.redisURL = "redis://" + f.redis.Addr()
	}
	t.Cleanup(f.client.CloseIdleConnections)
	t.Cleanup(func() { f.checkOutputs(t) })
	return f
}

// startNode starts a pinboard and waits until it listens. When the test ends it
// must stop as it should.
func (f *fleet) startNode(t *testing.T) *node {
	t.Helper()
	n := &node{process: start(t, fmt.Sprintf("pinboard-%d", len(f.nodes)), append([]string{
		"PINBOARD_PASSPORT=" + passportDocument,
		"E2E_FLEET_TOKEN=" + f.fleetToken, "E2E_OPERATOR_TOKEN=" + f.operatorToken, "E2E_ADA_TOKEN=" + f.adaToken,
		"REDIS_URL=" + f.redisURL,
		"PORT=0",
		"PINBOARD_LEASE_TTL_MS=" + strconv.FormatInt(lease.Milliseconds(), 10),
	}, f.settings...), pinboardBinary)}
	addr := n.await(t, "listening", func(r record) bool { return r.Msg == "listening" }).Addr
	n.url = "http://127.0.0.1" + addr[strings.LastIndexByte(addr, ':'):]
	f.nodes = append(f.nodes, n)
	if f.front != nil {
		f.front.add(strings.TrimPrefix(n.url, "http://"))
	}
	t.Cleanup(func() {
		if !n.ended() {
			n.stop(t)
		}
	})
	return n
}

// stop ends the node with SIGTERM.
func (n *node) stop(t *testing.T) {
	t.Helper()
	n.signal(t, syscall.SIGTERM)
	require.Zero(t, n.awaitEnd(t), "exit status of %s after SIGTERM", n.name)
}

// url is where workers and clients reach pinboard.
func (f *fleet) url() string {
	if f.front != nil {
		return f.front.url
	}
	return f.nodes[0].url
}

// flushRedis empties the fleet's Redis.
func (f *fleet) flushRedis(t *testing.T) {
	t.Helper()
	option, err := rueidis.ParseURL(f.redisURL)
	require.NoError(t, err)
	option.DisableCache, option.ForceSingleClient = true, true
	client, err := rueidis.NewClient(option)
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.Do(t.Context(), client.B().Flushall().Build()).Error())
}

// Texts that no program may print: what they speak of is a fault of pinboard's.
var faults = []string{
	"DATA RACE", "panic:", "fatal error:",
	// What the Python client logs about an answer that breaks the contract.
	"malformed register response", "malformed heartbeat ack", "malformed drainDeadline", "malformed duplicate",
	"malformed register ack duplicates", "malformed control message", "control message failed", "registration task crashed",
}

// attestationHead starts every attestation.
const attestationHead = "eyJhbGciOiJIUzI1NiIsInR5cCI6InBpbmJvYXJkK2p3dCJ9"

// checkOutputs looks for secrets and faults in all that was printed.
func (f *fleet) checkOutputs(t *testing.T) {
	secrets := []string{f.fleetToken, f.operatorToken, f.adaToken, attestationHead}
	processes := make([]*process, 0, len(f.nodes)+len(f.workers))
	for _, n := range f.nodes {
		processes = append(processes, n.process)
	}
	for _, w := range f.workers {
		processes = append(processes, w.process)
		if w.secret != "" {
			secrets = append(secrets, w.secret)
		}
	}
	for _, p := range processes {
		text := p.text()
		for i, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s printed secret number %d of the fleet", p.name, i)
			}
		}
		for _, fault := range faults {
			if strings.Contains(text, fault) {
				t.Errorf("%s printed %q", p.name, fault)
			}
		}
	}
}

// pythons bounds how many Python processes run at once.
var pythons = semaphore.NewWeighted(4)
