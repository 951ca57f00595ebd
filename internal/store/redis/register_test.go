package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// between is a client that does something just before a script first runs.
type between struct {
	rueidis.Client
	script *script
	do     func()
	once   sync.Once
}

func (b *between) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[1] == b.script.digest {
		b.once.Do(b.do)
	}
	return b.Client.Do(ctx, cmd)
}

// The later registration may itself come to nothing, so that the one that was
// overtaken ends what it has recorded.
func TestARegistrationThatIsOvertakenLeavesNothing(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	later := registration("a")
	overtaken := openAs(&between{Client: d.client, script: settleScript, do: func() {
		if _, err := d.admit(t.Context(), &later); err != nil {
			t.Error(err)
		}
	}}, d.keys.prefix, time.Hour)
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {"x"}}
	_, err := overtaken.Register(t.Context(), r)
	require.ErrorIs(t, err, store.ErrOvertaken)
	_, err = d.Lookup(t.Context(), "/counters", "x")
	require.ErrorIs(t, err, store.ErrNotPlaced)
	require.Equal(t, "0", d.do1(t, "EXISTS", d.keys.bucket("/counters", 0).session(r.SessionID)))
}

func TestARegistrationThatTakesLongerThanItsLeaseFails(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	slow := openAs(&between{Client: d.client, script: settleScript, do: func() {
		d.do1(t, "DEL", d.keys.fleet().session(r.SessionID))
	}}, d.keys.prefix, time.Hour)
	_, err := slow.Register(t.Context(), r)
	require.ErrorIs(t, err, errLapsed)
	require.False(t, decided(err))
}

func TestRegisteringTwiceUnderOneSessionIsOnce(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	other := d.joined(t, "other")
	r := registration("a")
	r.AdvertiseURL = "http://other"
	r.Instances = map[string][]string{"/counters": {"x"}}
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	row, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	s, err := d.Session(t.Context(), other)
	require.NoError(t, err)
	require.True(t, s.Stopped)

	before := d.do1(t, "HGET", string(d.keys.fleet().client("a")), "gen")
	twice, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, store.Epochs{"/counters": {"x": row.Epoch}}, twice.Epochs)
	require.Equal(t, before, d.do1(t, "HGET", string(d.keys.fleet().client("a")), "gen"))
	again, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Equal(t, row, again)
}

func TestRegisteringAgainUnderAnOldSessionDoesNotBringItBack(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	old := registration("a")
	_, err := d.Register(t.Context(), old)
	require.NoError(t, err)
	sid := d.joined(t, "a")
	_, err = d.Register(t.Context(), old)
	require.ErrorIs(t, err, store.ErrOvertaken)
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: sid})
	require.NoError(t, err)
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Len(t, live, 1)

	require.NoError(t, d.Deregister(t.Context(), sid))
	_, err = d.Register(t.Context(), old)
	require.ErrorIs(t, err, store.ErrOvertaken)
}

func TestASessionIDIsAWord(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	for _, sid := range []string{"", "a b", "a\n"} {
		r := registration("a")
		r.SessionID = sid
		_, err := d.Register(t.Context(), r)
		require.ErrorContains(t, err, "session id")
	}
	require.Empty(t, d.scan(t))
}

// A registration that stops halfway leaves sessions in buckets that the next
// one may not serve: it ends them all the same.
func TestARegistrationCleansUpAfterInterruptedOnes(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	first := registration("a")
	first.Namespaces = []string{"/one", "/two"}
	_, err := d.Register(t.Context(), first)
	require.NoError(t, err)

	second := registration("a")
	second.Namespaces = []string{"/two", "/three"}
	r, err := d.admit(t.Context(), &second)
	require.NoError(t, err)
	require.NoError(t, d.join(t.Context(), r))

	third := registration("a")
	third.Namespaces = []string{"/four"}
	_, err = d.Register(t.Context(), third)
	require.NoError(t, err)
	for _, ns := range []string{"/one", "/two", "/three"} {
		b := d.keys.bucket(ns, 0)
		require.Equal(t, "0", d.do1(t, "ZCARD", b.sessions()), ns)
		for _, sid := range []string{first.SessionID, second.SessionID} {
			require.Equal(t, "0", d.do1(t, "EXISTS", b.session(sid)), ns)
		}
	}
	require.Equal(t, "/four", d.do1(t, "HGET", d.keys.fleet().client("a"), "spaces"))

	// What is left of the interrupted one comes too late.
	require.ErrorIs(t, d.join(t.Context(), r), store.ErrOvertaken)
	_, _, err = d.reclaim(t.Context(), r)
	require.NoError(t, err, "it listed nothing")
	require.NoError(t, d.retire(t.Context(), r))
	_, err = d.settle(t.Context(), r)
	require.ErrorIs(t, err, store.ErrOvertaken)
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: third.SessionID})
	require.NoError(t, err)
}

// The rows that a registration lists have a live owner at every step of it.
func TestNoListedRowIsFreeDuringARegistration(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	const ids = 1200
	first := registration("a")
	for i := range ids {
		first.Instances = map[string][]string{"/counters": append(first.Instances["/counters"], fmt.Sprint("id-", i))}
	}
	_, err := d.Register(t.Context(), first)
	require.NoError(t, err)
	epochs := map[string]int64{}
	check := func(step string) {
		t.Helper()
		for _, id := range first.Instances["/counters"] {
			row, err := d.Lookup(t.Context(), "/counters", id)
			require.NoError(t, err, step)
			if epochs[id] != 0 {
				require.Equal(t, epochs[id], row.Epoch, step)
			}
			epochs[id] = row.Epoch
		}
	}
	check("before")
	second := registration("a")
	second.Instances = first.Instances
	r, err := d.admit(t.Context(), &second)
	require.NoError(t, err)
	check("admitted")
	require.NoError(t, d.join(t.Context(), r))
	check("joined")
	_, _, err = d.reclaim(t.Context(), r)
	require.NoError(t, err)
	check("reclaimed")
	require.NoError(t, d.retire(t.Context(), r))
	check("retired")
	_, err = d.settle(t.Context(), r)
	require.NoError(t, err)
	check("settled")
}
