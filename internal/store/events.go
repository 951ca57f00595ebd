package store

import (
	"context"
	"time"
)

// Events is the fleet's memory of what happened, which all nodes share. It is
// capped: some thousand events of workers are kept, and as many of single ids,
// which do not push out the others.
type Events interface {
	// Record appends events, in their order. What is recorded twice is there
	// twice.
	Record(ctx context.Context, events []Event) error
	// Events returns some of what q asks for, and the ID to go on from: 0 if there
	// is no older event; towards newer ones it is that of the newest one looked at,
	// or q.From. It looks at no more than MaxEvents, so that a page may be empty
	// before the last one.
	Events(ctx context.Context, q EventQuery) (events []Event, next int64, err error)
}

// MaxEvents bounds the events that one call of Events looks at.
const MaxEvents = 250

// KeptEvents is about how many events are kept of workers, and of ids.
const KeptEvents = 5000

// EventQuery is which events are asked for: the newest first, or, Forward, the
// oldest first.
type EventQuery struct {
	// From is the ID of an event to go on from, itself left out; 0 for the
	// newest, or Forward for the oldest.
	From    int64
	Forward bool
	// Limit bounds the events that are looked at; MaxEvents at most.
	Limit int
	// Binding and ID, if ID is not "", leave out all but events of that id.
	Binding, ID string
}

// Kind is what happened.
type Kind string

// The kinds of events. EventLapsed is recorded by the store, when it is noticed that a
// session's lease has ended; all others by a node right after they happened, so
// that they are lost if the node dies in between.
const (
	EventRegistered   Kind = "registered"
	EventLapsed       Kind = "lapsed"
	EventDeregistered Kind = "deregistered"
	EventDrained      Kind = "drained"
	EventUndrained    Kind = "undrained"
	EventWindDown     Kind = "wind_down"
	EventFailover     Kind = "failover"
	EventRefused      Kind = "refused"
	EventDisplaced    Kind = "displaced"
	EventSuperseded   Kind = "superseded"
	EventDegraded     Kind = "degraded"
	EventRecovered    Kind = "recovered"
	EventQuarantine   Kind = "quarantine"
)

// Event is one thing that happened. What does not apply is zero.
type Event struct {
	// ID rises from event to event and is about when it was recorded, in Unix
	// microseconds. The store gives it.
	ID   int64 `json:"-"`
	Kind Kind  `json:"kind"`
	// Namespaces are those that it is about, under Hostname; at least one.
	Namespaces []string `json:"namespaces"`
	Hostname   string   `json:"hostname,omitempty"`
	// InstanceID is the id that it is about, of the one namespace.
	InstanceID string `json:"id,omitempty"`
	Epoch      int64  `json:"epoch,omitempty"`
	// ClientID and SessionID are the worker's; for an id, the owner's.
	ClientID  string `json:"clientId,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
	// FromClientID and FromSessionID are the owner's before, as far as known.
	FromClientID  string `json:"fromClientId,omitempty"`
	FromSessionID string `json:"fromSessionId,omitempty"`
	// By is the clientId of the worker that made this one give way; "operator" for
	// an operator.
	By string `json:"by,omitempty"`
	// DeadlineMs is what a drain or wind-down leaves; nil without a deadline.
	DeadlineMs *int64 `json:"deadlineMs,omitempty"`
	Detail     string `json:"detail,omitempty"`
	// Skipped counts events of ids that this node did not record before this one,
	// because there were too many.
	Skipped int64 `json:"skipped,omitempty"`
}

// At returns when the event was recorded.
func (e Event) At() time.Time { return time.UnixMicro(e.ID) }

// Key names the id that the event is about; "" if it is about none.
func (e Event) Key() string {
	if e.InstanceID == "" || len(e.Namespaces) != 1 {
		return ""
	}
	return InstanceKey(Bind(e.Hostname, e.Namespaces[0]), e.InstanceID)
}

// InstanceKey names an id of a binding. No binding has a space.
func InstanceKey(binding, id string) string { return binding + " " + id }

// LapsedEvent is what the store records when a session has lapsed.
func LapsedEvent(r *Registration) Event {
	return Event{Kind: EventLapsed, Namespaces: r.Namespaces, Hostname: r.Hostname, ClientID: r.ClientID, SessionID: r.SessionID}
}
