package redis

import (
	"context"
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
		if err := d.track(ctx); err != nil {
			return store.Known{}, err
		}
	}
	type answer struct {
		known store.Known
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		known, err := d.known(ctx, d.keys.of(binding, id), id)
		answers <- answer{known, err}
	}()
	select {
	case a := <-answers:
		return a.known, a.err
	case <-ctx.Done():
		return store.Known{}, fmt.Errorf("redis known: %w", ctx.Err())
	}
}

func (d *directory) known(ctx context.Context, bucket bucketKeys, id string) (store.Known, error) {
	generation, asOf, err := d.generation(ctx, bucket)
	if err != nil {
		return store.Known{}, err
	}
	known := store.Known{Generation: generation, AsOf: asOf}
	res := d.cached(ctx, rowKept, "HGET", bucket.rows(d.keys.leaf(id)), id)
	if rueidis.IsRedisNil(res.Error()) {
		return known, nil
	}
	a := read("known", res)
	epoch, sid, ok := strings.Cut(a.text(), " ")
	if a.err == nil {
		known.SessionID = sid
		epoch = strings.TrimRightFunc(epoch, unicode.IsLetter) // store.Why's
		if known.Epoch, err = strconv.ParseInt(epoch, 10, 64); err != nil || !ok {
			a.fail(errForm)
		}
	}
	return known, a.err
}

// generation returns a bucket's generation, and the latest time when the
// connection that tells of the bucket's rows was asked and then answered.
func (d *directory) generation(ctx context.Context, bucket bucketKeys) (string, time.Time, error) {
	every := time.Duration(d.lease) * time.Millisecond / confirmations
	asked := time.Now()
	turn := d.lines.turn(bucket)
	// All of the text, however the end of the range is written.
	res := d.cached(ctx, every, "GETRANGE", bucket.generation(), "0", strconv.Itoa(maxGeneration+turn))
	a := read("known", res)
	text := a.text()
	if a.err != nil {
		return "", time.Time{}, a.err
	}
	if !res.IsCacheHit() {
		return text, d.lines.heard(bucket, asked), nil
	}
	return text, d.lines.lastHeard(bucket, asked.Add(-2*every)), nil
}

// maxGeneration is more than a generation has digits.
const maxGeneration = 32

// cached runs a command that reads one key, through the client's cache.
func (d *directory) cached(ctx context.Context, ttl time.Duration, name, key string, args ...string) rueidis.RedisResult {
	command := d.client.B().Arbitrary(name).Keys(key).Args(args...).Build()
	// None of the keys expires, so that the client need not ask when.
	return d.client.DoCache(ctx, rueidis.Cacheable(command).ToStaticTTL(), ttl)
}

// lines is when what tells of changes in each bucket was last heard of. The zero
// lines know of nothing.
type lines struct {
	tracked atomic.Bool

	mu       sync.Mutex
	askAgain time.Time
	byBucket map[bucketKeys]line
}

// line is when Redis was asked, on the connection that tells of a bucket's
// changes, to which it answered later.
type line struct {
	asked time.Time
	turn  int
}

func (l *lines) turn(bucket bucketKeys) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byBucket[bucket].turn
}

// lastHeard returns when the line was last asked, of what came from the cache. The
// cache goes by the wall clock: set back, it takes what is too old for young, but
// not under another name, for which there is the turn.
func (l *lines) lastHeard(bucket bucketKeys, tooOld time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	one, ok := l.byBucket[bucket]
	if ok && one.asked.Before(tooOld) {
		one.turn++
		l.byBucket[bucket] = one
	}
	return one.asked
}

func (l *lines) heard(bucket bucketKeys, asked time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byBucket == nil || len(l.byBucket) >= maxLines {
		l.byBucket = map[bucketKeys]line{}
	}
	one := l.byBucket[bucket]
	if asked.After(one.asked) {
		one.asked = asked
		l.byBucket[bucket] = one
	}
	return one.asked
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
