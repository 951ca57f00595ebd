package rounds

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// thing notes when it was asked.
type thing struct {
	begun time.Time

	mu    sync.Mutex
	since uint32
	asked []time.Duration
	long  []bool
	again func()
}

func (t *thing) Due(now uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = append(t.asked, time.Since(t.begun))
	t.long = append(t.long, Long(t.since, now))
	if t.again != nil {
		t.again()
	}
}

// change changes it between two rounds.
func (t *thing) change(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

func TestWhatGoesOnIsAskedOnceAfterARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Rounds[*thing]
		var all []*thing
		for range 100 { // at all times of a round
			one := &thing{begun: time.Now(), since: r.Now()}
			r.Note(one)
			all = append(all, one)
			time.Sleep(Time / 7)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, one := range all {
			require.Len(t, one.asked, 1)
			require.GreaterOrEqual(t, one.asked[0], Time)
			require.LessOrEqual(t, one.asked[0], 2*Time)
			require.True(t, one.long[0])
		}
		require.Nil(t, r.timer, "nothing is left to ask")
		require.Empty(t, r.young)
		require.Empty(t, r.old)
	})
}

// One that was noted, and began anew since, is not long yet.
func TestWhatBeganAnewHasNotTakenLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Rounds[*thing]
		one := &thing{begun: time.Now()}
		r.Note(one)
		time.Sleep(Time + time.Microsecond)
		one.change(func() { one.since = r.Now() })
		time.Sleep(Time)
		synctest.Wait()
		require.Equal(t, []bool{false}, one.long)
		one.change(func() { one.again = func() { one.again = nil; r.Note(one) } }) // from within
		r.Note(one)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []bool{false, true, true}, one.long)
	})
}
