//go:build linux

package faults_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
	"github.com/pinboard-go/pinboard/internal/redistest"
)

// member is a redis-server of several, behind a gate. The gate's address is the
// one that it announces, so that all others, its replica too, come by it.
type member struct {
	*redistest.Server
	gate    *faults.Gate
	control rueidis.Client // around the gate

	nodes  faults.Link // pinboard's to it
	copies faults.Link // of the other members to it
	watch  faults.Link // of all others, Sentinels for example
}

// members are the servers of one store.
type members []*member

// add starts a server. arguments are made of its gate's port.
func (all *members) add(t *testing.T, f *fleet, arguments func(port string) []string) *member {
	t.Helper()
	m := &member{}
	m.gate = f.newGate(t, func(peer *net.TCPAddr) (*faults.Link, string) { return all.link(f, m, peer), m.Addr() })
	_, port, err := net.SplitHostPort(m.gate.Addr())
	require.NoError(t, err)
	m.Server = redistest.New(t, redistest.Options{TCP: true, Args: append([]string{
		"--repl-diskless-sync-delay", "0", "--repl-timeout", "2", "--repl-ping-replica-period", "1",
	}, arguments(port)...)})
	m.control = around(t, m.Server)
	f.mu.Lock() // the gates of earlier ones are in use
	defer f.mu.Unlock()
	*all = append(*all, m)
	return m
}

// link is the way to a member of who dials it.
func (all *members) link(f *fleet, m *member, peer *net.TCPAddr) *faults.Link {
	var servers, nodes []int
	f.mu.Lock()
	for _, other := range *all {
		servers = append(servers, other.Pid())
	}
	for _, n := range f.nodes {
		nodes = append(nodes, int(n.running.Load()))
	}
	f.mu.Unlock()
	if _, ok := faults.Owner(peer, m.gate.Addr(), servers); ok {
		return &m.copies
	}
	if _, ok := faults.Owner(peer, m.gate.Addr(), nodes); ok {
		return &m.nodes
	}
	return &m.watch
}

// ask has the server answer a command.
func (m *member) ask(words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return m.control.Do(ctx, m.control.B().Arbitrary(words...).Build()).ToString()
}

func (m *member) command(t *testing.T, words ...string) string {
	t.Helper()
	answer, err := m.ask(words...)
	require.NoError(t, err, "%v", words)
	return answer
}

// master reports whether the server takes itself for a master.
func (m *member) master() bool {
	answer, err := m.ask("INFO", "replication")
	return err == nil && strings.Contains(answer, "role:master")
}

// awaitCopy waits until the replica hears all that is written to the master.
// What was written during the first copy is handed on only after it.
func awaitCopy(t *testing.T, master, replica *member) {
	t.Helper()
	await(t, "the replica hears what is written", func() bool {
		heard, err := replica.ask("INFO", "replication")
		told, errMaster := master.ask("INFO", "replication")
		return err == nil && errMaster == nil &&
			strings.Contains(heard, "master_link_status:up") && strings.Contains(told, "state=online")
	})
}

// sentinels are what a fleet has with a Sentinel deployment: a master, a replica,
// and three Sentinels.
type sentinels struct {
	members
	watchers []*redistest.Server
}

// downAfter is when an unreachable master counts as down. If the Sentinels do not
// agree on who is to fail over, they try again after twice the failover-timeout.
const downAfter = 500 * time.Millisecond

func (s *sentinels) start(t *testing.T, f *fleet) (url string) {
	t.Helper()
	announce := func(port string) []string {
		return []string{"--replica-announce-ip", "127.0.0.1", "--replica-announce-port", port}
	}
	master := s.add(t, f, announce)
	host, port, err := net.SplitHostPort(master.gate.Addr())
	require.NoError(t, err)
	replica := s.add(t, f, announce)
	replica.command(t, "REPLICAOF", host, port)
	awaitCopy(t, master, replica)
	var addrs []string
	for range 3 {
		watcher := redistest.New(t, redistest.Options{TCP: true, Args: []string{"--sentinel"}, Config: fmt.Sprintf(
			"sentinel monitor fleet %s %s 2\nsentinel down-after-milliseconds fleet %d\nsentinel failover-timeout fleet 1000\n",
			host, port, downAfter.Milliseconds())})
		s.watchers = append(s.watchers, watcher)
		addrs = append(addrs, watcher.Addr())
	}
	for _, watcher := range s.watchers {
		client := around(t, watcher)
		await(t, "the Sentinels know the replica and each other", func() bool {
			known, err := client.Do(t.Context(), client.B().Arbitrary("SENTINEL", "MASTER", "fleet").Build()).AsStrMap()
			return err == nil && known["num-slaves"] == "1" && known["num-other-sentinels"] == "2"
		})
	}
	return "redis://" + strings.Join(addrs, ",") + "?master_set=fleet"
}

// shards is how many masters a fleet's Redis Cluster has, each with a replica.
const shards = 3

// cluster is what a fleet has with a Redis Cluster: the masters are the first
// members, their replicas the others, in the same order.
type cluster struct{ members }

func (c *cluster) start(t *testing.T, f *fleet) (url string) {
	t.Helper()
	var addrs []string
	for range 2 * shards {
		m := c.add(t, f, func(port string) []string {
			return []string{
				"--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-replica-validity-factor", "0",
				"--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", port,
			}
		})
		addrs = append(addrs, m.gate.Addr())
	}
	const slots = 16384
	for i, m := range c.members {
		m.command(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < shards {
			m.command(t, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/shards), strconv.Itoa((i+1)*slots/shards-1))
		}
		host, port, err := net.SplitHostPort(c.members[0].gate.Addr())
		require.NoError(t, err)
		m.command(t, "CLUSTER", "MEET", host, port, c.members[0].bus(t))
	}
	for i, m := range c.members[shards:] {
		id := c.members[i].command(t, "CLUSTER", "MYID")
		await(t, "a replica knows its master", func() bool {
			_, err := m.ask("CLUSTER", "REPLICATE", id)
			return err == nil
		})
	}
	for i := range shards {
		awaitCopy(t, c.members[i], c.members[shards+i])
	}
	for _, m := range c.members {
		await(t, "a member knows the cluster", func() bool {
			info, err := m.ask("CLUSTER", "INFO")
			known, errNodes := m.ask("CLUSTER", "NODES")
			return err == nil && errNodes == nil && strings.Contains(info, "cluster_state:ok") && strings.Count(known, "slave ") == shards
		})
	}
	return "redis://" + strings.Join(addrs, ",")
}

// bus is the port by which members of a cluster talk to each other. There is no
// gate before it.
func (m *member) bus(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(m.Addr())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	return strconv.Itoa(number + 10000)
}
