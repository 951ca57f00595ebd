package redis

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
)

// remembers reports whether a row is remembered of an id.
func (d *directory) remembers(id string) bool {
	one := d.sightings.place("/counters", id).Load()
	return one != nil && one.of("/counters", id) && one.good()
}

// sees has a row remembered that is there.
func (d *directory) sees(t *testing.T, id string) store.Known {
	t.Helper()
	known, err := d.Known(t.Context(), "/counters", id)
	require.NoError(t, err)
	require.NotEmpty(t, known.SessionID)
	return known
}

func TestWhatIsRememberedIsWhatTheCacheSays(t *testing.T) {
	t.Parallel()
	own := redistest.New(t, redistest.Options{})
	d := openOn(connectHearing(t, own.ClientOption()), time.Hour)
	session, epochs := d.placed(t, "x")
	until(t, func() bool { // both looks within a moment
		d.sees(t, "x")
		known, ok := d.sightings.recall("/counters", "x")
		if ok {
			require.Equal(t, session, known.SessionID)
			require.Equal(t, epochs[0], known.Epoch)
			require.NotEmpty(t, known.Generation)
			require.False(t, known.AsOf.IsZero())
		}
		return ok
	})
	_, ok := d.sightings.recall("/others", "x")
	require.False(t, ok)
	_, ok = d.sightings.recall("/counters", "y")
	require.False(t, ok)

	// Without a generation that was seen just now there is more to look at.
	d.lines.of(d.keys, "/counters", "x").seen.Store(nil)
	_, ok = d.sightings.recall("/counters", "x")
	require.False(t, ok)
}

func TestWhatHasChangedIsNotRemembered(t *testing.T) {
	t.Parallel()
	own := redistest.New(t, redistest.Options{})
	admin := own.Client(t)
	d := openOn(connectHearing(t, own.ClientOption()), time.Hour)
	session, _ := d.placed(t, "x", "y")
	for _, change := range []func(){
		func() { d.move(t, session, "x") },
		func() { require.NoError(t, admin.Do(t.Context(), admin.B().Flushall().Build()).Error()) },
		func() { require.NoError(t, admin.Do(t.Context(), admin.B().ClientKill().TypeNormal().Build()).Error()) },
	} {
		session, _ = d.placed(t, "x", "y")
		until(t, func() bool {
			_, err := d.Known(t.Context(), "/counters", "x")
			return err == nil && d.remembers("x")
		})
		change()
		until(t, func() bool { return !d.remembers("x") })
	}
}

// A connection that takes the place of one that has ended may be used before the
// client says that the other one has: what was read of that is forgotten when it is
// dialed.
func TestANewConnectionRemembersNothingOfTheOneBefore(t *testing.T) {
	t.Parallel()
	h := new(heard)
	count := h.of("key")
	dial := h.dialing(rueidis.ClientOption{})
	was := count.Load()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := dial(ctx, "127.0.0.1:1", new(net.Dialer), nil)
	require.Error(t, err)
	require.NotEqual(t, was, count.Load())

	own := redistest.New(t, redistest.Options{})
	option := own.ClientOption()
	was = count.Load()
	option.DialCtxFn = h.dialing(option)
	client := redistest.NewClient(t, option)
	require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error(), "as the host has it dialed")
	require.NotEqual(t, was, count.Load())
}

func TestTwoIdsOfOnePlaceAreNotTakenForEachOther(t *testing.T) {
	t.Parallel()
	d := openOn(connectHearing(t, server.ClientOption()), time.Hour)
	ids := map[any]string{}
	var a, b string
	for i := 0; b == ""; i++ {
		id := fmt.Sprint("id-", i)
		place := d.sightings.place("/counters", id)
		if ids[place] != "" {
			a, b = ids[place], id
		}
		ids[place] = id
	}
	_, epochs := d.placed(t, a, b)
	for range 100 {
		require.Equal(t, epochs[0], d.sees(t, a).Epoch)
		require.Equal(t, epochs[1], d.sees(t, b).Epoch)
	}
	// The place goes to who is asked for.
	until(t, func() bool { d.sees(t, a); return d.remembers(a) })
	until(t, func() bool { d.sees(t, b); return d.remembers(b) })
}

func requireNotHeard(t *testing.T, client rueidis.Client) {
	t.Helper()
	_, is := client.(*hearing)
	require.False(t, is)
	require.Nil(t, openOn(client, time.Hour).sightings.places)
}

func TestOnlyAClientOfOneServerIsHeard(t *testing.T) {
	t.Parallel()
	option := server.ClientOption()
	option.OnInvalidations = func([]rueidis.RedisMessage) {}
	hosts, err := NewClient(option)
	require.NoError(t, err)
	t.Cleanup(hosts.Close)
	requireNotHeard(t, hosts)

	option = server.ClientOption()
	option.Standalone.ReplicaAddress = option.InitAddress
	option.SendToReplicas = func(rueidis.Completed) bool { return false }
	replicated, err := NewClient(option)
	require.NoError(t, err)
	t.Cleanup(replicated.Close)
	requireNotHeard(t, replicated)

	many, err := NewClient(rueidis.ClientOption{InitAddress: cluster.Addrs()})
	require.NoError(t, err)
	t.Cleanup(many.Close)
	requireNotHeard(t, many)

	option = server.ClientOption()
	option.InitAddress = nil
	_, err = NewClient(option)
	require.Error(t, err)
}
