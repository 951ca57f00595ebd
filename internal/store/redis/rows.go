package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// batch is how many rows or records one script handles at most: some tenths of a
// millisecond of Redis' time, and a few milliseconds on a machine that has other
// things to do.
const batch = 100

// found is a row as lookup.lua tells it; the zero value stands for none.
type found struct {
	epoch              int64
	sid, clientID, why string
}

// lookupAll looks rows up, in order, those of one bucket together. Where a Ref
// names a namespace it means the binding.
func (d *directory) lookupAll(ctx context.Context, refs []wire.Ref) ([]found, error) {
	groups := d.group(len(refs), func(i int) bucketKeys { return d.keys.of(refs[i].Namespace, refs[i].ID) })
	calls := make([]call, len(groups))
	for i, g := range groups {
		args := []any{string(g.bucket)}
		for _, n := range g.items {
			args = append(args, refs[n].ID, d.keys.leaf(refs[n].ID))
		}
		calls[i] = lookupScript.with([]string{g.bucket.leaves(), g.bucket.none()}, args...)
	}
	rows := make([]found, len(refs))
	answers := d.runAll(ctx, calls)
	for i, a := range answers {
		for _, n := range groups[i].items {
			if one := a.list(); one.more() {
				rows[n] = found{epoch: one.int(), sid: one.text(), clientID: one.text(), why: one.text()}
				a.fail(one.err)
			}
		}
	}
	return rows, firstError(answers)
}

// group is some items, by number, that belong to one bucket.
type group struct {
	bucket bucketKeys
	items  []int
}

// group sorts n items by bucket, in groups of at most batch.
func (d *directory) group(n int, bucket func(i int) bucketKeys) []group {
	var groups []group
	last := map[bucketKeys]int{} // the group that is being filled
	for i := range n {
		b := bucket(i)
		g, ok := last[b]
		if !ok || len(groups[g].items) == batch {
			g = len(groups)
			last[b] = g
			groups = append(groups, group{bucket: b})
		}
		groups[g].items = append(groups[g].items, i)
	}
	return groups
}

// Lookup returns a row whose owner is live.
func (d *directory) Lookup(ctx context.Context, binding, id string) (store.Row, error) {
	if err := d.agree(ctx); err != nil {
		return store.Row{}, err
	}
	rows, err := d.lookupAll(ctx, []wire.Ref{{Namespace: binding, ID: id}})
	switch {
	case err != nil:
		return store.Row{}, err
	case rows[0].sid == "":
		return store.Row{}, store.ErrNotPlaced
	}
	return rows[0].row(binding, id), nil
}

// row tells the placing time by the epoch, which follows the clock.
func (f found) row(binding, id string) store.Row {
	hostname, namespace := store.Unbind(binding)
	return store.Row{
		Hostname: hostname, Namespace: namespace, ID: id, SessionID: f.sid, ClientID: f.clientID,
		Epoch: f.epoch, PlacedAt: time.UnixMicro(f.epoch).Truncate(time.Millisecond),
		Why: store.ParseWhy(f.why),
	}
}

// Release frees rows, those of one bucket together.
func (d *directory) Release(ctx context.Context, releases []wire.Release) (int, error) {
	if err := d.agree(ctx); err != nil {
		return 0, err
	}
	groups := d.group(len(releases), func(i int) bucketKeys { return d.keys.of(releases[i].Namespace, releases[i].ID) })
	calls := make([]call, len(groups))
	for i, g := range groups {
		args := []any{string(g.bucket)}
		for _, n := range g.items {
			r := releases[n]
			args = append(args, r.SessionID, r.Epoch, r.ID, d.keys.leaf(r.ID))
		}
		calls[i] = releaseScript.with([]string{g.bucket.leaves(), g.bucket.none()}, args...)
	}
	freed := 0
	for _, some := range inParts(calls) {
		answers := d.runBulk(ctx, some)
		for _, a := range answers {
			freed += int(a.int())
		}
		if err := firstError(answers); err != nil {
			return freed, err
		}
	}
	return freed, nil
}

// maxBulk is how many parts of long work one node has under way: however many
// workers come back at once, Redis gets to others in between.
const maxBulk = 2

// runBulk runs one part of long work when it is its turn.
func (d *directory) runBulk(ctx context.Context, calls []call) []*answer {
	select {
	case d.bulk <- struct{}{}:
		defer func() { <-d.bulk }()
		return d.runAll(ctx, calls)
	case <-ctx.Done():
		return allFailed(calls, ctx.Err())
	}
}

// inParts splits long work, so that other calls on the same connection do not
// wait for all of it.
func inParts(calls []call) [][]call { return slices.Collect(slices.Chunk(calls, 8)) }

// position is where a walk over the rows of a binding has come to: behind an
// id in a leaf, or at the beginning of a leaf.
type position struct {
	shard, leaf int
	after       string
}

func (p position) cursor() string { return fmt.Sprintf("%d.%d.%s", p.shard, p.leaf, p.after) }

func (d *directory) position(cursor string) (position, error) {
	if cursor == "" {
		return position{}, nil
	}
	parts := strings.SplitN(cursor, ".", 3)
	if len(parts) != 3 {
		return position{}, store.ErrBadCursor
	}
	shard, err1 := strconv.Atoi(parts[0])
	leaf, err2 := strconv.Atoi(parts[1])
	p := position{shard: shard, leaf: leaf, after: parts[2]}
	switch {
	case err1 != nil, err2 != nil, shard < 0, shard >= d.keys.shards, leaf < 0, leaf >= d.keys.leaves(),
		p.after != "" && wire.CheckID(p.after) != nil:
		return position{}, store.ErrBadCursor
	}
	return p, nil
}

const (
	// maxWalk bounds the rows that one call looks at in a bucket, and
	maxWalk = 250
	// maxShards the buckets that one page asks.
	maxShards = 32
)

// Rows walks leaf by leaf, and within a leaf in the order of the ids.
func (d *directory) Rows(ctx context.Context, binding, cursor string, limit int, only ...store.RowFilter) (rows []store.Row, next string, err error) {
	if err := d.agree(ctx); err != nil {
		return nil, "", err
	}
	p, err := d.position(cursor)
	if err != nil {
		return nil, "", err
	}
	var filter store.RowFilter
	for _, f := range only {
		filter.ClientID, filter.Prefix = cmp.Or(f.ClientID, filter.ClientID), cmp.Or(f.Prefix, filter.Prefix)
	}
	for range maxShards {
		some, at, err := d.page(ctx, binding, p, max(1, limit-len(rows)), filter)
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, some...)
		if at.shard == d.keys.shards {
			return rows, "", nil
		}
		p = at
		if len(rows) >= limit || at.leaf > 0 {
			break
		}
	}
	return rows, p.cursor(), nil
}

// page returns at most limit rows of one bucket from p on, and where the next
// page begins, which may be in the next bucket.
func (d *directory) page(ctx context.Context, binding string, p position, limit int, filter store.RowFilter) ([]store.Row, position, error) {
	bucket := d.keys.bucket(binding, p.shard)
	a := d.run(ctx, rowsScript.with([]string{bucket.leaves()}, string(bucket), p.leaf, limit, maxWalk, filter.ClientID, filter.Prefix))
	next := position{shard: p.shard, leaf: int(a.int())}
	if next.leaf < 0 {
		next = position{shard: p.shard + 1}
	}
	type placed struct {
		leaf int
		store.Row
	}
	var all []placed
	for a.more() {
		leaf, id := int(a.int()), a.text()
		row := found{epoch: a.int(), sid: a.text(), clientID: a.text(), why: a.text()}.row(binding, id)
		if leaf > p.leaf || id > p.after {
			all = append(all, placed{leaf: leaf, Row: row})
		}
	}
	if a.err != nil {
		return nil, position{}, a.err
	}
	slices.SortFunc(all, func(a, b placed) int { return cmp.Or(cmp.Compare(a.leaf, b.leaf), cmp.Compare(a.ID, b.ID)) })
	if len(all) > limit {
		all = all[:limit]
		next = position{shard: p.shard, leaf: all[limit-1].leaf, after: all[limit-1].ID}
	}
	rows := make([]store.Row, len(all))
	for i, one := range all {
		rows[i] = one.Row
	}
	return rows, next, nil
}
