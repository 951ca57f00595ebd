package pinboard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func hang(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func TestTheGateBoundsALookUpAndSparesTheNextOnesTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		began := time.Now()
		require.ErrorIs(t, g.do(t.Context(), hang), errStoreAway)
		require.Equal(t, storeTimeout, time.Since(began)) // virtual time
		began = time.Now()
		for range 1000 {
			err := g.do(t.Context(), func(context.Context) error { t.Error("asked"); return nil })
			require.ErrorIs(t, err, errStoreAway)
		}
		require.Zero(t, time.Since(began))

		// After a while one is let through, and only one.
		time.Sleep(gateEvery)
		trial := make(chan error)
		goOn := make(chan struct{})
		go func() { trial <- g.do(t.Context(), func(context.Context) error { <-goOn; return nil }) }()
		synctest.Wait()
		require.ErrorIs(t, g.do(t.Context(), hang), errStoreAway)
		require.Equal(t, gateEvery, time.Since(began))
		close(goOn)
		require.NoError(t, <-trial)
		// The store is back.
		require.NoError(t, g.do(t.Context(), func(context.Context) error { return nil }))
	})
}

func TestATrialThatFailsKeepsTheGateShut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		for range 3 {
			require.ErrorIs(t, g.do(t.Context(), hang), errStoreAway)
			require.ErrorIs(t, g.do(t.Context(), func(context.Context) error { t.Error("asked"); return nil }), errStoreAway)
			time.Sleep(gateEvery)
		}
	})
}

func TestAnErrorThatComesInTimeShutsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		for range 3 {
			require.Equal(t, errStoreTest, g.do(t.Context(), func(context.Context) error { return errStoreTest }))
		}
	})
}

func TestACallerThatLeavesShutsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		err := g.do(ctx, hang)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, errors.Is(err, errStoreAway))
		require.NoError(t, g.do(t.Context(), func(context.Context) error { return nil }))
	})
}

func TestATrialThatItsCallerLeavesIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		require.ErrorIs(t, g.do(t.Context(), hang), errStoreAway)
		time.Sleep(gateEvery)
		ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
		defer leave()
		require.False(t, errors.Is(g.do(ctx, hang), errStoreAway))
		time.Sleep(gateEvery + storeTimeout)
		require.NoError(t, g.do(t.Context(), func(context.Context) error { return nil }))
	})
}
