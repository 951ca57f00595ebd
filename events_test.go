package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// seenEvent is an event as operators see it.
type seenEvent struct {
	Event               int64
	At                  int64
	Kind                string
	Namespaces          []string
	Hostname, ID        string
	ClientID, SessionID string
	FromClientID        string
	By, Detail          string
	DeadlineMs          *int64
	Skipped             int64
}

// eventsSeen returns all events, the newest first.
func (n *regNode) eventsSeen(token, query string) (all []seenEvent) {
	n.t.Helper()
	for before, pages := "", 0; ; pages++ {
		require.Less(n.t, pages, 100)
		a := n.get("/registry/events?"+query+"&before="+before, token)
		require.Equal(n.t, http.StatusOK, a.status, a.text)
		require.Equal(n.t, "no-store", a.header.Get("Cache-Control"))
		var page struct {
			Events []seenEvent
			Before int64
		}
		a.into(n.t, &page)
		all = append(all, page.Events...)
		if page.Before == 0 {
			return all
		}
		before = strconv.FormatInt(page.Before, 10)
	}
}

// kindsSeen returns the kinds of all events, the oldest first.
func (n *regNode) kindsSeen(query string) (kinds []string) {
	n.t.Helper()
	for _, e := range n.eventsSeen(tokenOperator, query) {
		kinds = append([]string{e.Kind}, kinds...)
	}
	return kinds
}

// awaitKinds waits until these are the events.
func (n *regNode) awaitKinds(kinds ...string) {
	n.t.Helper()
	require.EventuallyWithT(n.t, func(t *assert.CollectT) { assert.Equal(t, kinds, n.kindsSeen("")) }, patience, time.Millisecond)
}

func TestWhatHappensToWorkersIsTold(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register(fields{"namespaces": []string{"/a", "/b"}})
	n.awaitKinds("registered")
	n.post("/registry/drain", tokenOperator, fields{"clientId": w.client, "deadline": 60})
	n.awaitKinds("registered", "drained")
	n.post("/registry/undrain", tokenOperator, fields{"clientId": w.client})
	n.awaitKinds("registered", "drained", "undrained")
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "no", http.StatusTeapot) })
	w.heartbeat()
	w.heartbeat() // is no news
	n.awaitKinds("registered", "drained", "undrained", "degraded")
	w.answers(nil)
	w.heartbeat()
	n.awaitKinds("registered", "drained", "undrained", "degraded", "recovered")
	w.register(fields{"namespaces": []string{"/a", "/b"}, "instances": fields{"/a": []string{"x"}}})
	n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": "x", "deadline": 60})
	n.post("/registry/wind_down", tokenOperator, fields{"namespace": "/a", "id": "x", "deadline": nil})
	n.post("/registry/deregister", tokenWorker, fields{"sessionId": w.session})
	n.post("/registry/deregister", tokenWorker, fields{"sessionId": w.session}) // is no news
	n.awaitKinds("registered", "drained", "undrained", "degraded", "recovered", "registered", "wind_down", "wind_down", "deregistered")

	all := n.eventsSeen(tokenOperator, "")
	for _, e := range all {
		require.InDelta(t, time.Now().UnixMilli(), e.At, 60_000)
		if e.Kind != "wind_down" {
			require.Equal(t, w.client, e.ClientID)
			require.Equal(t, []string{"/a", "/b"}, e.Namespaces)
		}
	}
	require.Equal(t, w.session, all[0].SessionID)
	require.Equal(t, "revoked", all[1].Detail)
	require.Equal(t, "x", all[2].ID)
	require.EqualValues(t, 60_000, *all[2].DeadlineMs)
	require.Equal(t, "operator", all[2].By)
	require.Equal(t, "the advertise URL answers with status 418", all[5].Detail)
	require.EqualValues(t, 60_000, *all[7].DeadlineMs)
	require.Equal(t, w.url, all[8].Detail)
}

func TestThatWorkersGiveWayIsTold(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	old, other, next := n.worker(), n.worker(), n.worker()
	old.register(fields{"epoch": 1})
	n.awaitKinds("registered")
	next.register(fields{"epoch": 2})
	n.awaitKinds("registered", "registered", "displaced")
	old.heartbeat()
	old.heartbeat() // told once
	n.awaitKinds("registered", "registered", "displaced", "superseded")
	e := n.eventsSeen(tokenOperator, "limit=2")
	require.Equal(t, []string{old.client, old.client}, []string{e[0].ClientID, e[1].ClientID})
	require.Equal(t, []string{next.client, next.client}, []string{e[0].By, e[1].By})
	other.register(fields{"epoch": 2, "hostname": "h.example", "env": "one"})
	third := n.worker()
	third.register(fields{"epoch": 2, "hostname": "h.example", "env": "two", "takeover": "wind_down"})
	n.awaitKinds("registered", "registered", "displaced", "superseded", "registered", "registered", "drained")
	last := n.eventsSeen(tokenOperator, "limit=1")[0]
	require.Equal(t, other.client, last.ClientID)
	require.Equal(t, third.client, last.By)
	require.Equal(t, "h.example", last.Hostname)
	require.EqualValues(t, 30_000, *last.DeadlineMs)
}

func TestLapsesAndQuarantinesAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		w := n.workerAt("http://127.0.0.1:1")
		w.record("/a")
		n.get("/healthz", "")
		_, err := n.pb.placer.resolve(t.Context(), ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }})
		require.Error(t, err)
		_, err = n.pb.placer.resolve(t.Context(), ask{instance: instance{"/a", "x"}, key: func() (string, bool) { return "", false }})
		require.Error(t, err)
		synctest.Wait()
		require.Equal(t, []string{"quarantine"}, n.kindsSeen(""))
		require.EqualValues(t, 15_000, *n.eventsSeen(tokenOperator, "")[0].DeadlineMs)
		time.Sleep(time.Minute) // virtual time
		require.Equal(t, []string{"quarantine", "lapsed"}, n.kindsSeen(""))
		require.Equal(t, w.session, n.eventsSeen(tokenOperator, "limit=1")[0].SessionID)
	})
}

// told records events, past the nodes.
func (n *regNode) told(events ...store.Event) {
	n.t.Helper()
	require.NoError(n.t, n.store.Record(context.Background(), events))
}

func TestEventsAreFoundAndHiddenOnesAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.told(
			store.Event{Kind: store.EventRegistered, Namespaces: []string{"/a", "/b"}, ClientID: "one"},
			store.Event{Kind: store.EventDrained, Namespaces: []string{"/b"}, ClientID: "two"},
			store.Event{Kind: store.EventFailover, Namespaces: []string{"/a"}, InstanceID: "x", ClientID: "two", FromClientID: "one"},
			store.Event{Kind: store.EventFailover, Namespaces: []string{"/a"}, Hostname: "h.example", InstanceID: "x", ClientID: "three"},
			store.Event{Kind: store.EventFailover, Namespaces: []string{"/b"}, InstanceID: "x", ClientID: "two"},
		)
		found := func(token, query string) (numbers []string) {
			for _, e := range n.eventsSeen(token, query) {
				numbers = append(numbers, fmt.Sprint(e.Kind[:1], e.Hostname, e.Namespaces, e.ID, e.ClientID))
			}
			return numbers
		}
		all := []string{"f[/b]xtwo", "fh.example[/a]xthree", "f[/a]xtwo", "d[/b]two", "r[/a /b]one"}
		for _, limit := range []string{"", "&limit=1", "&limit=2"} {
			require.Equal(t, all, found(tokenOperator, limit))
			require.Equal(t, []string{"fh.example[/a]xthree", "f[/a]xtwo", "r[/a]one"}, found(tokenViewer, limit), "the others are not the viewer's to see")
			require.Equal(t, []string{all[0], all[3], all[4]}, found(tokenOperator, "namespace=/b"+limit))
			require.Equal(t, []string{all[2], all[4]}, found(tokenOperator, "clientId=one"+limit))
			require.Equal(t, []string{all[3]}, found(tokenOperator, "kind=drained"+limit))
			require.Equal(t, []string{all[2]}, found(tokenOperator, "namespace=/a&id=x"+limit))
			require.Equal(t, []string{all[1]}, found(tokenOperator, "namespace=/a&id=x&hostname=h.example"+limit))
			require.Empty(t, found(tokenOperator, "namespace=/a&id=y"+limit))
		}
		n.get("/registry/events?namespace=/b", tokenViewer).requireRefusal(t, http.StatusNotFound, "unknown namespace")
		for query, has := range map[string]string{
			"limit=0": "limit", "before=x": "before", "before=0": "before", "before=-1": "before", "namespace=b": "namespace", "id=x": "namespace",
			"namespace=/a&id=%2F": "id", "namespace=/a&id=": "id", "hostname=%2F": "hostname", "%zz": "query",
		} {
			n.get("/registry/events?"+query, tokenOperator).requireRefusal(t, http.StatusBadRequest, has)
		}
		require.JSONEq(t, `{"events":[]}`, n.get("/registry/events?before=1", tokenOperator).text)
	})
}

// However few pass a filter: one request looks at a bounded number of events.
func TestOnePageOfEventsDoesABoundedPartOfTheWalk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		events := []store.Event{{Kind: store.EventRegistered, Namespaces: []string{"/a"}, ClientID: "rare"}}
		for range store.KeptEvents - 1 {
			events = append(events, store.Event{Kind: store.EventDrained, Namespaces: []string{"/a"}})
		}
		n.told(events...)
		n.store.called()
		a := n.get("/registry/events?clientId=rare", tokenOperator)
		require.Len(t, n.store.called(), maxLooks)
		require.Regexp(t, `^{"events":\[\],"before":\d+}$`, a.text)
		require.Len(t, n.eventsSeen(tokenOperator, "clientId=rare"), 1)
	})
}

// A storm of moves is told of, not told; what happens to workers meanwhile is.
func TestManyMovesAreToldOfByTheirNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.get("/healthz", "")
		move := store.Event{Kind: store.EventFailover, Namespaces: []string{"/a"}, InstanceID: "x"}
		for range eventsPerSecond + 30 {
			n.pb.events.tell(move)
			synctest.Wait()
		}
		n.pb.events.tell(store.Event{Kind: store.EventDrained, Namespaces: []string{"/a"}})
		synctest.Wait()
		require.Len(t, n.kindsSeen(""), eventsPerSecond+1)
		time.Sleep(time.Second) // virtual time
		n.pb.events.tell(move)
		synctest.Wait()
		all := n.eventsSeen(tokenOperator, "")
		require.EqualValues(t, 30, all[0].Skipped)
		require.Equal(t, "drained", all[1].Kind)
		require.Zero(t, all[1].Skipped)
	})
}

// Nobody waits for events to be recorded, and what can't be is given up.
func TestAStoreThatIsAwayDelaysNobodyWhoTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.get("/healthz", "")
		frozen := &frozenEvents{Store: n.pb.events.store}
		n.pb.events.store = frozen
		began := time.Now()
		for range 2 * eventQueue {
			n.pb.events.tell(store.Event{Kind: store.EventDrained, Namespaces: []string{"/a"}})
		}
		require.Equal(t, began, time.Now()) // virtual time
		synctest.Wait()
		require.NoError(t, n.pb.Shutdown(context.Background()))
		require.LessOrEqual(t, time.Since(began), 10*time.Second)
		require.Contains(t, n.said.String(), "events not recorded")
	})
}

type frozenEvents struct{ store.Store }

func (frozenEvents) Record(ctx context.Context, _ []store.Event) error {
	<-ctx.Done()
	return ctx.Err()
}

// What was told before the node shuts down is recorded.
func TestEventsThatWaitAreRecordedAtShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, nil)
		n.get("/healthz", "")
		for range 50 {
			n.pb.events.tell(store.Event{Kind: store.EventDrained, Namespaces: []string{"/a"}})
		}
		require.NoError(t, n.pb.Shutdown(context.Background()))
		events, _, err := n.store.Events(t.Context(), store.EventQuery{Limit: 100})
		require.NoError(t, err)
		require.Len(t, events, 50)
	})
}
