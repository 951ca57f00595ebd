package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// A node that dies between the fleet and the buckets leaves the displaced among
// the candidates: their own heartbeats make up for that.
func TestAHeartbeatOfTheDisplacedTellsItsBuckets(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	old := d.joined(t, "old")
	next := registration("next")
	next.Epoch = 1
	_, err := d.admit(t.Context(), &next) // and no more
	require.NoError(t, err)
	view, err := d.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Len(t, view.Candidates, 1)

	var superseded *store.Superseded
	for range 2 {
		_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: old})
		require.ErrorAs(t, err, &superseded)
		view, err = d.Candidates(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.Empty(t, view.Candidates)
	}
	require.Equal(t, "1", d.do1(t, "HGET", d.keys.bucket("/counters", 0).session(old), "stopped"))
}

// A heartbeat that the fleet had admitted finds the session stopped in a bucket.
func TestAHeartbeatThatADisplacementOvertakesIsToldOfIt(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	old := d.joined(t, "old")
	overtaken := openAs(&between{Client: d.client, script: applyScript, do: func() {
		next := registration("next")
		next.Epoch = 1
		if _, err := d.Register(t.Context(), next); err != nil {
			t.Error(err)
		}
	}}, d.keys.prefix, time.Hour)
	_, err := overtaken.Heartbeat(t.Context(), store.Beat{SessionID: old})
	var superseded *store.Superseded
	require.ErrorAs(t, err, &superseded)
}

// A registration may be displaced itself before it has got to its buckets. It
// keeps what it reclaimed until its lease is over, and is told at its next beat.
func TestARegistrationThatIsDisplacedOnItsWayIsToldAtItsNextBeat(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	higher := registration("higher")
	higher.Epoch = 2
	overtaken := openAs(&between{Client: d.client, script: joinScript, do: func() {
		if _, err := d.Register(t.Context(), higher); err != nil {
			t.Error(err)
		}
	}}, d.keys.prefix, time.Hour)
	r := registration("a")
	r.Epoch = 1
	r.Instances = map[string][]string{"/counters": {"x"}}
	_, err := overtaken.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	view, err := d.Candidates(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Empty(t, view.Candidates, "the higher is not active yet")
	row, err := d.Lookup(t.Context(), "/counters", "x")
	require.NoError(t, err)
	require.Equal(t, r.SessionID, row.SessionID)
	_, err = d.Heartbeat(t.Context(), store.Beat{SessionID: r.SessionID})
	var superseded *store.Superseded
	require.ErrorAs(t, err, &superseded)
}

// More sessions than one script handles give way first, and the registration
// comes last: when it is refused, or its node dies, nothing was registered.
func TestManyGiveWayBeforeTheRegistration(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	const old = 2*maxGiveWay + 1
	for i := range old {
		d.joined(t, fmt.Sprint("old-", i))
	}
	r := registration("next")
	r.Epoch = 1
	times := 0
	counting := openAs(&before{Client: d.client, script: registerScript, do: func() {
		times++
		require.Equal(t, "0", d.do1(t, "EXISTS", d.keys.fleet().session(r.SessionID)))
	}}, d.keys.prefix, time.Hour)
	ans, err := counting.Register(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, ans.Displaced, old)
	require.Equal(t, 3, times)
}

func TestARegistrationRunTwiceTellsTwiceWhoGaveWay(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	old := d.joined(t, "old")
	r := registration("next")
	r.Epoch = 3
	for range 2 {
		admitted, err := d.admit(t.Context(), &r)
		require.NoError(t, err)
		require.Len(t, admitted.others, 1)
		require.Equal(t, old, admitted.others[0].sid)
		require.True(t, admitted.others[0].displaced)
		require.Equal(t, []string{"/counters"}, admitted.others[0].bindings)
	}
}

// What a directory keeps to compare epochs does not pile up with deployments.
func TestClassesOfOldDeploymentsAreForgotten(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	former := "none"
	for epoch := range int64(30) {
		r := registration(fmt.Sprint("client-", epoch))
		r.Epoch = epoch
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, d.Deregister(t.Context(), former))
		former = r.SessionID
	}
	kinds := map[string]int{}
	for _, key := range d.scan(t) {
		_, name, _ := strings.Cut(key, "}:")
		kind, _, _ := strings.Cut(name, ":")
		kinds[kind]++
	}
	require.Equal(t, 1, kinds["m"], "the members of the last one")
	// The class of the one before, and that of it displaced, go with the next
	// registration.
	require.Equal(t, "3", d.do1(t, "SCARD", string(d.keys.fleet())+"g:%2Fcounters"))
}

// before is a client that does something whenever a script is about to run.
type before struct {
	rueidis.Client
	script *script
	do     func()
}

func (b *before) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[1] == b.script.digest {
		b.do()
	}
	return b.Client.Do(ctx, cmd)
}
