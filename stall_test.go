package pinboard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/rounds"
)

// ending is a stall of many, with the times at which it was early and at its end.
func ending(r *rounds.Rounds[*stall], limit time.Duration) (s *stall, early, ended *[]time.Duration) {
	began := time.Now()
	early, ended = new([]time.Duration), new([]time.Duration)
	s = &stall{
		limit: limit, rounds: r,
		early: func() { *early = append(*early, time.Since(began)) },
		end:   func() { *ended = append(*ended, time.Since(began)) },
	}
	return s, early, ended
}

func TestAWaitOfManyEndsWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	for _, limit := range []time.Duration{time.Millisecond, 2 * rounds.Time, 15 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var r rounds.Rounds[*stall]
			s, early, ended := ending(&r, limit)
			s.watch()
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			require.Equal(t, []time.Duration{limit}, *ended)
			if limit > 2*rounds.Time {
				require.Len(t, *early, 1)
				require.LessOrEqual(t, (*early)[0], 2*rounds.Time)
			}
		})
	}
}

func TestAWaitThatRestsHasNoTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rounds.Rounds[*stall]
		s, early, ended := ending(&r, time.Minute)
		for range 100 {
			s.watch()
			time.Sleep(rounds.Time / 2)
			s.rest()
		}
		synctest.Wait()
		require.Nil(t, s.timer)
		require.Empty(t, *early)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, *ended)
	})
}

// What begins anew has all its time, whatever the timer of a former wait says.
func TestAWaitThatBeginsAnewHasAllItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rounds.Rounds[*stall]
		s, early, ended := ending(&r, time.Minute)
		for range 3 {
			s.watch()
			time.Sleep(59 * time.Second)
		}
		synctest.Wait()
		require.Empty(t, *ended)
		require.Len(t, *early, 3)
		s.rest()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, *ended)
		s.watch()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []time.Duration{3*59*time.Second + time.Hour + time.Minute}, *ended)
		s.stop()
		s.watch()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, *ended, 1, "it is over for good")
	})
}
