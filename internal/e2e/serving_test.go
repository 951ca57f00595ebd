package e2e_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// TestServing is what clients, callers and operators see of a fleet in which
// nothing goes wrong.
func TestServing(t *testing.T) {
	t.Parallel()
	onPairings(t, func(t *testing.T, p pairing) {
		f := newFleet(t, p.store)
		ws := f.startWorkers(t, plan{kind: p.subject}, plan{kind: p.other, headroom: 1})
		first, second := ws[0], ws[1]

		t.Run("workers are listed, without their secrets", func(t *testing.T) { listsWorkers(t, f, first, second) })
		t.Run("operators see workers' stats and what happened", func(t *testing.T) { showsStats(t, f, first, second) })
		t.Run("an id has one owner and one epoch", func(t *testing.T) { hasOneOwner(t, f, first) })
		t.Run("simultaneous first requests find one instance", func(t *testing.T) { findOneInstance(t, f) })
		t.Run("50 MB go up and come down unchanged", func(t *testing.T) { carriesMuch(t, f) })
		t.Run("an event arrives before the next is made", func(t *testing.T) { streamsEvents(t, f) })
		t.Run("a client that leaves ends its stream at the worker", func(t *testing.T) { endsLeftStreams(t, f, first) })
		t.Run("a WebSocket carries both ways", func(t *testing.T) { echoes(t, f) })
		t.Run("an account arrives with subject, scopes and claims", func(t *testing.T) { tellsAccounts(t, f) })
		t.Run("no token of pinboard's reaches a worker", func(t *testing.T) { hidesTokens(t, f) })
		t.Run("no spelling of a forged header reaches a worker", func(t *testing.T) { dropsForgeries(t, f) })
		t.Run("a worker refuses what does not come through pinboard", func(t *testing.T) { refusesDirectCalls(t, first) })
		t.Run("instances call each other, caller and depth arrive", func(t *testing.T) { callsInstances(t, f, first, second) })
		t.Run("a caller's own worker is preferred for what it calls first", func(t *testing.T) { prefersCallers(t, f, first, second) })
	})
}

func listsWorkers(t *testing.T, f *fleet, ws ...*worker) {
	raw := f.client.call(t, http.MethodGet, f.url()+"/registry/workers", bearer(f.operatorToken)).requireStatus(t, http.StatusOK)
	require.Equal(t, "no-store", raw.header.Get("Cache-Control"))
	require.Len(t, f.listWorkers(t), len(ws))
	for _, w := range ws {
		require.NotContains(t, string(raw.body), w.secret)
		l, ok := w.listed(t)
		require.True(t, ok)
		require.NotEmpty(t, l.ClientID)
		require.NotEmpty(t, l.SessionID)
		slices.Sort(l.Namespaces)
		require.Equal(t, []string{"/kept", "/members", "/rooms"}, l.Namespaces)
		require.False(t, l.Draining)
		require.False(t, l.Degraded)
		require.Positive(t, l.ExpiresInMs)
		require.LessOrEqual(t, l.ExpiresInMs, lease.Milliseconds())
	}
	f.client.call(t, http.MethodGet, f.url()+"/registry/workers", bearer(f.fleetToken)).requireStatus(t, http.StatusForbidden)
	f.client.call(t, http.MethodGet, f.url()+"/registry/workers").requireStatus(t, http.StatusUnauthorized)
}

func showsStats(t *testing.T, f *fleet, ws ...*worker) {
	f.state(t, "shown")
	raw := f.client.call(t, http.MethodGet, f.url()+"/registry/stats", bearer(f.operatorToken)).requireStatus(t, http.StatusOK)
	var all map[string]struct {
		Error     string
		Instances []struct{ Namespace, ID string }
		Process   struct{ UptimeMs float64 }
	}
	raw.decode(t, &all)
	require.Len(t, all, len(ws))
	shown := 0
	for _, w := range ws {
		require.NotContains(t, string(raw.body), w.secret)
		l, ok := w.listed(t)
		require.True(t, ok)
		s := all[l.ClientID]
		require.Empty(t, s.Error)
		require.Positive(t, s.Process.UptimeMs)
		for _, i := range s.Instances {
			if i.Namespace == "/rooms" && i.ID == "shown" {
				shown++
			}
		}
	}
	require.Equal(t, 1, shown)
	var where struct {
		ClientID string
		Why      struct{ Cause, Choice string }
	}
	f.client.call(t, http.MethodGet, f.url()+"/registry/placement?namespace=/rooms&id=shown", bearer(f.operatorToken)).decode(t, &where)
	require.Contains(t, all, where.ClientID)
	require.Equal(t, "new", where.Why.Cause)
	var events struct {
		Events []struct{ Kind, ClientID string }
	}
	f.client.call(t, http.MethodGet, f.url()+"/registry/events?kind=registered", bearer(f.operatorToken)).decode(t, &events)
	require.GreaterOrEqual(t, len(events.Events), len(ws))
}

func hasOneOwner(t *testing.T, f *fleet, favoured *worker) {
	before := f.state(t, "one")
	f.requirePlaced(t, before, favoured)
	for count := 1; count <= 5; count++ {
		s := f.add(t, "one")
		require.Equal(t, count, s.Count)
		require.Equal(t, before.Epoch, s.Epoch)
		require.Equal(t, before.PID, s.PID)
	}
	other := f.state(t, "another")
	require.Zero(t, other.Count)
	require.Greater(t, other.Epoch, before.Epoch)
}

func findOneInstance(t *testing.T, f *fleet) {
	const many = 20
	answers := make([]answer, many)
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			answers[i], _ = f.client.try(t.Context(), http.MethodPost, room(f.url(), "crowd", "add"))
		})
	}
	group.Wait()
	counts := make([]int, many)
	for i, a := range answers {
		var s state
		a.decode(t, &s)
		counts[i] = s.Count
	}
	slices.Sort(counts)
	for i, count := range counts {
		require.Equal(t, i+1, count, "counts of one instance: %v", counts)
	}
}

func carriesMuch(t *testing.T, f *fleet) {
	blob := make([]byte, 50<<20)
	_, _ = rand.Read(blob)
	sum := sha256.Sum256(blob)
	var got struct {
		Bytes  int
		SHA256 string
	}
	f.client.call(t, http.MethodPut, room(f.url(), "big", "blob"), content(blob)).decode(t, &got)
	require.Equal(t, len(blob), got.Bytes)
	require.Equal(t, hex.EncodeToString(sum[:]), got.SHA256)
	down := f.client.call(t, http.MethodGet, room(f.url(), "big", "blob")).requireStatus(t, http.StatusOK)
	require.Len(t, down.body, len(blob))
	require.Equal(t, sum, sha256.Sum256(down.body))
}

func streamsEvents(t *testing.T, f *fleet) {
	stream := f.openEvents(t, "events")
	// The worker makes each event only when told to, after the one before it
	// has arrived here.
	stream.requireNext(t, "0")
	f.poke(t, "events", "next")
	stream.requireNext(t, "1")
	f.poke(t, "events", "next")
	stream.requireNext(t, "2")
}

func endsLeftStreams(t *testing.T, f *fleet, owner *worker) {
	stream := f.openEvents(t, "left")
	stream.requireNext(t, "0")
	socket := f.openSocket(t, "left")
	echo(t, socket, websocket.MessageText, []byte("here"))
	require.Equal(t, 2, owner.connections(t, "left"))
	require.NoError(t, stream.body.Close())
	require.NoError(t, socket.CloseNow())
	awaitTrue(t, "the worker's ends are closed", func() bool { return owner.connections(t, "left") == 0 })
}

func echoes(t *testing.T, f *fleet) {
	socket := f.openSocket(t, "socket")
	echo(t, socket, websocket.MessageText, []byte("h\u00e9llo"))
	large := make([]byte, 1<<20)
	_, _ = rand.Read(large)
	echo(t, socket, websocket.MessageBinary, large)
	echo(t, socket, websocket.MessageText, []byte(""))
	require.NoError(t, socket.Close(websocket.StatusNormalClosure, "done"))
}

// who is whom an instance was called by.
type who struct {
	Kind          string
	NS, ID        string
	Depth         int
	Sub           string
	Scopes        []string
	Claims        map[string]any
	Authorization *string
}

func tellsAccounts(t *testing.T, f *fleet) {
	url := f.url() + "/members/m/who"
	f.client.call(t, http.MethodGet, url).requireStatus(t, http.StatusUnauthorized)
	f.client.call(t, http.MethodGet, url, bearer(f.operatorToken)).requireStatus(t, http.StatusForbidden)
	ada := who{
		Kind: "account", Sub: "ada", Scopes: []string{"chat", "write"},
		Claims: map[string]any{"team": "blue", "limits": map[string]any{"rooms": 3.0}},
	}
	for _, url := range []string{url, room(f.url(), "m", "who")} {
		var got who
		f.client.call(t, http.MethodGet, url, bearer(f.adaToken)).decode(t, &got)
		require.Equal(t, ada, got)
	}
}

func hidesTokens(t *testing.T, f *fleet) {
	var got who
	f.client.call(t, http.MethodGet, room(f.url(), "m", "who"), bearer(f.fleetToken)).decode(t, &got)
	require.Nil(t, got.Authorization)
	// A credential that is none of pinboard's is the application's own.
	got = who{}
	f.client.call(t, http.MethodGet, room(f.url(), "m", "who"), bearer("of-the-application")).decode(t, &got)
	require.Equal(t, "anonymous", got.Kind)
	require.NotNil(t, got.Authorization)
	require.Equal(t, "Bearer of-the-application", *got.Authorization)
}

// dropsForgeries has uvicorn in mind, which tells names in lower case, with
// underscores as they are.
func dropsForgeries(t *testing.T, f *fleet) {
	for _, name := range []string{
		"pinboard-attestation", "pinboard_attestation", "PINBOARD.ATTESTATION", "pinboard-epoch", "Pinboard_Epoch", "pinboard-subrequest-depth",
		"pinboard_from", "pinboard_session", "pinboard.session.secret", "pinned-x", "pinned_x", "x_forwarded_for", "X.Forwarded.Host",
	} {
		var got struct {
			Who     who
			Headers [][2]string
		}
		f.client.call(t, http.MethodGet, room(f.url(), "m", "headers"), header(name, "forged"), header("x_kept", "1")).decode(t, &got)
		require.Equal(t, "anonymous", got.Who.Kind, name)
		require.Contains(t, got.Headers, [2]string{"x_kept", "1"}, name)
		for _, sent := range got.Headers {
			require.NotEqual(t, "forged", sent[1], name)
			if strings.HasPrefix(sent[0], "pin") {
				require.Contains(t, []string{"pinboard-attestation", "pinboard-epoch"}, sent[0], name)
			}
		}
	}
}

func refusesDirectCalls(t *testing.T, w *worker) {
	a := w.fleet.client.call(t, http.MethodGet, room(w.url, "direct", "state"), header("Pinboard-Epoch", "1"))
	a.requireStatus(t, http.StatusForbidden)
	require.Empty(t, w.told("open", "direct"))
}

// relayed is what an instance answers that passed a call on.
type relayed struct {
	PID    int
	Who    who
	Status int
	Next   json.RawMessage
}

// relay has the first room call the second, that the third, and so on, and
// returns what each of them saw.
func (f *fleet) relay(t *testing.T, ids ...string) []relayed {
	t.Helper()
	hops := []string{}
	for _, id := range ids[1:] {
		hops = append(hops, "/rooms/"+id)
	}
	answer := f.client.post(t, room(f.url(), ids[0], "relay"), hops)
	var seen []relayed
	text := answer.requireStatus(t, http.StatusOK).body
	for range ids {
		var r relayed
		require.NoError(t, json.Unmarshal(text, &r), "%s", text)
		seen = append(seen, r)
		text = r.Next
	}
	return seen
}

// requireCallers checks a chain of calls: who called whom, from how deep, and
// which process answered.
func requireCallers(t *testing.T, seen []relayed, ids []string, owners ...*worker) {
	t.Helper()
	require.Equal(t, who{Kind: "anonymous"}, seen[0].Who)
	for i, r := range seen {
		require.Equal(t, owners[i].pid(), r.PID, "hop %d", i)
		if i > 0 {
			require.Equal(t, who{Kind: "instance", NS: "/rooms", ID: ids[i-1], Depth: i}, r.Who, "hop %d", i)
			require.Equal(t, http.StatusOK, seen[i-1].Status)
		}
	}
}

// callsInstances has an instance call one on the other worker, that one call
// back, and the first one call again, also another on its own worker.
func callsInstances(t *testing.T, f *fleet, first, second *worker) {
	f.favour(t, first)
	f.requirePlaced(t, f.state(t, "on-"+first.name), first)
	f.favour(t, second)
	f.requirePlaced(t, f.state(t, "on-"+second.name), second)
	f.requirePlaced(t, f.state(t, "also-on-"+second.name), second)
	ids := []string{"on-" + first.name, "on-" + second.name, "on-" + first.name, "on-" + second.name, "also-on-" + second.name}
	requireCallers(t, f.relay(t, ids...), ids, first, second, first, second, second)
}

func prefersCallers(t *testing.T, f *fleet, first, second *worker) {
	f.setHeadrooms(t, map[*worker]int{first: 1000, second: 1000})
	// Were it for the client's address, both would prefer one worker.
	for _, w := range []*worker{first, second} {
		ids := []string{"on-" + w.name, "called-first-from-" + w.name}
		requireCallers(t, f.relay(t, ids...), ids, w, w)
	}
}

// TestARefusedActivationIsPlacedElsewhere has a worker whose buffer is longer
// than the lease: it refuses every activation.
func TestARefusedActivationIsPlacedElsewhere(t *testing.T) {
	t.Parallel()
	f := newFleet(t, redis)
	ws := f.startWorkers(t, plan{kind: python, buffer: "1000"}, plan{kind: python, headroom: 1})
	refuser, taker := ws[0], ws[1]

	s := f.state(t, "request")
	f.requirePlaced(t, s, taker)
	s = f.add(t, "with-method") // a POST is not sent twice unless refused
	require.Equal(t, 1, s.Count)
	f.requirePlaced(t, s, taker)
	var got struct{ Bytes int }
	f.client.call(t, http.MethodPut, room(f.url(), "with-body", "blob"), content([]byte(strings.Repeat("x", 1000)))).decode(t, &got)
	require.Equal(t, 1000, got.Bytes)
	echo(t, f.openSocket(t, "upgrade"), websocket.MessageText, []byte("upgraded"))
	require.Positive(t, strings.Count(refuser.text(), " 503"), "the refuser was asked")

	taker.signal(t, termination)
	taker.awaitEnd(t)
	a := f.client.call(t, http.MethodGet, room(f.url(), "nowhere", "state"))
	a.requireNotNow(t)
	require.Empty(t, a.header.Get("Pinned-Refusal"))
	require.Contains(t, string(a.body), "lease unhealthy")
}
