// Package memory keeps a directory in the memory of one process: for
// development, for tests, and for services that run on one machine. It does
// what the Redis store does, and forgets everything when the process ends.
//
// One mutex guards a directory. Nothing under it is linear in the number of
// rows: a session's rows hang off the session, so that its end turns all of
// them into dead rows at once, and Sweep takes those away in bounded steps.
// The exception is Register, which is linear in the ids that it takes over.
//
// There are no goroutines. Whoever takes the lock first drops the sessions
// whose lease has lapsed; behind the lock every recorded session is live.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// Backend holds directories, by prefix.
type Backend struct {
	mu          sync.Mutex
	directories map[string]*directory
}

// New returns a backend without any memory.
func New() *Backend { return &Backend{directories: map[string]*directory{}} }

// Open returns the directory for cfg. All that were opened with one prefix are
// the same; the lease time is that of the handle that is called, and so is the number of
// shards, which is that of all live sessions.
func (b *Backend) Open(cfg store.Config) store.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.directories[cfg.Prefix]
	if d == nil {
		d = &directory{
			sessions:   map[string]*session{},
			urls:       map[string]*session{},
			clients:    map[string]*client{},
			buckets:    map[place]*bucket{},
			superseded: map[string]*store.Superseded{},
		}
		b.directories[cfg.Prefix] = d
	}
	return &node{directory: d, cfg: cfg}
}

// directory is what all nodes with one prefix share.
type directory struct {
	mu       sync.Mutex
	sessions map[string]*session // the live ones, by id
	urls     map[string]*session // the live one that last took each advertise URL
	clients  map[string]*client
	buckets  map[place]*bucket
	// floor is no lower than any epoch of a bucket that was forgotten.
	floor int64
	// nextLapse is no later than the end of any lease; zero without leases.
	nextLapse time.Time
	shards    int // of those with which the live sessions are registered
	// superseded says of each displaced session who did it, and outlives its
	// lease; passing are the same, about in order of time.
	superseded map[string]*store.Superseded
	passing    []passing
	events     eventLog

	sweeping   sync.Mutex // held by the one Sweep at work
	dead       []*session // ended sessions that left rows
	forgetting []leaving  // clients to forget, about in order of time
}

// node is one node's handle on a directory.
type node struct {
	*directory
	cfg store.Config
}

// enter locks the directory until leave is called, and drops what has lapsed.
// Without an error every recorded session is live at the time returned, and registered
// with as many shards as the node has.
func (n *node) enter(ctx context.Context) (now time.Time, err error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	n.mu.Lock()
	now = time.Now()
	n.lapse(now)
	if n.shards != n.cfg.Shards {
		if len(n.sessions) > 0 {
			n.leave()
			return time.Time{}, &store.Unequal{Setting: store.ShardsSetting, Here: n.cfg.Shards, There: n.shards}
		}
		n.shards = n.cfg.Shards
	}
	return now, nil
}

func (n *node) leave() { n.mu.Unlock() }

// Ping finds out whether this node may use the directory: memory always answers.
func (n *node) Ping(ctx context.Context) error {
	if _, err := n.enter(ctx); err != nil {
		return err
	}
	n.leave()
	return nil
}
