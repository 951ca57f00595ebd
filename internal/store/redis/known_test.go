package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// placed registers a session and has ids placed on it.
func (d *directory) placed(t *testing.T, ids ...string) (sessionID string, epochs []int64) {
	t.Helper()
	r := registration("known")
	_, err := d.Register(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, d.Activate(t.Context(), r.SessionID))
	return r.SessionID, d.move(t, r.SessionID, ids...)
}

// move has ids placed anew on the session.
func (d *directory) move(t *testing.T, sessionID string, ids ...string) (epochs []int64) {
	t.Helper()
	hasty := openAs(d.client, d.keys.prefix, time.Millisecond)
	for _, id := range ids {
		until(t, func() bool {
			_, err := d.Release(t.Context(), []wire.Release{{SessionID: sessionID, Namespace: "/counters", ID: id}})
			require.NoError(t, err)
			res, err := hasty.Resolve(t.Context(), store.Request{Namespace: "/counters", ID: id, View: store.AnyView, BalanceFactor: 1})
			require.NoError(t, err)
			epochs = append(epochs, res.Epoch)
			return res.Outcome == store.Placed
		})
	}
	return epochs[len(epochs)-len(ids):]
}

// calls returns how often each command has run since the last time.
func calls(t *testing.T, client rueidis.Client) map[string]int {
	t.Helper()
	text, err := client.Do(t.Context(), client.B().Info().Section("commandstats").Build()).ToString()
	require.NoError(t, err)
	require.NoError(t, client.Do(t.Context(), client.B().ConfigResetstat().Build()).Error())
	all := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(rest, ",")
		if all[name], err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	delete(all, "config|resetstat")
	delete(all, "info")
	delete(all, "ping") // a client that has been idle for a second
	return all
}

// connects makes a client that is closed when the test ends.
type connects func(t testing.TB, option rueidis.ClientOption) rueidis.Client

// connectHearing is for clients that are heard.
func connectHearing(t testing.TB, option rueidis.ClientOption) rueidis.Client {
	t.Helper()
	client, err := NewClient(option)
	require.NoError(t, err)
	require.IsType(t, (*hearing)(nil), client)
	t.Cleanup(client.Close)
	return client
}

// onBoth runs a test with a client of the host's, and with one that is heard.
func onBoth(t *testing.T, test func(t *testing.T, client connects)) {
	t.Helper()
	t.Parallel()
	for name, client := range map[string]connects{"host's": redistest.NewClient, "heard": connectHearing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, client)
		})
	}
}

func TestWhatIsKnownCostsNoCommand(t *testing.T) { onBoth(t, whatIsKnownCostsNoCommand) }

func whatIsKnownCostsNoCommand(t *testing.T, client connects) {
	own := redistest.New(t, redistest.Options{})
	admin := own.Client(t)
	d := openOn(client(t, own.ClientOption()), time.Hour)
	ids := someIDs(100)
	session, epochs := d.placed(t, ids...)
	look := func() {
		for i, id := range ids {
			known, err := d.Known(t.Context(), "/counters", id)
			require.NoError(t, err)
			require.Equal(t, session, known.SessionID)
			require.Equal(t, epochs[i], known.Epoch)
		}
	}
	look()
	calls(t, admin)
	for range 10 {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: session, Headroom: 5})
		require.NoError(t, err)
		calls(t, admin)
		look()
		require.Empty(t, calls(t, admin), "right after a heartbeat")
	}
	// One that moves costs one read, and the others nothing: a change is told by
	// hash, which few ids share.
	epochs[7] = d.move(t, session, ids[7])[0]
	until(t, func() bool {
		known, err := d.Known(t.Context(), "/counters", ids[7])
		return err == nil && known.Epoch == epochs[7]
	})
	calls(t, admin)
	look()
	require.Less(t, calls(t, admin)["hget"], 5)
}

// What is told comes before the answer to a command that was sent after the change:
// a node knows of it one round trip later, whoever made it.
func TestAMoveIsKnownOneRoundTripLater(t *testing.T) { onBoth(t, aMoveIsKnownOneRoundTripLater) }

func aMoveIsKnownOneRoundTripLater(t *testing.T, client connects) {
	writer := open(t, time.Hour)
	option := server.ClientOption()
	option.PipelineMultiplex = -1 // one connection, so that it is the one that is told
	d := openAs(client(t, option), writer.keys.prefix, time.Hour)
	session, _ := writer.placed(t, "x")
	for range 500 {
		for range 2 { // the second one remembers
			_, err := d.Known(t.Context(), "/counters", "x")
			require.NoError(t, err)
		}
		epoch := writer.move(t, session, "x")[0]
		key := d.keys.of("/counters", "x").meta()
		require.NoError(t, d.client.Do(t.Context(), d.client.B().Exists().Key(key).Build()).Error())
		known, err := d.Known(t.Context(), "/counters", "x")
		require.NoError(t, err)
		require.Equal(t, epoch, known.Epoch)
	}
}

// A host may hand over a client that is not told of changes, or not of all.
func TestAClientThatIsNotToldKnowsNothing(t *testing.T) { onBoth(t, aClientThatIsNotToldKnowsNothing) }

func aClientThatIsNotToldKnowsNothing(t *testing.T, client connects) {
	own := redistest.New(t, redistest.Options{})
	admin := own.Client(t)
	for name, change := range map[string]func(*rueidis.ClientOption){
		"without a cache": func(o *rueidis.ClientOption) { o.DisableCache = true },
		"RESP2":           func(o *rueidis.ClientOption) { o.AlwaysRESP2, o.DisableCache = true, true },
		"not of its own":  func(o *rueidis.ClientOption) { o.ClientTrackingOptions = []string{"OPTIN", "NOLOOP"} },
		"of some keys":    func(o *rueidis.ClientOption) { o.ClientTrackingOptions = []string{"BCAST", "PREFIX", "others:"} },
	} {
		option := own.ClientOption()
		change(&option)
		d := openOn(client(t, option), time.Hour)
		d.placed(t, "x")
		calls(t, admin)
		for range 100 {
			_, err := d.Known(t.Context(), "/counters", "x")
			require.ErrorIs(t, err, store.ErrNotTracked, name)
		}
		asked := calls(t, admin)
		require.LessOrEqual(t, asked["client|trackinginfo"], 1, name)
		delete(asked, "client|trackinginfo")
		delete(asked, "ping") // the client's own, now and again
		require.Empty(t, asked, name)
	}
	for name, options := range map[string][]string{"of all keys": {"BCAST"}, "unless it says so": {"OPTOUT"}} {
		option := own.ClientOption()
		option.ClientTrackingOptions = options
		d := openOn(client(t, option), time.Hour)
		session, _ := d.placed(t, "x")
		for range 3 {
			epoch := d.move(t, session, "x")[0]
			until(t, func() bool {
				known, err := d.Known(t.Context(), "/counters", "x")
				require.NoError(t, err, name)
				return known.Epoch == epoch
			})
		}
	}
}

func TestWhatIsKnownIsForgottenWithTheStore(t *testing.T) {
	onBoth(t, whatIsKnownIsForgottenWithTheStore)
}

func whatIsKnownIsForgottenWithTheStore(t *testing.T, client connects) {
	own := redistest.New(t, redistest.Options{})
	d := openOn(client(t, own.ClientOption()), time.Hour)
	session, _ := d.placed(t, "x")
	knows := func(sessionID string) func() bool {
		return func() bool {
			known, err := d.Known(t.Context(), "/counters", "x")
			return err == nil && known.SessionID == sessionID && (sessionID != "") == (known.Generation != "")
		}
	}
	until(t, knows(session))
	require.NoError(t, d.client.Do(t.Context(), d.client.B().Flushall().Build()).Error())
	until(t, knows(""))
	session, _ = d.placed(t, "x")
	until(t, knows(session))
	own.Restart(t) // without its memory
	until(t, knows(""))
}

// hushed is a connection from which nothing comes while it is shut, and that nobody
// has closed.
type hushed struct {
	net.Conn
	gate *gates
}

type gates struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

func (g *gates) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gates) reopen() { close(g.now()) }

func (g *gates) now() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

func (c hushed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	<-c.gate.now()
	return n, err
}

// behindGate returns a client whose connections can be made to go silent.
func behindGate(t *testing.T, own *redistest.Server, connect connects) (rueidis.Client, *gates) {
	t.Helper()
	g := &gates{open: make(chan struct{})}
	close(g.open)
	option := own.ClientOption()
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, c)
		return hushed{conn, g}, err
	}
	client := connect(t, option)
	t.Cleanup(func() {
		select {
		case <-g.now():
		default:
			g.reopen() // or the client would not end
		}
	})
	return client, g
}

// A connection that has gone silent without having ended is not believed: what is
// known is as old as AsOf says, however often it is asked for, until it is not known
// any more.
func TestASilentConnectionMakesNothingLookYoung(t *testing.T) {
	onBoth(t, aSilentConnectionMakesNothingLookYoung)
}

func aSilentConnectionMakesNothingLookYoung(t *testing.T, connect connects) {
	own := redistest.New(t, redistest.Options{})
	const lease = 3 * time.Second
	writer := openOn(own.Client(t), time.Hour)
	client, gate := behindGate(t, own, connect)
	d := openAs(client, writer.keys.prefix, lease)
	session, epochs := writer.placed(t, "x")
	until(t, func() bool {
		known, err := d.Known(t.Context(), "/counters", "x")
		return err == nil && known.SessionID == session
	})
	gate.shut()
	moved := writer.move(t, session, "x")[0]
	at := time.Now()
	believed := 0
	until(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		known, err := d.Known(ctx, "/counters", "x")
		if err != nil {
			return true
		}
		require.Equal(t, epochs[0], known.Epoch)
		require.True(t, known.AsOf.Before(at), "it has moved by then")
		believed++
		return false
	})
	require.Positive(t, believed, "nothing was tried")
	gate.reopen()
	until(t, func() bool {
		known, err := d.Known(t.Context(), "/counters", "x")
		return err == nil && known.Epoch == moved && known.AsOf.After(at)
	})
}

// The client's cache goes by the wall clock, which may be set back.
func TestALineThatWasNotHeardOfForLongIsAskedUnderAnotherName(t *testing.T) {
	t.Parallel()
	var all lines
	l := all.of(keys{"k", 1}, "/b", "x")
	now := time.Now()
	l.renew(now)
	require.Zero(t, l.turn, "nothing has been heard yet")
	l.heard(now)
	require.Equal(t, now, l.asked)
	l.heard(now.Add(-time.Second))
	require.Equal(t, now, l.asked, "an answer that is late")
	l.renew(now.Add(-time.Second))
	require.Zero(t, l.turn)
	l.renew(now.Add(time.Second))
	require.Equal(t, 1, l.turn)
	for i := range 2 * maxLines {
		all.of(keys{"k", 1}, fmt.Sprint(i), "x")
	}
	require.LessOrEqual(t, len(all.byBucket), maxLines)
}

// What is at hand is told at once also where nothing may be asked.
func TestALookAsksForNothing(t *testing.T) { onBoth(t, aLookAsksForNothing) }

func aLookAsksForNothing(t *testing.T, client connects) {
	own := redistest.New(t, redistest.Options{})
	admin := own.Client(t)
	d := openOn(client(t, own.ClientOption()), time.Hour)
	session, _ := d.placed(t, "x")
	calls(t, admin)
	_, err := d.Known(store.AtHand, "/counters", "x")
	require.ErrorIs(t, err, context.Canceled, "whether changes are told of was not asked either")
	require.Empty(t, calls(t, admin))
	_, err = d.Known(t.Context(), "/counters", "y")
	require.NoError(t, err)
	calls(t, admin)
	_, err = d.Known(store.AtHand, "/counters", "x")
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, calls(t, admin))
	_, err = d.Known(t.Context(), "/counters", "x")
	require.NoError(t, err)
	calls(t, admin)
	for range 1000 {
		known, err := d.Known(store.AtHand, "/counters", "x")
		require.NoError(t, err)
		require.Equal(t, session, known.SessionID)
		_, err = d.atHand(d.lines.of(d.keys, "/counters", "x"), "x")
		require.NoError(t, err)
	}
	require.Empty(t, calls(t, admin))
}

func TestAMalformedRowIsAnError(t *testing.T) {
	t.Parallel()
	d := open(t, time.Hour)
	for _, row := range []string{"", "1", "x s", "1.5 s", "99999999999999999999 s"} {
		id := "id" + row
		key := d.keys.of("/counters", id).rows(d.keys.leaf(id))
		require.NoError(t, d.client.Do(t.Context(), d.client.B().Hset().Key(key).FieldValue().FieldValue(id, row).Build()).Error())
		_, err := d.Known(t.Context(), "/counters", id)
		require.ErrorIs(t, err, errForm, row)
	}
}
