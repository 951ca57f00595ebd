package memory

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pinboard-go/pinboard/internal/store"
)

// slots gives each row of a bucket a place that it keeps as long as it exists,
// so that a walk needs no more memory than the place it has come to.
type slots struct {
	rows   []*row // nil where free
	vacant []int
}

func (s *slots) put(r *row) (slot int) {
	if last := len(s.vacant) - 1; last >= 0 {
		slot, s.vacant = s.vacant[last], s.vacant[:last]
		s.rows[slot] = r
		return slot
	}
	s.rows = append(s.rows, r)
	return len(s.rows) - 1
}

func (s *slots) free(slot int) {
	s.rows[slot] = nil
	s.vacant = append(s.vacant, slot)
}

// maxWalk bounds the slots that one page looks at.
const maxWalk = 10_000

func (n *node) Rows(ctx context.Context, binding, cursor string, limit int, only ...store.RowFilter) (rows []store.Row, next string, err error) {
	at, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	if _, err := n.enter(ctx); err != nil {
		return nil, "", err
	}
	defer n.leave()
	if at.shard >= n.cfg.Shards {
		return nil, "", store.ErrBadCursor
	}
	for walked := 0; at.shard < n.cfg.Shards; at.shard, at.slot = at.shard+1, 0 {
		b := n.buckets[place{binding: binding, shard: at.shard}]
		if b == nil {
			continue
		}
		for ; at.slot < len(b.slots.rows); at.slot++ {
			if len(rows) >= limit || walked == maxWalk {
				return rows, at.cursor(), nil
			}
			walked++
			if r := b.slots.rows[at.slot]; r.alive() && passes(r.seen(), only) {
				rows = append(rows, r.seen())
			}
		}
	}
	return rows, "", nil
}

func passes(r store.Row, only []store.RowFilter) bool {
	return !slices.ContainsFunc(only, func(f store.RowFilter) bool { return !f.Passes(r) })
}

// position is where a walk has come to: the next slot to look at.
type position struct{ shard, slot int }

func (p position) cursor() string { return fmt.Sprintf("%d.%d", p.shard, p.slot) }

func parseCursor(cursor string) (position, error) {
	if cursor == "" {
		return position{}, nil
	}
	shard, slot, _ := strings.Cut(cursor, ".")
	var p position
	var err, err2 error
	p.shard, err = strconv.Atoi(shard)
	p.slot, err2 = strconv.Atoi(slot)
	// Only what cursor writes is a cursor: no signs, no leading zeroes.
	if err != nil || err2 != nil || p.shard < 0 || p.slot < 0 || p.cursor() != cursor {
		return position{}, store.ErrBadCursor
	}
	return p, nil
}
