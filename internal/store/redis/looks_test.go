package redis

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

// The client dials for whoever asks first, and all others wait for that: one that
// would not wait must not be the first, time and again.
func TestALookDoesNotKeepTheClientFromDialling(t *testing.T) {
	t.Parallel()
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
	d := openOn(redistest.NewClient(t, option), time.Hour)
	session, _ := d.placed(t, "x")
	look := func() bool {
		known, err := d.Known(ended, "/counters", "x")
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
