package pinboard

import "sync/atomic"

// counters are what this node has done since it was made (protocol §4,
// GET /registry/health). The zero counters are ready.
type counters struct {
	// resolves counts look-ups of an id's owner; cacheHits those of them that
	// were answered from this node's memory.
	resolves, cacheHits atomic.Int64
	// proxying is the number of requests and tunnels open to workers now.
	proxying atomic.Int64
	// retries counts requests that were sent to a second worker because the
	// first one refused the id.
	retries atomic.Int64
	// held is the number of requests that wait for their id now, holds how
	// many ever did, and holdsGivenUp those of them that waited in vain.
	held, holds, holdsGivenUp atomic.Int64
	// turnedAway counts requests that were one too many for Limits.
	turnedAway atomic.Int64
}
