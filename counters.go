package pinboard

import "sync/atomic"

// counters are what this node has done since it was made (protocol §4,
// GET /registry/health). Metrics read them, and count none of it again. The zero
// counters are ready.
type counters struct {
	// resolves counts look-ups of an id's owner; cacheHits those of them that
	// were answered from this node's memory, and outages those of these that were
	// because the store did not answer. resolved counts the others once they have
	// ended.
	resolves, cacheHits, outages atomic.Int64
	resolved                     tally[found]
	// placed counts ids that look-ups of this node had placed.
	placed tally[cause]
	// proxying is the number of requests and tunnels open to workers now.
	proxying tally[requestKind]
	// retries counts requests that were sent to a second worker because the
	// first one refused the id, by what it said.
	retries tally[marker]
	// held is the number of requests that wait for their id now, holds how
	// many ever did, and holdsGivenUp those of them that waited in vain.
	held, holds, holdsGivenUp atomic.Int64
	// limits counts how often each of Limits was reached.
	limits tally[limitName]
}

// turnedAway is how many requests were one too many for Limits.
func (c *counters) turnedAway() int64 {
	return c.limits.get(limitRequests) + c.limits.get(limitAddress) + c.limits.get(limitID)
}

// tally counts by kind. The zero tally is ready.
type tally[K ~uint8] struct{ of [maxKinds]atomic.Int64 }

// maxKinds is more than any of the kinds below has.
const maxKinds = 24

func (t *tally[K]) add(kind K, n int64) { t.of[kind].Add(n) }
func (t *tally[K]) get(kind K) int64    { return t.of[kind].Load() }

// Load returns the sum of all kinds.
func (t *tally[K]) Load() (sum int64) {
	for i := range t.of {
		sum += t.of[i].Load()
	}
	return sum
}
