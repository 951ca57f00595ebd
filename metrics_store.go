package pinboard

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// meteredStore measures what is asked of a store. Known is let through, but for its
// failures: it asks the backing service now and then only.
type meteredStore struct {
	store.Store
	metrics *metrics
}

// operation is one of the store's methods.
type operation struct {
	took   prometheus.Observer
	failed prometheus.Counter
}

// Names of operations are label values.
const (
	opResolve       = "resolve"
	opLookup        = "lookup"
	opCandidates    = "candidates"
	opKnown         = "known"
	opRelease       = "release"
	opRows          = "rows"
	opCounts        = "counts"
	opQuarantine    = "quarantine"
	opCheckRegister = "check_register"
	opRegister      = "register"
	opActivate      = "activate"
	opHeartbeat     = "heartbeat"
	opSetDegraded   = "set_degraded"
	opDeregister    = "deregister"
	opSession       = "session"
	opStates        = "states"
	opLive          = "live"
	opClient        = "client"
	opDrain         = "drain"
	opUndrain       = "undrain"
	opWindDown      = "wind_down"
	opRecord        = "record"
	opEvents        = "events"
	opSweep         = "sweep"
	opPing          = "ping"
)

var operations = []string{
	opResolve, opLookup, opCandidates, opKnown, opRelease, opRows, opCounts, opQuarantine, opCheckRegister, opRegister, opActivate,
	opHeartbeat, opSetDegraded, opDeregister, opSession, opStates, opLive, opClient, opDrain, opUndrain, opWindDown, opRecord,
	opEvents, opSweep, opPing,
}

// decided are the errors by which a store answers.
var decided = []error{
	store.ErrNoSession, store.ErrLowerEpoch, store.ErrOtherEnv, store.ErrOtherSecret, store.ErrOvertaken, store.ErrNoClient,
	store.ErrNotPlaced, store.ErrQueueFull, store.ErrBadCursor, store.ErrNotTracked,
}

// failed reports whether the store could not be asked or did not answer. That the
// asker has left says nothing of that.
func failed(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) &&
		!slices.ContainsFunc(decided, func(answer error) bool { return errors.Is(err, answer) })
}

// note takes in how an operation that began then has ended.
func (s *meteredStore) note(name string, began time.Time, err *error) {
	op := s.metrics.operations[name]
	op.took.Observe(time.Since(began).Seconds())
	if failed(*err) {
		op.failed.Inc()
	}
}

func (s *meteredStore) Resolve(ctx context.Context, r store.Request) (res store.Result, err error) {
	defer s.note(opResolve, time.Now(), &err)
	return s.Store.Resolve(ctx, r)
}

func (s *meteredStore) Lookup(ctx context.Context, binding, id string) (row store.Row, err error) {
	defer s.note(opLookup, time.Now(), &err)
	return s.Store.Lookup(ctx, binding, id)
}

func (s *meteredStore) Candidates(ctx context.Context, binding, id string) (view store.View, err error) {
	defer s.note(opCandidates, time.Now(), &err)
	return s.Store.Candidates(ctx, binding, id)
}

func (s *meteredStore) Known(ctx context.Context, binding, id string) (store.Known, error) {
	known, err := s.Store.Known(ctx, binding, id)
	if failed(err) {
		s.metrics.operations[opKnown].failed.Inc()
	}
	return known, err
}

func (s *meteredStore) Release(ctx context.Context, releases []wire.Release) (n int, err error) {
	defer s.note(opRelease, time.Now(), &err)
	return s.Store.Release(ctx, releases)
}

func (s *meteredStore) Rows(ctx context.Context, binding, cursor string, limit int, only ...store.RowFilter) (rows []store.Row, next string, err error) {
	defer s.note(opRows, time.Now(), &err)
	return s.Store.Rows(ctx, binding, cursor, limit, only...)
}

func (s *meteredStore) Counts(ctx context.Context, sessions []store.Session) (counts [][]int, err error) {
	defer s.note(opCounts, time.Now(), &err)
	return s.Store.Counts(ctx, sessions)
}

func (s *meteredStore) Quarantine(ctx context.Context) (left time.Duration, err error) {
	defer s.note(opQuarantine, time.Now(), &err)
	return s.Store.Quarantine(ctx)
}

func (s *meteredStore) CheckRegister(ctx context.Context, r store.Registration) (err error) {
	defer s.note(opCheckRegister, time.Now(), &err)
	return s.Store.CheckRegister(ctx, r)
}

func (s *meteredStore) Register(ctx context.Context, r store.Registration) (done store.Registered, err error) {
	defer s.note(opRegister, time.Now(), &err)
	return s.Store.Register(ctx, r)
}

func (s *meteredStore) Activate(ctx context.Context, sessionID string) (err error) {
	defer s.note(opActivate, time.Now(), &err)
	return s.Store.Activate(ctx, sessionID)
}

func (s *meteredStore) Heartbeat(ctx context.Context, b store.Beat) (answer store.BeatAnswer, err error) {
	defer s.note(opHeartbeat, time.Now(), &err)
	return s.Store.Heartbeat(ctx, b)
}

func (s *meteredStore) SetDegraded(ctx context.Context, sessionID string, degraded bool) (err error) {
	defer s.note(opSetDegraded, time.Now(), &err)
	return s.Store.SetDegraded(ctx, sessionID, degraded)
}

func (s *meteredStore) Deregister(ctx context.Context, sessionID string) (err error) {
	defer s.note(opDeregister, time.Now(), &err)
	return s.Store.Deregister(ctx, sessionID)
}

func (s *meteredStore) Session(ctx context.Context, sessionID string) (session store.Session, err error) {
	defer s.note(opSession, time.Now(), &err)
	return s.Store.Session(ctx, sessionID)
}

func (s *meteredStore) States(ctx context.Context, keys []store.SessionKey) (states []store.SessionState, err error) {
	defer s.note(opStates, time.Now(), &err)
	return s.Store.States(ctx, keys)
}

func (s *meteredStore) Live(ctx context.Context) (sessions []store.Session, err error) {
	defer s.note(opLive, time.Now(), &err)
	return s.Store.Live(ctx)
}

func (s *meteredStore) Client(ctx context.Context, clientID string) (client store.Client, err error) {
	defer s.note(opClient, time.Now(), &err)
	return s.Store.Client(ctx, clientID)
}

func (s *meteredStore) Drain(ctx context.Context, clientID string, deadline *time.Duration) (drain store.Drain, err error) {
	defer s.note(opDrain, time.Now(), &err)
	return s.Store.Drain(ctx, clientID, deadline)
}

func (s *meteredStore) Undrain(ctx context.Context, clientID string) (err error) {
	defer s.note(opUndrain, time.Now(), &err)
	return s.Store.Undrain(ctx, clientID)
}

func (s *meteredStore) WindDown(ctx context.Context, binding, id string, deadline *time.Duration) (err error) {
	defer s.note(opWindDown, time.Now(), &err)
	return s.Store.WindDown(ctx, binding, id, deadline)
}

func (s *meteredStore) Record(ctx context.Context, events []store.Event) (err error) {
	defer s.note(opRecord, time.Now(), &err)
	return s.Store.Record(ctx, events)
}

func (s *meteredStore) Events(ctx context.Context, q store.EventQuery) (events []store.Event, next int64, err error) {
	defer s.note(opEvents, time.Now(), &err)
	return s.Store.Events(ctx, q)
}

func (s *meteredStore) Sweep(ctx context.Context) (removed int, more bool, err error) {
	defer s.note(opSweep, time.Now(), &err)
	return s.Store.Sweep(ctx)
}

func (s *meteredStore) Ping(ctx context.Context) (err error) {
	defer s.note(opPing, time.Now(), &err)
	return s.Store.Ping(ctx)
}
