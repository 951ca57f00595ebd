package memory

import (
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// place names a bucket.
type place struct {
	binding string
	shard   int
}

// bucket holds the rows of one (binding, shard), and who may get more. It is
// made by the first registration that serves it and then stays for long: it
// remembers that it has placed.
type bucket struct {
	binding string
	rows    map[string]*row
	slots   slots
	members map[string]*member // live sessions that serve the bucket, by id
	// candidates are the members that may take placements, sorted by
	// store.Compare; version counts how often one came or went.
	candidates []store.Candidate
	version    int64
	lastEpoch  int64
	// openAt is when the quarantine is over; zero before the first placement
	// attempt.
	openAt time.Time
	// generation counts what Known tells by store.Known.Generation.
	generation int64
	// vacatedAt is when the last session that ended here did.
	vacatedAt time.Time
}

// member is a session in a bucket, with the bucket's own figure of what is
// left of its headroom.
type member struct {
	session   *session
	bucket    *bucket
	headroom  float64
	candidate bool
	rows      int
}

// newBucket returns a bucket whose generation is not one of a bucket before it
// that was forgotten: it follows the clock. Its epochs are above floor.
func newBucket(binding string, floor int64, now time.Time) *bucket {
	return &bucket{
		binding: binding, rows: map[string]*row{}, members: map[string]*member{},
		lastEpoch: floor, generation: now.UnixMicro(),
	}
}

// turn gives the bucket another generation.
func (b *bucket) turn(now time.Time) { b.generation = max(b.generation+1, now.UnixMicro()) }

// bucket returns the bucket of an id, or nil if nobody ever served it.
func (n *node) bucket(binding, id string) *bucket {
	return n.buckets[place{binding: binding, shard: store.Shard(id, n.cfg.Shards)}]
}

func (b *bucket) admit(s *session) *member {
	m := &member{session: s, bucket: b, headroom: s.reported}
	b.members[s.id] = m
	return m
}

// fit makes the member a candidate, or no longer one.
func (b *bucket) fit(m *member) {
	takes := m.session.takes()
	if takes == m.candidate {
		return
	}
	if takes {
		b.insert(m)
	} else {
		b.remove(m)
	}
	m.candidate = takes
	b.version++
}

// setHeadroom changes what is left of the member's headroom, which keeps the
// version.
func (m *member) setHeadroom(h float64) {
	if m.candidate {
		m.bucket.remove(m)
		defer m.bucket.insert(m)
	}
	m.headroom = h
}

func (m *member) asCandidate() store.Candidate {
	return store.Candidate{SessionID: m.session.id, ClientID: m.session.client.id, Headroom: m.headroom}
}

func (b *bucket) insert(m *member) {
	c := m.asCandidate()
	i, _ := slices.BinarySearchFunc(b.candidates, c, store.Compare)
	b.candidates = slices.Insert(b.candidates, i, c)
}

func (b *bucket) remove(m *member) {
	if i, found := slices.BinarySearchFunc(b.candidates, m.asCandidate(), store.Compare); found {
		b.candidates = slices.Delete(b.candidates, i, i+1)
	}
}

// mint returns a placement epoch above all before it, and, as it follows the
// clock, above those from before the store lost its memory.
func (b *bucket) mint(now time.Time) int64 {
	b.lastEpoch = max(b.lastEpoch+1, now.UnixMicro())
	return b.lastEpoch
}

// bound returns for how long the binding keeps requests from the one without a
// host name: as long as a session lives, and one lease more.
func (b *bucket) bound(now time.Time, lease time.Duration) time.Duration {
	switch {
	case b == nil:
		return 0
	case len(b.members) > 0:
		return lease
	}
	return max(0, b.vacatedAt.Add(lease).Sub(now))
}

// quarantine returns what is left of the bucket's quarantine, which begins
// with the first placement attempt and lasts one lease (protocol §8).
func (b *bucket) quarantine(now time.Time, lease time.Duration) time.Duration {
	if b.openAt.IsZero() {
		b.openAt = now.Add(lease)
	}
	return max(0, b.openAt.Sub(now))
}
