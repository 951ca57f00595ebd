package redis

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// The user that docs/threats.md advises can do everything that pinboard does,
// and nothing to other keys.
func TestARedisUserNeedsNoMore(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/threats.md")
	require.NoError(t, err)
	advised := regexp.MustCompile("`ACL (SETUSER pinboard on >PASSWORD [^`]*)`").FindSubmatch(text)
	require.Len(t, advised, 2)
	const password = "planted-password-of-pinboard"
	own := redistest.New(t, redistest.Options{})
	rule := strings.Fields(strings.ReplaceAll(string(advised[1]), "PASSWORD", password))
	admin := own.Client(t)
	require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary("ACL").Args(rule...).Build()).Error())
	option := own.ClientOption()
	option.Username, option.Password = "pinboard", password
	client := redistest.NewClient(t, option)
	d := openAs(client, "pinboard", time.Minute)
	useAll(t, d)

	for _, command := range [][]string{
		{"SET", "others", "1"}, {"GET", "others"}, {"KEYS", "*"}, {"FLUSHALL"}, {"FLUSHDB"}, {"CONFIG", "GET", "*"}, {"ACL", "LIST"},
		{"EVAL", "return redis.call('GET', 'others')", "0"}, {"SHUTDOWN"}, {"MONITOR"}, {"CLIENT", "KILL", "TYPE", "normal"}, {"REPLICAOF", "NO", "ONE"},
	} {
		err := client.Do(t.Context(), client.B().Arbitrary(command[0]).Args(command[1:]...).Build()).Error()
		refused, ok := rueidis.IsRedisErr(err)
		require.True(t, ok, "%v: %v", command, err)
		require.Regexp(t, "can't run|can't access|No permissions|no permissions|ACL failure", refused.Error(), command)
	}
}

// useAll calls everything that a store does.
func useAll(t *testing.T, d *directory) {
	t.Helper()
	ctx, deadline := t.Context(), time.Minute
	reg := store.Registration{
		SessionID: "session-1", ClientID: "client", Secret: wire.NewSecret("planted-secret-of-a-client"), Namespaces: []string{"/a"},
		AdvertiseURL: "http://h", Headroom: 5, Instances: map[string][]string{"/a": {"kept"}},
	}
	require.NoError(t, d.CheckRegister(ctx, reg))
	_, err := d.Register(ctx, reg)
	require.NoError(t, err)
	reg.SessionID = "session-2" // the same process again
	_, err = d.Register(ctx, reg)
	require.NoError(t, err)
	require.NoError(t, d.Activate(ctx, "session-2"))
	_, err = d.Heartbeat(ctx, store.Beat{SessionID: "session-2", Headroom: 5})
	require.NoError(t, err)
	require.NoError(t, d.SetDegraded(ctx, "session-2", false))
	_, err = d.Candidates(ctx, "/a", "x")
	require.NoError(t, err)
	_, err = d.Resolve(ctx, store.Request{Namespace: "/a", ID: "x", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	_, err = d.Resolve(ctx, store.Request{Namespace: "/a", ID: "kept", View: store.AnyView, BalanceFactor: 1})
	require.NoError(t, err)
	row, err := d.Lookup(ctx, "/a", "kept")
	require.NoError(t, err)
	require.Equal(t, "session-2", row.SessionID)
	for range 2 {
		known, err := d.Known(ctx, "/a", "kept")
		require.NoError(t, err)
		require.Equal(t, "session-2", known.SessionID)
	}
	rows, _, err := d.Rows(ctx, "/a", "", 10)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	counts, err := d.Counts(ctx, []store.Session{{ID: "session-2", Namespaces: []string{"/a"}}})
	require.NoError(t, err)
	require.Equal(t, [][]int{{1}}, counts)
	require.NoError(t, d.Record(ctx, []store.Event{{Kind: store.EventDrained, Namespaces: []string{"/a"}, ClientID: "client"}}))
	events, _, err := d.Events(ctx, store.EventQuery{Limit: 10})
	require.NoError(t, err)
	require.Len(t, events, 1)
	_, err = d.Quarantine(ctx)
	require.NoError(t, err)
	_, err = d.Session(ctx, "session-2")
	require.NoError(t, err)
	_, err = d.States(ctx, []store.SessionKey{{SessionID: "session-2", ClientID: "client"}, {SessionID: "session-1", ClientID: "client"}})
	require.NoError(t, err)
	live, err := d.Live(ctx)
	require.NoError(t, err)
	require.Len(t, live, 1)
	_, err = d.Client(ctx, "client")
	require.NoError(t, err)
	require.NoError(t, d.WindDown(ctx, "/a", "kept", &deadline))
	_, err = d.Drain(ctx, "client", &deadline)
	require.NoError(t, err)
	require.NoError(t, d.Undrain(ctx, "client"))
	beat, err := d.Heartbeat(ctx, store.Beat{SessionID: "session-2", Headroom: 5})
	require.NoError(t, err)
	require.Len(t, beat.Messages, 1)
	_, err = d.Heartbeat(ctx, store.Beat{SessionID: "session-2", Headroom: 5, Acks: []string{beat.Messages[0].ID}})
	require.NoError(t, err)
	released, err := d.Release(ctx, []wire.Release{{SessionID: "session-2", Namespace: "/a", ID: "kept"}})
	require.NoError(t, err)
	require.Equal(t, 1, released)
	// Another deployment takes over.
	next := store.Registration{
		SessionID: "session-3", ClientID: "next", Secret: wire.NewSecret("planted-secret-of-the-next"), Namespaces: []string{"/a"},
		AdvertiseURL: "http://i", Epoch: 1,
	}
	_, err = d.Register(ctx, next)
	require.NoError(t, err)
	require.NoError(t, d.Deregister(ctx, "session-2"))
	require.NoError(t, d.Deregister(ctx, "session-3"))
	for more := true; more; {
		_, more, err = d.Sweep(ctx)
		require.NoError(t, err)
	}
	require.NoError(t, d.Ping(ctx))
}
