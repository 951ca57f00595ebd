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

// The users that docs/threats.md advises can do everything that pinboard and its
// client do, and nothing to other keys.
func TestARedisUserNeedsNoMore(t *testing.T) {
	t.Parallel()
	rules := advisedUsers(t)
	require.Len(t, rules, 2)
	for _, rule := range rules {
		const password = "planted-password-of-pinboard"
		own := redistest.New(t, redistest.Options{})
		admin := own.Client(t)
		args := strings.Fields(strings.ReplaceAll(rule, "PASSWORD", password))
		require.NoError(t, admin.Do(t.Context(), admin.B().Arbitrary("ACL").Args(args...).Build()).Error())
		option := own.ClientOption()
		option.Username, option.Password = "pinboard", password
		client := redistest.NewClient(t, option)
		d := openAs(client, "pinboard", time.Minute)
		useAll(t, d)
		// What rueidis asks on its own: of a server that Sentinels name, and of one that
		// a slot is about to move to.
		require.NoError(t, client.Do(t.Context(), client.B().Role().Build()).Error())
		for _, command := range []string{"ASKING", "CLUSTER SLOTS"} {
			err := client.Do(t.Context(), client.B().Arbitrary(strings.Fields(command)...).Build()).Error()
			require.ErrorContains(t, err, "cluster support disabled", command) // and not that it may not
		}
		log, err := admin.Do(t.Context(), admin.B().Arbitrary("ACL", "LOG").Build()).ToArray()
		require.NoError(t, err)
		require.Empty(t, log, "what was refused so far")

		for _, command := range [][]string{
			{"SET", "others", "1"}, {"GET", "others"}, {"KEYS", "*"}, {"FLUSHALL"}, {"FLUSHDB"}, {"CONFIG", "GET", "*"}, {"ACL", "LIST"},
			{"EVAL", "return redis.call('GET', 'others')", "0"}, {"SHUTDOWN"}, {"MONITOR"}, {"REPLICAOF", "NO", "ONE"},
			{"CLIENT", "KILL", "TYPE", "normal"}, {"CLIENT", "PAUSE", "1"},
		} {
			err := client.Do(t.Context(), client.B().Arbitrary(command[0]).Args(command[1:]...).Build()).Error()
			refused, ok := rueidis.IsRedisErr(err)
			require.True(t, ok, "%v: %v", command, err)
			require.Regexp(t, "can't run|can't access|No permissions|no permissions|ACL failure", refused.Error(), command)
		}
	}
}

// advisedUsers returns the rules of docs/threats.md: for Redis 7, and for 6.2.
func advisedUsers(t *testing.T) (rules []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/threats.md")
	require.NoError(t, err)
	for _, rule := range regexp.MustCompile("`ACL (SETUSER pinboard on >PASSWORD [^`]*)`").FindAllStringSubmatch(string(text), -1) {
		rules = append(rules, rule[1])
	}
	return rules
}

// Redis 6.2 takes no subcommand from a command that a user has, and keys to be read
// or written alone are new in 7.
func TestTheRuleForRedis62HasNothingOfRedis7(t *testing.T) {
	t.Parallel()
	seven, six := advisedUsers(t)[0], advisedUsers(t)[1]
	newer := regexp.MustCompile(`\s(-\S+\||%|\(|clearselectors)`)
	require.Regexp(t, newer, seven)
	require.NotRegexp(t, newer, six)
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
