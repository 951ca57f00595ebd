package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

var windDownRules = []rule{
	{"a message comes on every beat until acked", messagesUntilAcked},
	{"messages come in the order they were queued", messagesInOrder},
	{"a newer message for an id replaces the older one", messageReplaced},
	{"a message's deadline counts down and is never below zero", messageCountsDown},
	{"an id that is not placed gets no message", messageNotPlaced},
	{"a message whose row left is dropped", messageDropped},
	{"messages are carried over a re-registration, with their rows", messagesCarriedOver},
	{"at most a thousand messages wait", messagesCapped},
}

func (d *directory) windDown(t *testing.T, namespace, id string, deadline time.Duration) {
	t.Helper()
	require.NoError(t, d.WindDown(t.Context(), namespace, id, &deadline))
}

// waiting returns the ids of the instances whose messages a beat brings.
func (d *directory) waiting(t *testing.T, sessionID string, acks ...string) (ids []string) {
	t.Helper()
	for _, m := range d.beat(t, sessionID, acks...).Messages {
		ids = append(ids, m.InstanceID)
	}
	return ids
}

func messagesUntilAcked(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a", listing(counters, "x", "y"))
	other := d.join(t, "b")
	require.Empty(t, d.beat(t, session).Messages)
	d.windDown(t, counters, "x", time.Hour)
	first := d.beat(t, session).Messages
	require.Len(t, first, 1)
	m := first[0]
	require.NotEmpty(t, m.ID)
	require.Equal(t, store.Message{ID: m.ID, Namespace: counters, InstanceID: "x", Left: m.Left}, m)
	require.LessOrEqual(t, m.Left, time.Hour)
	require.Greater(t, m.Left, time.Hour/2)
	for range 3 {
		again := d.beat(t, session, "no such message", "").Messages
		require.Len(t, again, 1)
		require.Equal(t, m.ID, again[0].ID)
	}
	require.Empty(t, d.beat(t, other, m.ID).Messages, "nobody else can ack it")
	require.Len(t, d.beat(t, session).Messages, 1)

	d.windDown(t, counters, "y", time.Hour)
	require.Equal(t, []string{"y"}, d.waiting(t, session, m.ID), "an ack works on its own beat")
	require.Equal(t, []string{"y"}, d.waiting(t, session, m.ID))
	require.Equal(t, session, d.lookup(t, counters, "x").SessionID, "the row stays")
	d.windDown(t, counters, "x", time.Hour)
	require.Equal(t, []string{"y", "x"}, d.waiting(t, session, m.ID), "an old ack is not the new message's")
}

func messagesInOrder(t *testing.T, f Fixture) {
	d := empty(f)
	ids := manyIDs(40)
	session := d.join(t, "a", serving(counters, "/others"), listing(counters, ids...), listing("/others", ids...))
	var acks []string
	for i, id := range ids {
		d.windDown(t, []string{counters, "/others"}[i%2], id, time.Hour-time.Duration(i)*time.Second)
	}
	messages := d.beat(t, session).Messages
	require.Len(t, messages, len(ids))
	for i, m := range messages {
		require.Equal(t, ids[i], m.InstanceID)
		if i != 7 && i != 30 {
			acks = append(acks, m.ID)
		}
	}
	require.Equal(t, []string{ids[7], ids[30]}, d.waiting(t, session, acks...))
}

func messageReplaced(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a", serving(counters, "/others"), listing(counters, "x", "y"), listing("/others", "x"))
	d.windDown(t, counters, "x", time.Hour)
	old := d.beat(t, session).Messages[0]
	d.windDown(t, counters, "y", time.Hour)
	d.windDown(t, "/others", "x", time.Hour)
	d.windDown(t, counters, "x", time.Minute)
	messages := d.beat(t, session, old.ID).Messages
	require.Len(t, messages, 3)
	require.Equal(t, "y", messages[0].InstanceID)
	require.Equal(t, "/others", messages[1].Namespace, "another namespace's id is another id")
	require.Equal(t, "x", messages[2].InstanceID)
	require.LessOrEqual(t, messages[2].Left, time.Minute)
	require.NotEqual(t, old.ID, messages[2].ID)

	require.NoError(t, d.WindDown(t.Context(), counters, "x", nil))
	messages = d.beat(t, session).Messages
	require.Len(t, messages, 3)
	revoked := messages[2]
	require.Equal(t, store.Message{ID: revoked.ID, Namespace: counters, InstanceID: "x", Revoke: true}, revoked)
	require.False(t, messages[0].Revoke)
	require.Equal(t, []string{"y", "x"}, d.waiting(t, session, revoked.ID))
}

func messageCountsDown(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a", listing(counters, "long", "short"))
	d.windDown(t, counters, "long", time.Hour)
	d.windDown(t, counters, "short", f.LeaseTTL/20)
	before := d.beat(t, session).Messages
	d.Advance(t, f.LeaseTTL/10)
	after := d.beat(t, session).Messages
	require.LessOrEqual(t, after[0].Left, before[0].Left-f.LeaseTTL/20)
	require.Greater(t, after[0].Left, time.Hour/2)
	require.Zero(t, after[1].Left)
	require.False(t, after[1].Revoke)
	require.Equal(t, before[1].ID, after[1].ID)
}

func messageNotPlaced(t *testing.T, f Fixture) {
	d := empty(f)
	deadline := time.Hour
	require.ErrorIs(t, d.WindDown(t.Context(), "/never-served", "x", &deadline), store.ErrNotPlaced)
	session := d.join(t, "a", listing(counters, "x"))
	require.ErrorIs(t, d.WindDown(t.Context(), counters, "y", &deadline), store.ErrNotPlaced)
	require.NoError(t, d.Deregister(t.Context(), session))
	require.ErrorIs(t, d.WindDown(t.Context(), counters, "x", &deadline), store.ErrNotPlaced, "a dead session's row")
	require.ErrorIs(t, d.WindDown(t.Context(), counters, "x", nil), store.ErrNotPlaced)
}

func messageDropped(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	first := d.join(t, "a")
	second := d.join(t, "b")
	x := d.place(t, counters, "x", first)
	d.place(t, counters, "y", first)
	d.windDown(t, counters, "x", time.Hour)
	d.windDown(t, counters, "y", time.Hour)
	require.True(t, d.release(t, counters, "x", x))
	require.Equal(t, []string{"y"}, d.waiting(t, first))
	x = d.place(t, counters, "x", first)
	require.Equal(t, []string{"y"}, d.waiting(t, first), "it does not come back with the row")

	d.windDown(t, counters, "x", time.Hour)
	require.True(t, d.release(t, counters, "x", x))
	d.place(t, counters, "x", second)
	require.Equal(t, []string{"y"}, d.waiting(t, first))
	require.Empty(t, d.waiting(t, second), "it was not for the row's next owner")
}

func messagesCarriedOver(t *testing.T, f Fixture) {
	d := empty(f)
	session := d.join(t, "a", serving(counters, "/others"), listing(counters, "x", "unlisted"), listing("/others", "x"))
	d.windDown(t, "/others", "x", time.Hour)
	d.windDown(t, counters, "unlisted", time.Hour)
	d.windDown(t, counters, "x", time.Hour)
	before := d.beat(t, session).Messages
	require.Len(t, before, 3)
	session = d.join(t, "a", listing(counters, "x"))
	after := d.beat(t, session).Messages
	require.Len(t, after, 1, "dropped with the row, or with the namespace")
	require.Equal(t, before[2].ID, after[0].ID)
	require.Equal(t, "x", after[0].InstanceID)

	require.NoError(t, d.Deregister(t.Context(), session))
	session = d.join(t, "a", listing(counters, "x"))
	require.Equal(t, before[2].ID, d.beat(t, session).Messages[0].ID)
	require.Empty(t, d.beat(t, session, before[2].ID).Messages)
}

func messagesCapped(t *testing.T, f Fixture) {
	d := empty(f)
	ids := manyIDs(store.MaxMessages + 1)
	session := d.join(t, "a", listing(counters, ids...))
	other := d.join(t, "b", listing(counters, "other"))
	for _, id := range ids[:store.MaxMessages] {
		d.windDown(t, counters, id, time.Hour)
	}
	deadline := time.Hour
	last := ids[store.MaxMessages]
	require.ErrorIs(t, d.WindDown(t.Context(), counters, last, &deadline), store.ErrQueueFull)
	require.ErrorIs(t, d.WindDown(t.Context(), counters, last, nil), store.ErrQueueFull)
	d.windDown(t, counters, ids[0], time.Minute) // replaces one
	d.windDown(t, counters, "other", time.Hour)
	require.Equal(t, []string{"other"}, d.waiting(t, other))

	messages := d.beat(t, session).Messages
	require.Len(t, messages, store.MaxMessages)
	for i, m := range messages {
		require.Equal(t, ids[(i+1)%store.MaxMessages], m.InstanceID, fmt.Sprint(i))
	}
	d.beat(t, session, messages[0].ID)
	d.windDown(t, counters, last, time.Hour)
	messages = d.beat(t, session).Messages
	require.Len(t, messages, store.MaxMessages)
	require.Equal(t, last, messages[store.MaxMessages-1].InstanceID)
}
