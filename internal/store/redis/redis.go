package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/store"
)

// Backend opens directories in the Redis that a client is connected to.
type Backend struct{ client rueidis.Client }

// New returns a backend on the host's client, of whatever kind: standalone,
// Sentinel or Cluster. The client is used and never closed. New does no I/O.
func New(client rueidis.Client) *Backend { return &Backend{client: client} }

// Open returns the directory for cfg.
func (b *Backend) Open(cfg store.Config) store.Store {
	client, told := b.client, (*heard)(nil)
	if h, ok := client.(*hearing); ok {
		client, told = h.Client, h.heard
	}
	return &directory{
		client:    client,
		keys:      keys{prefix: cfg.Prefix, shards: cfg.Shards},
		layout:    layout(cfg.Shards),
		lease:     max(1, cfg.LeaseTTL.Milliseconds()),
		sightings: newSightings(told),
		bulk:      make(chan struct{}, maxBulk),
	}
}

// directory is one node's handle.
type directory struct {
	client    rueidis.Client
	keys      keys
	layout    string // see layout.go
	agreed    agreed
	lease     int64 // ms
	sweeps    rotation
	clocks    clocks
	lines     lines
	sightings sightings
	// gathering is of those who ask for ids.
	gathering gathering
	bulk      chan struct{} // has one for each part of long work that is under way
}

// memory is store.ClientMemory in milliseconds.
const memory = int64(store.ClientMemory / time.Millisecond)

// Ping has the node that holds the fleet's keys write something small there, if this
// node's layout is the fleet's.
func (d *directory) Ping(ctx context.Context) error {
	fleet := d.keys.fleet()
	if err := d.run(ctx, pingScript.with([]string{fleet.ping(), fleet.layout()}, "1000", d.layout)).err; err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}
