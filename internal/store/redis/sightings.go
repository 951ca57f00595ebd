package redis

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// sighting is a row as it was seen in the client's cache. It is not changed, but for
// used.
type sighting struct {
	line  *line
	id    string
	row   store.Known    // without the generation
	count *atomic.Uint64 // of the row's key
	was   uint64         // that count, before the row was looked at
	used  atomic.Bool    // since another one wanted its place
}

func (s *sighting) of(binding, id string) bool { return s.id == id && s.line.binding == binding }

// good reports whether nothing was heard of the row's key since.
func (s *sighting) good() bool { return s.count.Load() == s.was }

// sightings remember rows of a client that is heard; those of any other remember
// nothing. Whoever finds a row here has what the client's cache would have said, for a
// look at one place in memory and not at ten.
type sightings struct {
	heard  *heard // nil: nothing is remembered
	places []atomic.Pointer[sighting]
}

// maxSightings bounds how many rows are remembered; one takes some 200 bytes.
const maxSightings = 1 << 15

// sightingKept is for how long a row is remembered that does not change. It is little of rowKept,
// which bounds how long something could be believed that nobody tells of.
const sightingKept = time.Minute

func newSightings(h *heard) sightings {
	if h == nil {
		return sightings{}
	}
	return sightings{heard: h, places: make([]atomic.Pointer[sighting], maxSightings)}
}

func (s *sightings) place(binding, id string) *atomic.Pointer[sighting] {
	hash := maphash.String(seed, id) + maphash.String(seed, binding)
	return &s.places[hash%uint64(len(s.places))]
}

// recall returns what is known of an id, if both its row and the generation of its
// bucket were seen, the latter just now.
func (s *sightings) recall(binding, id string) (known store.Known, ok bool) {
	if s.heard == nil {
		return known, false
	}
	one := s.place(binding, id).Load()
	if one == nil || !one.of(binding, id) {
		return known, false
	}
	seen := one.line.recent() // first, as in knownBy: see glimpsed
	if seen == nil || !one.good() || seen.asOf.Sub(one.row.AsOf) > sightingKept {
		return known, false
	}
	if !one.used.Load() {
		one.used.Store(true)
	}
	known = one.row
	known.Generation, known.AsOf = seen.generation, seen.asOf
	return known, true
}

// count returns the count of a row's key and what it is; nil where nothing is
// remembered.
func (s *sightings) count(key string) (count *atomic.Uint64, now uint64) {
	if s.heard == nil {
		return nil, 0
	}
	count = s.heard.of(key)
	return count, count.Load()
}

// note remembers a row that was looked at when its count, of before, was was.
func (s *sightings) note(l *line, id string, row store.Known, count *atomic.Uint64, was uint64) {
	if count == nil {
		return
	}
	place := s.place(l.binding, id)
	if had := place.Load(); had != nil && had.good() {
		switch same := had.of(l.binding, id); {
		case same && had.line == l && row.AsOf.Sub(had.row.AsOf) < sightingKept/2:
			return
		case !same && had.used.Swap(false):
			return // it was here first, and is asked for as well
		}
	}
	row.Generation = ""
	place.Store(&sighting{line: l, id: strings.Clone(id), row: row, count: count, was: was})
}
