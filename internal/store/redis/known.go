package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/redis/rueidis"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// rowKept is for how long a row is cached that does not change.
	rowKept = time.Hour
	// confirmations is how many times a lease the generation is read anew.
	confirmations = 6
	// askAgain is when a client without tracking is asked anew, and
	askAgain = time.Minute
	// askSoon when one that did not say.
	askSoon = time.Second
	// maxLines is how many buckets are known at once; then the node begins anew.
	maxLines = 10_000
)

// Known reads through the client's cache; see the package comment. It returns
// when ctx ends, whatever the client does.
func (d *directory) Known(ctx context.Context, binding, id string) (store.Known, error) {
	if !d.lines.tracked.Load() {
		if err := ctx.Err(); err != nil {
			return store.Known{}, fmt.Errorf("redis known: %w", err)
		}
		if err := d.track(ctx); err != nil {
			return store.Known{}, err
		}
	}
	if known, ok := d.sightings.recall(binding, id); ok {
		return known, nil
	}
	line := d.lines.of(d.keys, binding, id)
	known, err := d.atHand(line, id)
	if err == nil {
		return known, nil
	}
	if ctx.Err() != nil {
		return store.Known{}, err
	}
	type answer struct {
		known store.Known
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		known, err := d.knownBy(ctx, line, id, nil)
		answers <- answer{known, err}
	}()
	select {
	case a := <-answers:
		if a.err == nil {
			line.answers.Store(true)
		}
		return a.known, a.err
	case <-ctx.Done():
		return store.Known{}, fmt.Errorf("redis known: %w", ctx.Err())
	}
}

// maxLooks is how many may look at what is at hand at once. A look takes a
// microsecond; but one that finds the client without a connection may wait for it
// to dial, whatever the context says.
const maxLooks = 64

// atHand is known without waiting: what the client's cache has. One look in vain is
// the last, until the line has answered somebody who waits: a client that has lost
// its connection would begin to dial by the ended context each time, and fail all
// who wait for that.
func (d *directory) atHand(l *line, id string) (store.Known, error) {
	defer d.lines.looks.Add(-1)
	if d.lines.looks.Add(1) > maxLooks || !l.answers.Load() {
		return store.Known{}, fmt.Errorf("redis known: %w", store.AtHand.Err())
	}
	known, err := d.knownBy(store.AtHand, l, id, l.recent())
	if err != nil {
		l.answers.Store(false)
	}
	return known, err
}

// knownBy reads the row, and the generation before it if that was not seen.
func (d *directory) knownBy(ctx context.Context, l *line, id string, seen *glimpse) (store.Known, error) {
	if seen == nil {
		var err error
		if seen, err = d.generation(ctx, l); err != nil {
			return store.Known{}, err
		}
		l.see(seen)
	}
	known := store.Known{Generation: seen.generation, AsOf: seen.asOf}
	key := l.bucket.rows(d.keys.leaf(id))
	count, was := d.sightings.count(key)
	command := d.client.B().Arbitrary("HGET").Keys(key).Args(id).Build()
	row, err := d.cached(ctx, rueidis.Cacheable(command), rowKept).ToString()
	switch {
	case rueidis.IsRedisNil(err):
		return known, nil
	case err != nil:
		return store.Known{}, failed("known", err).err
	}
	epoch, sid, ok := strings.Cut(row, " ")
	epoch = strings.TrimRightFunc(epoch, unicode.IsLetter) // store.Why's
	if known.Epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil || !ok {
		return store.Known{}, failed("known", errForm).err
	}
	known.SessionID = sid
	d.sightings.note(l, id, known, count, was)
	return known, nil
}

// glimpse is a generation of a bucket, which it had at asOf or later, and when this
// node began to look.
type glimpse struct {
	generation   string
	asOf, looked time.Time
}

// glimpsed is for how long a glimpse serves others, each of whom looks at a row anew.
// What it says stays true: the bucket had that generation at asOf or later. And what
// the row is now it was at asOf or has become since. It is as if whoever looks had
// been slow between the two looks.
const glimpsed = time.Millisecond

// recent returns what was seen just now; nil for nothing.
func (l *line) recent() *glimpse {
	seen := l.seen.Load()
	if seen == nil || time.Since(seen.looked) >= glimpsed {
		return nil
	}
	return seen
}

// generation returns a bucket's generation, as of the latest time when the
// connection that tells of the bucket's rows was asked and then answered.
func (d *directory) generation(ctx context.Context, l *line) (*glimpse, error) {
	every := time.Duration(d.lease) * time.Millisecond / confirmations
	for {
		question, heard := l.question(d.client)
		asked := time.Now()
		res := d.cached(ctx, question, every)
		text, err := res.ToString()
		switch {
		case err != nil:
			return nil, failed("known", err).err
		case res.IsCacheHit():
			if tooOld := asked.Add(-2 * every); heard.Before(tooOld) {
				l.renew(tooOld)
			}
			return &glimpse{text, heard, asked}, nil
		}
		// A client of a cluster may have been sent on, and have asked another
		// connection than the one that it looks for the rows on.
		if look := d.cached(store.AtHand, question, every); look.IsCacheHit() {
			l.heard(asked)
			return &glimpse{text, asked, asked}, nil
		}
		if time.Since(asked) < every {
			return nil, failed("known", errSentOn).err
		}
		// The look came so late that it says nothing.
	}
}

var errSentOn = errors.New("what has answered is not what tells of the rows")

// maxGeneration is more than a generation has digits.
const maxGeneration = 32

// cached runs a command that reads one key, through the client's cache.
func (d *directory) cached(ctx context.Context, command rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	// None of the keys expires, so that the client need not ask when.
	return d.client.DoCache(ctx, command.ToStaticTTL(), ttl)
}

// lines is what tells of changes, and when it was last heard of, bucket by
// bucket. The zero lines know of nothing.
type lines struct {
	tracked atomic.Bool
	looks   atomic.Int32

	mu       sync.Mutex
	askAgain time.Time
	byBucket map[lineKey]*line
}

type lineKey struct {
	binding string
	shard   int
}

// of returns the line of an id's bucket.
func (l *lines) of(k keys, binding, id string) *line {
	key := lineKey{binding, store.Shard(id, k.shards)}
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byBucket[key]
	if one == nil {
		if l.byBucket == nil || len(l.byBucket) >= maxLines {
			l.byBucket = map[lineKey]*line{}
		}
		one = &line{binding: binding, bucket: k.bucket(binding, key.shard)}
		l.byBucket[key] = one
	}
	return one
}

// line is the connection that tells of a bucket's changes.
type line struct {
	binding string
	bucket  bucketKeys
	// answers: a question was answered that somebody waited for, and no look was in
	// vain since.
	answers atomic.Bool
	// seen is the generation as it was seen last, nil if it was not.
	seen atomic.Pointer[glimpse]

	mu sync.Mutex
	// asked is when Redis was asked for the generation, to which it answered
	// later.
	asked time.Time
	turn  int
	// ask is the question of the present turn, once it was put.
	ask rueidis.Cacheable
	put bool
}

// question returns the command that reads the bucket's generation, and when it was last
// asked and then answered: what is in the cache from now on was so then, or has become so
// since. That would not be so of a time that is read after the look, when the cache may
// have changed.
func (l *line) question(client rueidis.Client) (command rueidis.Cacheable, heard time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.put {
		// All of the text, however the end of the range is written.
		last := strconv.Itoa(maxGeneration + l.turn)
		command := client.B().Arbitrary("GETRANGE").Keys(l.bucket.generation()).Args("0", last).Build()
		l.ask, l.put = rueidis.Cacheable(command).Pin(), true
	}
	return l.ask, l.asked
}

// renew has the line asked under another name if it was not asked for that long, and its
// cache says that it was: the cache goes by the wall clock, and set back, it takes what
// is too old for young, but not under another name, for which there is the turn.
func (l *line) renew(tooOld time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked.IsZero() && l.asked.Before(tooOld) {
		l.turn++
		l.put = false
	}
}

// heard notes when a question was asked that was answered.
func (l *line) heard(asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked.After(l.asked) {
		l.asked = asked
	}
}

// see notes what was seen, unless what was seen already is younger.
func (l *line) see(seen *glimpse) {
	for {
		had := l.seen.Load()
		if had != nil && had.asOf.After(seen.asOf) || l.seen.CompareAndSwap(had, seen) {
			return
		}
	}
}

// track asks whether the connections of the client are told of changes. While one
// asks, nothing is known.
func (d *directory) track(ctx context.Context) error {
	d.lines.mu.Lock()
	now := time.Now()
	if now.Before(d.lines.askAgain) {
		d.lines.mu.Unlock()
		return store.ErrNotTracked
	}
	d.lines.askAgain = now.Add(askAgain)
	d.lines.mu.Unlock()

	answers := make(chan rueidis.RedisResult, 1)
	go func() { answers <- d.client.Do(ctx, d.client.B().ClientTrackinginfo().Build()) }()
	select {
	case res := <-answers:
		if tells(res) {
			d.lines.tracked.Store(true)
			return nil
		}
		if _, said := rueidis.IsRedisErr(res.Error()); said || res.Error() == nil {
			return store.ErrNotTracked
		}
	case <-ctx.Done():
	}
	d.lines.mu.Lock()
	defer d.lines.mu.Unlock()
	d.lines.askAgain = now.Add(askSoon)
	return store.ErrNotTracked
}

// tells reads what CLIENT TRACKINGINFO says. The host may have changed the
// client's ClientTrackingOptions so that it is not told of what it changes itself
// (NOLOOP), of some keys only (PREFIX), or that another connection is (REDIRECT).
func tells(res rueidis.RedisResult) bool {
	info, err := res.AsMap()
	if err != nil {
		return false
	}
	flagged, prefixed, redirect := info["flags"], info["prefixes"], info["redirect"]
	flags, err := flagged.AsStrSlice()
	if err != nil || !slices.Contains(flags, "on") || slices.Contains(flags, "noloop") {
		return false
	}
	prefixes, err := prefixed.AsStrSlice()
	if err != nil || slices.ContainsFunc(prefixes, func(p string) bool { return p != "" }) {
		return false
	}
	to, err := redirect.AsInt64()
	return err == nil && to <= 0
}
