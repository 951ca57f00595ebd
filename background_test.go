package pinboard

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestBackgroundWorkBeginsWithTheFirstRequestAndEndsWithClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs, ended := 0, false
		b := background{run: func(ctx context.Context) {
			runs++
			<-ctx.Done()
			ended = true
		}, guard: untilDone}
		synctest.Wait()
		require.Zero(t, runs)
		for range 3 {
			require.True(t, b.enter())
			b.leave()
		}
		synctest.Wait()
		require.Equal(t, 1, runs)
		require.False(t, ended)
		require.True(t, b.close())
		require.False(t, b.close(), "the second time does nothing")
		require.NoError(t, b.wait(t.Context()))
		require.True(t, ended)
		require.False(t, b.enter())
		require.Equal(t, 1, runs)
	})
}

func untilDone(ctx context.Context) { <-ctx.Done() }

// What looks after open requests goes on until the last of them has left.
func TestRequestsAreGuardedUntilTheLastHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guarded := false
		b := background{run: untilDone, guard: func(ctx context.Context) {
			guarded = true
			<-ctx.Done()
			guarded = false
		}}
		require.True(t, b.enter())
		b.stay()
		b.close()
		b.leave()
		synctest.Wait()
		require.True(t, guarded)
		b.leave()
		require.NoError(t, b.wait(t.Context()))
		require.False(t, guarded)
	})
}

func TestWaitingIsForEveryRequestInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := background{run: untilDone, guard: untilDone}
		require.True(t, b.enter())
		require.True(t, b.enter())
		b.close()
		waited := make(chan error, 2)
		for range 2 { // two may wait
			go func() { waited <- b.wait(t.Context()) }()
		}
		b.leave()
		synctest.Wait()
		require.Empty(t, waited)
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, b.wait(ended), context.Canceled)
		b.leave()
		require.NoError(t, <-waited)
		require.NoError(t, <-waited)
		require.NoError(t, b.wait(ended), "nothing is left to wait for")
	})
}

func TestWhatWasNeverUsedClosesToo(t *testing.T) {
	t.Parallel()
	var b background
	require.True(t, b.close())
	require.NoError(t, b.wait(t.Context()))
}
