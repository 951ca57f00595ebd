package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// gated is a client that holds reclaims up until it is opened.
type gated struct {
	rueidis.Client
	open        chan struct{}
	inside, max atomic.Int32
}

func (g *gated) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	if len(multi) > 0 && multi[0].Commands()[1] == reclaimScript.digest {
		now := g.inside.Add(1)
		for {
			most := g.max.Load()
			if now <= most || g.max.CompareAndSwap(most, now) {
				break
			}
		}
		<-g.open
		defer g.inside.Add(-1)
	}
	return g.Client.DoMulti(ctx, multi...)
}

// After Redis was wiped all workers of a fleet come back within a heartbeat.
func TestHoweverManyComeBackAtOnceFewReclaimsAreUnderWay(t *testing.T) {
	t.Parallel()
	const workers = 12
	d := open(t, time.Hour)
	g := &gated{Client: d.client, open: make(chan struct{})}
	shared := openAs(g, d.keys.prefix, time.Hour)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			r := registration(fmt.Sprint("client-", w))
			r.Instances = map[string][]string{}
			for i := range 2 * batch {
				r.Instances["/counters"] = append(r.Instances["/counters"], fmt.Sprint(w, "-", i))
			}
			if _, err := shared.Register(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	sessions := d.keys.bucket("/counters", 0).sessions()
	until(t, func() bool {
		return d.do1(t, "ZCARD", sessions) == strconv.Itoa(workers) && g.inside.Load() >= maxBulk
	})
	close(g.open)
	group.Wait()
	require.Equal(t, int32(maxBulk), g.max.Load())
	rows, _, err := d.Rows(t.Context(), "/counters", "", 10)
	require.NoError(t, err)
	require.NotEmpty(t, rows)
}

func TestWaitingForATurnEndsWithTheContext(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	for range maxBulk {
		d.bulk <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Release(ctx, []wire.Release{{SessionID: "s", Namespace: "/counters", ID: "x"}})
	require.ErrorIs(t, err, context.Canceled)
}
