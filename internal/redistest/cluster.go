package redistest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// masters is how many nodes a cluster has, each with a third of the slots.
const masters = 3

const slotCount = 16384

// nodeTimeout is in milliseconds. A node that a test freezes, or a machine that
// pauses, must not make the others declare the cluster down.
const nodeTimeout = "600000"

// Cluster is a Redis Cluster of three masters without replicas.
type Cluster struct{ Nodes [masters]*Server }

// NewCluster starts a cluster that ends with the test.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c, err := StartCluster()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// StartCluster starts a cluster, for use in a TestMain: whoever starts it calls
// Stop.
func StartCluster() (*Cluster, error) {
	c := &Cluster{}
	for i := range c.Nodes {
		node, err := Start(Options{TCP: true, Args: []string{"--cluster-enabled", "yes", "--cluster-node-timeout", nodeTimeout}})
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.Nodes[i] = node
	}
	if err := c.form(); err != nil {
		c.Stop()
		return nil, fmt.Errorf("redistest: form a cluster: %w", err)
	}
	return c, nil
}

// form spreads the slots and waits until every node knows of it.
func (c *Cluster) form() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	var clients [masters]rueidis.Client
	for i, node := range c.Nodes {
		client, err := rueidis.NewClient(node.ClientOption())
		if err != nil {
			return err
		}
		defer client.Close()
		clients[i] = client
		slots := client.B().Arbitrary("CLUSTER", "ADDSLOTS")
		for slot := i * slotCount / masters; slot < (i+1)*slotCount/masters; slot++ {
			slots = slots.Args(strconv.Itoa(slot))
		}
		err = errors.Join(
			client.Do(ctx, client.B().ClusterSetConfigEpoch().ConfigEpoch(int64(i+1)).Build()).Error(),
			client.Do(ctx, slots.Build()).Error(),
			client.Do(ctx, client.B().ClusterMeet().Ip("127.0.0.1").Port(int64(c.Nodes[0].port)).Build()).Error(),
		)
		if err != nil {
			return err
		}
	}
	for _, client := range clients {
		for !formed(ctx, client) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	return nil
}

func formed(ctx context.Context, client rueidis.Client) bool {
	info, err := client.Do(ctx, client.B().ClusterInfo().Build()).ToString()
	return err == nil && strings.Contains(info, "cluster_state:ok") &&
		strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(masters)) &&
		strings.Contains(info, "cluster_size:"+strconv.Itoa(masters))
}

// Addrs are host and port of the nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr())
	}
	return addrs
}

// Client returns a cluster client that is closed when the test ends.
func (c *Cluster) Client(t testing.TB) rueidis.Client {
	t.Helper()
	return NewClient(t, rueidis.ClientOption{InitAddress: c.Addrs()})
}

// Stop ends all nodes. Stopping twice does nothing.
func (c *Cluster) Stop() {
	for _, node := range c.Nodes {
		if node != nil {
			node.Stop()
		}
	}
}
