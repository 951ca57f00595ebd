package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/worker"
)

const (
	// storeTimeout bounds one call to the store.
	storeTimeout = 10 * time.Second
	// maxAmount keeps a balance far from the end of an int64.
	maxAmount  = 1_000_000_000_000
	maxBalance = 1000 * maxAmount
)

// placement is what an account needs of its *worker.Instance.
type placement interface {
	ID() string
	Epoch() int64
	Context() context.Context
	Abort()
}

// account is one instance. It answers from memory, which is right because there
// is one owner at a time; it writes through to the store, which outlives it.
//
// Nearly one owner at a time: pinboard ends an owner's lease by time. An owner
// whose process is paused, or whose write is stuck in the network, can't notice
// that; when it goes on, it finishes what it had begun. Meanwhile another one
// has loaded the account and changed it, and the late write would wipe that out.
// No look at a clock or a lease before the write can prevent it, since the pause
// may come right after the look. Only the store can, because everything passes
// it: each placement has a higher epoch than the one before, the store remembers
// the highest that it has seen, and refuses the writes of all lower ones.
type account struct {
	in     placement
	store  *store
	worker string

	mu      sync.Mutex // one change after the other
	epoch   int64      // by which balance was claimed
	balance int64
}

// newAccount returns the constructor of a worker's accounts.
func newAccount(s *store, workerName string) worker.Constructor {
	return func(in *worker.Instance) (http.Handler, error) { return openAccount(in, s, workerName) }
}

// openAccount claims and loads an account. With an error there is no instance,
// the client gets a 503, and the next request tries again.
func openAccount(in placement, s *store, workerName string) (http.Handler, error) {
	a := &account{in: in, store: s, worker: workerName}
	if err := a.load(in.Context()); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, nil) })
	mux.HandleFunc("POST /deposit", a.changing(deposit))
	mux.HandleFunc("POST /withdraw", a.changing(withdraw))
	return mux, nil
}

// load claims the account by the placement's epoch.
func (a *account) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	epoch := a.in.Epoch()
	if epoch == 0 {
		return errors.New("pinboard has sent no placement epoch: writes could not be fenced")
	}
	balance, err := a.store.claim(ctx, a.in.ID(), epoch)
	if err != nil {
		return err
	}
	a.epoch, a.balance = epoch, balance
	return nil
}

// answer is what a client gets.
type answer struct {
	ID      string `json:"id"`
	Balance int64  `json:"balance"`
	Epoch   int64  `json:"epoch"`
	HeldBy  string `json:"heldBy"`
}

// changing returns the handler of a kind of change.
func (a *account) changing(by func(balance, amount int64) (int64, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 1024)
		// Read before the account is locked: a client may take its time.
		amount, err := strconv.ParseInt(r.FormValue("amount"), 10, 64)
		if err != nil || amount <= 0 || amount > maxAmount {
			http.Error(w, fmt.Sprintf("amount must be a whole number from 1 to %d", int64(maxAmount)), http.StatusBadRequest)
			return
		}
		a.serve(w, r, func(balance int64) (int64, error) { return by(balance, amount) })
	}
}

// serve answers with the balance, after a change if there is one.
func (a *account) serve(w http.ResponseWriter, r *http.Request, change func(balance int64) (int64, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Context().Err() != nil {
		return // the client has left, or the instance ends: nothing has begun
	}
	// What has begun at the store does not end because the client leaves.
	ctx := context.WithoutCancel(r.Context())
	// The epoch rises in place when the id went elsewhere and came back while
	// this instance was cut off. What it has in memory is old then, and must
	// not be written by the new epoch: that stands for what was loaded under it.
	if a.in.Epoch() != a.epoch {
		if err := a.load(ctx); err != nil {
			a.giveUp(w, err)
			return
		}
	}
	if change != nil {
		balance, err := change(a.balance)
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		if err := a.save(ctx, balance); err != nil {
			a.giveUp(w, err)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer{ID: a.in.ID(), Balance: a.balance, Epoch: a.epoch, HeldBy: a.worker})
}

// save changes the balance in the store first, then in memory.
func (a *account) save(ctx context.Context, balance int64) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := a.store.save(ctx, a.in.ID(), a.epoch, balance); err != nil {
		return err
	}
	a.balance = balance
	return nil
}

// giveUp ends the instance: memory and store may differ from now on, and only
// the store is right. The next request, here or elsewhere, loads what it says.
func (a *account) giveUp(w http.ResponseWriter, err error) {
	a.in.Abort()
	w.Header().Set("Retry-After", "1")
	if errors.Is(err, errFenced) {
		http.Error(w, "the account has moved to another owner: nothing was booked, try again", http.StatusServiceUnavailable)
		return
	}
	// Real money would want an idempotency key with each change, saved by the
	// same script, so that a client may simply repeat it.
	http.Error(w, "the store does not answer: look at the balance before you try again", http.StatusServiceUnavailable)
}

func deposit(balance, amount int64) (int64, error) {
	if balance > maxBalance-amount {
		return 0, errors.New("the account is full")
	}
	return balance + amount, nil
}

func withdraw(balance, amount int64) (int64, error) {
	if balance < amount {
		return 0, errors.New("the balance is too low")
	}
	return balance - amount, nil
}
