package redis

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
)

// The client dials for whoever asks first, and all others wait for that: one that
// would not wait must not be the first, time and again.
func TestALookDoesNotKeepTheClientFromDialling(t *testing.T) {
	onBoth(t, aLookDoesNotKeepTheClientFromDialling)
}

func aLookDoesNotKeepTheClientFromDialling(t *testing.T, client connects) {
	own := redistest.New(t, redistest.Options{})
	admin := own.Client(t)
	var hopeless atomic.Int64
	option := own.ClientOption()
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		if ctx.Err() != nil {
			hopeless.Add(1)
		}
		return dial(ctx, to, d, c)
	}
	d := openOn(client(t, option), time.Hour)
	session, _ := d.placed(t, "x")
	look := func() bool {
		known, err := d.Known(store.AtHand, "/counters", "x")
		return err == nil && known.SessionID == session
	}
	for range int64(3) {
		_, err := d.Known(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.True(t, look(), "what is at hand is found again")
		before := hopeless.Load()
		kill := admin.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Build()
		require.NoError(t, admin.Do(t.Context(), kill).Error())
		until(t, func() bool { return !look() })
		for range 100 {
			require.False(t, look())
		}
		require.LessOrEqual(t, hopeless.Load()-before, int64(1))
	}
}

// sentOn is a client of a cluster whose node sends questions on to another one, as
// a master that has become a replica, but goes on telling of what it has.
type sentOn struct {
	rueidis.Client
	to   rueidis.Client
	does atomic.Bool
}

func (c *sentOn) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	if c.does.Load() && ctx.Err() == nil && cmd.Commands()[0] == "GETRANGE" {
		return c.to.DoCache(ctx, cmd, ttl)
	}
	return c.Client.DoCache(ctx, cmd, ttl)
}

// A row is as old as what tells of it, not as what answers in its place.
func TestAnAnswerFromElsewhereMakesNothingLookYoung(t *testing.T) {
	t.Parallel()
	own := redistest.New(t, redistest.Options{})
	writer := openOn(own.Client(t), time.Hour)
	silent, gate := behindGate(t, own, redistest.NewClient)
	client := &sentOn{Client: silent, to: own.Client(t)}
	d := openAs(client, writer.keys.prefix, time.Second)
	session, epochs := writer.placed(t, "x")
	until(t, func() bool {
		known, err := d.Known(t.Context(), "/counters", "x")
		return err == nil && known.SessionID == session
	})
	gate.shut()
	writer.move(t, session, "x")
	moved := time.Now()
	client.does.Store(true)
	unknown := 0
	until(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		known, err := d.Known(ctx, "/counters", "x")
		if err != nil {
			unknown++
		} else {
			require.Equal(t, epochs[0], known.Epoch)
			require.True(t, known.AsOf.Before(moved))
		}
		return unknown == 5
	})
}

// hesitant is a client whose first look is so late that what was asked for is not
// kept any more.
type hesitant struct {
	rueidis.Client
	t     *testing.T
	after time.Duration
	late  atomic.Bool
}

func (c *hesitant) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	if ctx.Err() != nil && cmd.Commands()[0] == "GETRANGE" && c.late.CompareAndSwap(false, true) {
		begun := time.Now()
		until(c.t, func() bool { return time.Since(begun) > c.after })
	}
	return c.Client.DoCache(ctx, cmd, ttl)
}

func TestALookThatIsLateSaysNothing(t *testing.T) {
	t.Parallel()
	own := redistest.New(t, redistest.Options{})
	const lease = 600 * time.Millisecond
	client := &hesitant{Client: own.Client(t), t: t, after: lease / confirmations}
	client.late.Store(true)
	d := openAs(client, "late", lease)
	require.NoError(t, d.track(t.Context()))
	client.late.Store(false)
	_, err := d.generation(t.Context(), d.lines.of(d.keys, "/counters", "x"))
	require.NoError(t, err)
	require.True(t, client.late.Load())
}

// held is a client that keeps back what one look at a generation has found.
type held struct {
	rueidis.Client
	armed       atomic.Bool
	found, goOn chan struct{}
}

func (c *held) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	generation := cmd.Commands()[0] == "GETRANGE"
	res := c.Client.DoCache(ctx, cmd, ttl)
	if generation && c.armed.CompareAndSwap(true, false) {
		close(c.found)
		<-c.goOn
	}
	return res
}

// What was found before a change is no younger for what others hear meanwhile, whether it was
// in the cache or had to be asked for.
func TestWhatWasFoundBeforeAChangeIsFromBeforeIt(t *testing.T) {
	t.Parallel()
	for _, cached := range []bool{true, false} {
		own := redistest.New(t, redistest.Options{})
		admin := own.Client(t)
		client := &held{Client: own.Client(t), found: make(chan struct{}), goOn: make(chan struct{})}
		d := openOn(client, time.Hour)
		d.placed(t, "x")
		line := d.lines.of(d.keys, "/counters", "x")
		if cached {
			d.sees(t, "x")
		} else {
			require.NoError(t, d.track(t.Context()))
		}
		line.seen.Store(nil)
		client.armed.Store(true)
		got := make(chan store.Known, 1)
		go func() {
			known, _ := d.Known(context.WithoutCancel(t.Context()), "/counters", "x")
			got <- known
		}()
		<-client.found
		change := admin.B().Set().Key(line.bucket.generation()).Value("4711").Build()
		require.NoError(t, admin.Do(t.Context(), change).Error())
		changed := time.Now()
		until(t, func() bool { line.seen.Store(nil); return d.sees(t, "x").Generation == "4711" })
		young := line.seen.Load()
		require.NotNil(t, young)
		close(client.goOn)
		known := <-got
		require.True(t, known.Generation == "4711" || known.AsOf.Before(changed), "%+v of %v", known, changed)
		require.False(t, line.seen.Load().asOf.Before(young.asOf), "nor is it in the way of what is younger")
	}
}

// counting is a client that counts looks at generations.
type counting struct {
	rueidis.Client
	looks atomic.Int64
}

func (c *counting) DoCache(ctx context.Context, cmd rueidis.Cacheable, ttl time.Duration) rueidis.RedisResult {
	if cmd.Commands()[0] == "GETRANGE" {
		c.looks.Add(1)
	}
	return c.Client.DoCache(ctx, cmd, ttl)
}

// A generation that was seen just now is not looked at again, a row always is.
func TestAGlimpseOfTheGenerationServesWhoeverLooksAtARow(t *testing.T) {
	t.Parallel()
	client := &counting{Client: redistest.New(t, redistest.Options{}).Client(t)}
	d := openAs(client, "glimpse", time.Hour)
	session, epochs := d.placed(t, "x", "y")
	look := func(id string) store.Known {
		known, err := d.Known(t.Context(), "/counters", id)
		require.NoError(t, err)
		require.Equal(t, session, known.SessionID)
		return known
	}
	line := d.lines.of(d.keys, "/counters", "x")
	seenBefore := func(ago time.Duration) {
		seen := *line.seen.Load()
		seen.looked = time.Now().Add(-ago)
		line.seen.Store(&seen)
	}
	for range 2 { // the second time they are at hand
		look("x")
		look("y")
	}
	seenBefore(-time.Hour)
	before := client.looks.Load()
	x, y := look("x"), look("y")
	require.Equal(t, before, client.looks.Load())
	require.Equal(t, epochs, []int64{x.Epoch, y.Epoch})
	require.Equal(t, x.Generation, y.Generation)
	require.Equal(t, x.AsOf, y.AsOf)

	moved := d.move(t, session, "y")[0]
	until(t, func() bool {
		seenBefore(-time.Hour)
		return look("y").Epoch == moved
	})
	seenBefore(glimpsed)
	before = client.looks.Load()
	look("x")
	require.Equal(t, before+1, client.looks.Load())
}
