package worker

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// Ids that are used all the time go round in the queue of fences. Behind them,
// those that nobody uses any more are forgotten all the same, with one use for each
// that comes.
func TestFencesInUseKeepNoOldOnesThere(t *testing.T) {
	t.Parallel()
	const inUse, lifetime = 50, 30 * time.Second
	f := newFences(func() time.Duration { return lifetime / 2 })
	at := func(name string, i int) key { return key{"/c", name + strconv.Itoa(i)} }
	now, most := time.Hour, 0
	for i := range 5000 {
		now += lifetime / 500
		require.Nil(t, f.admit(at("used-", i%inUse), 1, now))
		require.Nil(t, f.admit(at("once-", i), 1, now))
		most = max(most, len(f.byID))
	}
	require.LessOrEqual(t, most, inUse+500+1, "those of one lifetime")
	for i := range inUse {
		require.NotNil(t, f.admit(at("used-", i), 0, now), "none was forgotten that is in use")
	}
	now += lifetime + 1
	for range len(f.byID) {
		require.Nil(t, f.admit(at("last", 0), 1, now))
	}
	require.Len(t, f.byID, 1)
	require.Equal(t, f.ring.next, f.ring.prev, "the queue is no longer than the index")
}

// Who keeps a fence asks it and no other, until it is forgotten.
func TestAKeptFenceIsAskedUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	const lifetime = 30 * time.Second
	f := newFences(func() time.Duration { return lifetime / 2 })
	k, now := key{"/c", "1"}, time.Hour
	kept, ref := f.admitBy(nil, k, 5, now)
	require.Nil(t, ref)
	again, ref := f.admitBy(kept, k, 5, now)
	require.Nil(t, ref)
	require.Same(t, kept, again)
	f.giveUp(k, 5, now)
	_, ref = f.admitBy(kept, k, 5, now)
	require.NotNil(t, ref)
	require.Equal(t, wire.RefusalReleasedEpoch, ref.reason)

	now += lifetime + 1
	require.Nil(t, f.admit(key{"/c", "2"}, 1, now), "forgets it")
	f.giveUp(k, 7, now)
	again, ref = f.admitBy(kept, k, 7, now)
	require.NotNil(t, ref, "there is another one by now")
	require.NotSame(t, kept, again)
}
