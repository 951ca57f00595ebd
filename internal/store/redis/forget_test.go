package redis

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// unremembered has the fleet's memory of all clients be over, as a day after
// their last session.
func (d *directory) unremembered(t *testing.T) {
	t.Helper()
	for _, key := range d.scan(t) {
		rest, fleet := strings.CutPrefix(key, string(d.keys.fleet()))
		if fleet && slices.Contains([]string{"c", "g", "m", "w", "x"}, strings.Split(rest, ":")[0]) {
			require.NoError(t, d.client.Do(t.Context(), d.client.B().Del().Key(key).Build()).Error())
		}
	}
}

func (d *directory) known(t *testing.T) []string {
	t.Helper()
	names, err := d.client.Do(t.Context(), d.client.B().Smembers().Key(d.keys.fleet().namespaces()).Build()).AsStrSlice()
	require.NoError(t, err)
	return names
}

func (d *directory) sweepAll(t *testing.T) {
	t.Helper()
	for more := true; more; {
		var err error
		_, more, err = d.Sweep(t.Context())
		require.NoError(t, err)
	}
}

// forgetClients takes away the buckets' entries of clients, which are kept for
// an hour.
func (d *directory) forgetClients(t *testing.T) {
	t.Helper()
	for _, b := range d.keys.buckets(d.known(t)) {
		require.NoError(t, d.client.Do(t.Context(), d.client.B().Del().Key(b.clients()).Build()).Error())
	}
}

func TestABindingThatNobodyRemembersIsForgotten(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	var sessions []string
	for _, hostname := range []string{"", "a.example", "b.example"} {
		r := registration("client" + hostname)
		r.Hostname = hostname
		r.Instances = map[string][]string{"/counters": {"x"}}
		_, err := d.Register(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, d.Activate(t.Context(), r.SessionID))
		sessions = append(sessions, r.SessionID)
	}
	require.Len(t, d.known(t), 3)
	for _, sid := range sessions {
		require.NoError(t, d.Deregister(t.Context(), sid))
	}
	d.sweepAll(t)
	require.Len(t, d.known(t), 3, "a day has not passed")
	d.unremembered(t)
	d.sweepAll(t)
	require.Len(t, d.known(t), 3, "late registrations are kept out for an hour")

	d.forgetClients(t)
	d.sweepAll(t)
	require.Empty(t, d.known(t))
	for _, key := range d.scan(t) {
		require.True(t, strings.HasSuffix(key, ":hosts"), "left behind: %s", key) // it has a TTL
	}
	d.joined(t, "again")
	require.Len(t, d.known(t), 1)
}

// A worker may register between the steps of forgetting.
func TestABindingThatIsServedAgainIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	require.NoError(t, d.Deregister(t.Context(), d.joined(t, "a")))
	d.sweepAll(t)
	d.unremembered(t)
	d.forgetClients(t)
	vacant, err := d.vacant(t.Context(), d.known(t), false)
	require.NoError(t, err)
	require.Equal(t, []string{"/counters"}, vacant)
	sid := d.joined(t, "b")
	b := d.keys.bucket("/counters", 0)
	answer := d.run(t.Context(), forgetScript.with([]string{b.meta(), b.sessions(), b.candidates(), b.clients(), b.leaves()}))
	require.False(t, answer.flag(), "its bucket is in use")
	vacant, err = d.vacant(t.Context(), vacant, true)
	require.NoError(t, err)
	require.Empty(t, vacant)
	require.Len(t, d.known(t), 1)
	res, err := d.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	require.NotEqual(t, store.UnknownNamespace, res.Outcome)
	_, err = d.Session(context.Background(), sid)
	require.NoError(t, err)
}

// A row keeps its binding: nobody else would take it away.
func TestABindingWithRowsIsNotForgotten(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	r := registration("a")
	r.Instances = map[string][]string{"/counters": {"x"}}
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Deregister(t.Context(), r.SessionID))
	d.unremembered(t)
	d.forgetClients(t)
	require.NoError(t, d.forget(t.Context(), d.known(t)))
	require.Len(t, d.known(t), 1)
	d.sweepAll(t)
	require.Empty(t, d.known(t))
}
