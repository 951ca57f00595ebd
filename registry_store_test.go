package pinboard

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// regStore is a store that tells a test of every call, and fails when told to.
type regStore struct {
	store.Store
	mu     sync.Mutex
	before func(ctx context.Context, op string) error
	sweep  func(ctx context.Context) (removed int, more bool, err error)
	ops    []string
}

type regBackend struct {
	store.Backend
	top *regStore
}

func (b regBackend) Open(cfg store.Config) store.Store {
	b.top.Store = b.Backend.Open(cfg)
	return b.top
}

// intercept has f called before every call; its error is the call's.
func (s *regStore) intercept(f func(ctx context.Context, op string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// fail has the calls named fail with err; all of them if none is named.
func (s *regStore) fail(err error, ops ...string) {
	s.intercept(func(_ context.Context, op string) error {
		if len(ops) == 0 || slices.Contains(ops, op) {
			return err
		}
		return nil
	})
}

// freeze has the calls named hang until their context ends.
func (s *regStore) freeze(ops ...string) {
	s.intercept(func(ctx context.Context, op string) error {
		if len(ops) > 0 && !slices.Contains(ops, op) {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
}

// called returns the calls since it was called last.
func (s *regStore) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ops := s.ops
	s.ops = nil
	return ops
}

func (s *regStore) enter(ctx context.Context, op string) error {
	s.mu.Lock()
	f := s.before
	if op != "Sweep" && op != "States" && op != "Known" && op != "Record" { // those come by themselves
		s.ops = append(s.ops, op)
	}
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, op)
}

func (s *regStore) CheckRegister(ctx context.Context, r store.Registration) error {
	if err := s.enter(ctx, "CheckRegister"); err != nil {
		return err
	}
	return s.Store.CheckRegister(ctx, r)
}

func (s *regStore) Register(ctx context.Context, r store.Registration) (store.Registered, error) {
	if err := s.enter(ctx, "Register"); err != nil {
		return store.Registered{}, err
	}
	return s.Store.Register(ctx, r)
}

func (s *regStore) Activate(ctx context.Context, sessionID string) error {
	if err := s.enter(ctx, "Activate"); err != nil {
		return err
	}
	return s.Store.Activate(ctx, sessionID)
}

func (s *regStore) Heartbeat(ctx context.Context, b store.Beat) (store.BeatAnswer, error) {
	if err := s.enter(ctx, "Heartbeat"); err != nil {
		return store.BeatAnswer{}, err
	}
	return s.Store.Heartbeat(ctx, b)
}

func (s *regStore) SetDegraded(ctx context.Context, sessionID string, degraded bool) error {
	if err := s.enter(ctx, "SetDegraded"); err != nil {
		return err
	}
	return s.Store.SetDegraded(ctx, sessionID, degraded)
}

func (s *regStore) Deregister(ctx context.Context, sessionID string) error {
	if err := s.enter(ctx, "Deregister"); err != nil {
		return err
	}
	return s.Store.Deregister(ctx, sessionID)
}

func (s *regStore) Session(ctx context.Context, sessionID string) (store.Session, error) {
	if err := s.enter(ctx, "Session"); err != nil {
		return store.Session{}, err
	}
	return s.Store.Session(ctx, sessionID)
}

func (s *regStore) Live(ctx context.Context) ([]store.Session, error) {
	if err := s.enter(ctx, "Live"); err != nil {
		return nil, err
	}
	return s.Store.Live(ctx)
}

func (s *regStore) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if err := s.enter(ctx, "Resolve"); err != nil {
		return store.Result{}, err
	}
	return s.Store.Resolve(ctx, r)
}

// Known costs nothing as a rule, and is not among the calls.
func (s *regStore) Known(ctx context.Context, binding, id string) (store.Known, error) {
	if err := s.enter(ctx, "Known"); err != nil {
		return store.Known{}, err
	}
	return s.Store.Known(ctx, binding, id)
}

func (s *regStore) Candidates(ctx context.Context, namespace, id string) (store.View, error) {
	if err := s.enter(ctx, "Candidates"); err != nil {
		return store.View{}, err
	}
	return s.Store.Candidates(ctx, namespace, id)
}

func (s *regStore) States(ctx context.Context, keys []store.SessionKey) ([]store.SessionState, error) {
	if err := s.enter(ctx, "States"); err != nil {
		return nil, err
	}
	return s.Store.States(ctx, keys)
}

func (s *regStore) Release(ctx context.Context, releases []wire.Release) (int, error) {
	if err := s.enter(ctx, "Release"); err != nil {
		return 0, err
	}
	return s.Store.Release(ctx, releases)
}

func (s *regStore) Rows(ctx context.Context, namespace, cursor string, limit int, only ...store.RowFilter) ([]store.Row, string, error) {
	if err := s.enter(ctx, "Rows"); err != nil {
		return nil, "", err
	}
	return s.Store.Rows(ctx, namespace, cursor, limit, only...)
}

func (s *regStore) Counts(ctx context.Context, sessions []store.Session) ([][]int, error) {
	if err := s.enter(ctx, "Counts"); err != nil {
		return nil, err
	}
	return s.Store.Counts(ctx, sessions)
}

func (s *regStore) Lookup(ctx context.Context, namespace, id string) (store.Row, error) {
	if err := s.enter(ctx, "Lookup"); err != nil {
		return store.Row{}, err
	}
	return s.Store.Lookup(ctx, namespace, id)
}

func (s *regStore) Events(ctx context.Context, q store.EventQuery) ([]store.Event, int64, error) {
	if err := s.enter(ctx, "Events"); err != nil {
		return nil, 0, err
	}
	return s.Store.Events(ctx, q)
}

func (s *regStore) Quarantine(ctx context.Context) (time.Duration, error) {
	if err := s.enter(ctx, "Quarantine"); err != nil {
		return 0, err
	}
	return s.Store.Quarantine(ctx)
}

func (s *regStore) Client(ctx context.Context, clientID string) (store.Client, error) {
	if err := s.enter(ctx, "Client"); err != nil {
		return store.Client{}, err
	}
	return s.Store.Client(ctx, clientID)
}

func (s *regStore) Drain(ctx context.Context, clientID string, deadline *time.Duration) (store.Drain, error) {
	if err := s.enter(ctx, "Drain"); err != nil {
		return store.Drain{}, err
	}
	return s.Store.Drain(ctx, clientID, deadline)
}

func (s *regStore) Undrain(ctx context.Context, clientID string) error {
	if err := s.enter(ctx, "Undrain"); err != nil {
		return err
	}
	return s.Store.Undrain(ctx, clientID)
}

func (s *regStore) WindDown(ctx context.Context, namespace, id string, deadline *time.Duration) error {
	if err := s.enter(ctx, "WindDown"); err != nil {
		return err
	}
	return s.Store.WindDown(ctx, namespace, id, deadline)
}

func (s *regStore) Sweep(ctx context.Context) (int, bool, error) {
	if err := s.enter(ctx, "Sweep"); err != nil {
		return 0, false, err
	}
	if s.sweep != nil {
		return s.sweep(ctx)
	}
	return s.Store.Sweep(ctx)
}

func (s *regStore) Ping(ctx context.Context) error {
	if err := s.enter(ctx, "Ping"); err != nil {
		return err
	}
	return s.Store.Ping(ctx)
}
