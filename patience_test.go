package pinboard

import (
	"context"
	"errors"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// A test with sockets and processes runs in real time, on a machine that may have much
// else to do. What a node waits for there comes in the end, and a bound on it says
// only how busy the machine is. So these nodes have patience; that the bounds are
// kept is for tests in virtual time, and for those that say so.

// unhurried opens directories that do not mind a caller's deadline.
type unhurried struct{ store.Backend }

func (b unhurried) Open(cfg store.Config) store.Store { return patientStore{b.Backend.Open(cfg)} }

// patientStore takes the time it needs, but for a caller who leaves.
type patientStore struct{ store.Store }

// take returns a context that ends with the given one, but not by its deadline.
func take(ctx context.Context) (context.Context, context.CancelFunc) {
	slow, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
		}
	})
	return slow, func() { stop(); cancel() }
}

func (s patientStore) Ping(ctx context.Context) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Ping(ctx)
}

func (s patientStore) CheckRegister(ctx context.Context, r store.Registration) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.CheckRegister(ctx, r)
}

func (s patientStore) Register(ctx context.Context, r store.Registration) (store.Registered, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Register(ctx, r)
}

func (s patientStore) Activate(ctx context.Context, sessionID string) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Activate(ctx, sessionID)
}

func (s patientStore) Heartbeat(ctx context.Context, b store.Beat) (store.BeatAnswer, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Heartbeat(ctx, b)
}

func (s patientStore) SetDegraded(ctx context.Context, sessionID string, degraded bool) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.SetDegraded(ctx, sessionID, degraded)
}

func (s patientStore) Deregister(ctx context.Context, sessionID string) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Deregister(ctx, sessionID)
}

func (s patientStore) Session(ctx context.Context, sessionID string) (store.Session, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Session(ctx, sessionID)
}

func (s patientStore) States(ctx context.Context, keys []store.SessionKey) ([]store.SessionState, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.States(ctx, keys)
}

func (s patientStore) Live(ctx context.Context) ([]store.Session, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Live(ctx)
}

func (s patientStore) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Resolve(ctx, r)
}

func (s patientStore) Candidates(ctx context.Context, binding, id string) (store.View, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Candidates(ctx, binding, id)
}

// Known has no time to take where only what is at hand is asked for.
func (s patientStore) Known(ctx context.Context, binding, id string) (store.Known, error) {
	if ctx.Err() != nil {
		return s.Store.Known(ctx, binding, id)
	}
	ctx, done := take(ctx)
	defer done()
	return s.Store.Known(ctx, binding, id)
}

func (s patientStore) Lookup(ctx context.Context, binding, id string) (store.Row, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Lookup(ctx, binding, id)
}

func (s patientStore) Release(ctx context.Context, releases []wire.Release) (int, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Release(ctx, releases)
}

func (s patientStore) Rows(ctx context.Context, binding, cursor string, limit int, only ...store.RowFilter) ([]store.Row, string, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Rows(ctx, binding, cursor, limit, only...)
}

func (s patientStore) Counts(ctx context.Context, sessions []store.Session) ([][]int, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Counts(ctx, sessions)
}

func (s patientStore) Quarantine(ctx context.Context) (time.Duration, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Quarantine(ctx)
}

func (s patientStore) Client(ctx context.Context, clientID string) (store.Client, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Client(ctx, clientID)
}

func (s patientStore) Drain(ctx context.Context, clientID string, deadline *time.Duration) (store.Drain, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Drain(ctx, clientID, deadline)
}

func (s patientStore) Undrain(ctx context.Context, clientID string) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Undrain(ctx, clientID)
}

func (s patientStore) WindDown(ctx context.Context, binding, id string, deadline *time.Duration) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.WindDown(ctx, binding, id, deadline)
}

func (s patientStore) Record(ctx context.Context, events []store.Event) error {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Record(ctx, events)
}

func (s patientStore) Events(ctx context.Context, q store.EventQuery) ([]store.Event, int64, error) {
	ctx, done := take(ctx)
	defer done()
	return s.Store.Events(ctx, q)
}
