package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/redistest"
)

// owner stands in for the *worker.Instance of one owner of alice's account.
type owner struct {
	http.Handler
	ctx     context.Context
	epoch   atomic.Int64
	aborted atomic.Bool
}

func (*owner) ID() string                 { return "alice" }
func (o *owner) Epoch() int64             { return o.epoch.Load() }
func (o *owner) Context() context.Context { return o.ctx }
func (o *owner) Abort()                   { o.aborted.Store(true) }

func newOwner(t *testing.T, epoch int64) *owner {
	o := &owner{ctx: t.Context()}
	o.epoch.Store(epoch)
	return o
}

func open(t *testing.T, s *store, epoch int64) *owner {
	t.Helper()
	o := newOwner(t, epoch)
	handler, err := openAccount(o, s, fmt.Sprint("owner ", epoch))
	require.NoError(t, err)
	o.Handler = handler
	return o
}

// call returns the status, and the balance or what was said in its place.
func (o *owner) call(t *testing.T, method, path, body string) (status int, balance int64, text string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	rec := httptest.NewRecorder()
	o.ServeHTTP(rec, req)
	var a answer
	if rec.Code == http.StatusOK {
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &a))
	}
	return rec.Code, a.Balance, rec.Body.String()
}

func (o *owner) books(t *testing.T, path, amount string, balance int64) {
	t.Helper()
	status, got, text := o.call(t, http.MethodPost, path, "amount="+amount)
	require.Equal(t, http.StatusOK, status, text)
	require.Equal(t, balance, got)
}

func stored(t *testing.T, client rueidis.Client) map[string]string {
	t.Helper()
	fields, err := client.Do(t.Context(), client.B().Hgetall().Key("ledger:{alice}").Build()).AsStrMap()
	require.NoError(t, err)
	return fields
}

func TestALateWriteOfAnOldOwnerIsRefusedAndItEnds(t *testing.T) {
	t.Parallel()
	client := redistest.New(t, redistest.Options{}).Client(t)
	before := open(t, newStore(client), 1_764_000_000_000_001)
	before.books(t, "/deposit", "10", 10)
	after := open(t, newStore(client), 1_764_000_000_000_002) // while the old one is paused
	after.books(t, "/deposit", "5", 15)

	status, _, text := before.call(t, http.MethodPost, "/deposit", "amount=1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "nothing was booked")
	require.True(t, before.aborted.Load())
	require.Equal(t, map[string]string{"epoch": "1764000000000002", "balance": "15"}, stored(t, client))
	after.books(t, "/withdraw", "15", 0)
	require.False(t, after.aborted.Load())
}

// The epoch is claimed when the account is loaded, not by the first write:
// otherwise a late write could still change what was loaded.
func TestAClaimIsEnoughToFenceTheOldOwnerOff(t *testing.T) {
	t.Parallel()
	client := redistest.New(t, redistest.Options{}).Client(t)
	before := open(t, newStore(client), 1)
	before.books(t, "/deposit", "10", 10)
	after := open(t, newStore(client), 2)
	status, _, _ := before.call(t, http.MethodPost, "/withdraw", "amount=10")
	require.Equal(t, http.StatusServiceUnavailable, status)
	after.books(t, "/withdraw", "10", 0)
}

func TestAnOwnerThatComesTooLateDoesNotBegin(t *testing.T) {
	t.Parallel()
	s := newStore(redistest.New(t, redistest.Options{}).Client(t))
	open(t, s, 2)
	_, err := openAccount(newOwner(t, 1), s, "owner 1")
	require.ErrorIs(t, err, errFenced)
	_, err = openAccount(newOwner(t, 0), s, "owner 0")
	require.ErrorContains(t, err, "no placement epoch")
}

// The account was elsewhere meanwhile: the new epoch must not write what the
// old one has in memory.
func TestAnEpochThatRisesInPlaceLoadsAnew(t *testing.T) {
	t.Parallel()
	s := newStore(redistest.New(t, redistest.Options{}).Client(t))
	here := open(t, s, 1)
	here.books(t, "/deposit", "10", 10)
	open(t, s, 2).books(t, "/deposit", "5", 15)
	here.epoch.Store(3)
	here.books(t, "/deposit", "1", 16)
	require.False(t, here.aborted.Load())
}

func TestWithoutItsStoreAnAccountEnds(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	o := open(t, newStore(server.Client(t)), 1)
	o.books(t, "/deposit", "10", 10)
	server.Kill()
	status, _, text := o.call(t, http.MethodPost, "/deposit", "amount=1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, text, "look at the balance")
	require.True(t, o.aborted.Load(), "whether that was written is not known")
}

func TestChangesAreCheckedAndNoneIsLost(t *testing.T) {
	t.Parallel()
	client := redistest.New(t, redistest.Options{}).Client(t)
	o := open(t, newStore(client), 1)
	for _, amount := range []string{"", "x", "0", "-1", "1000000000001", "1e3"} {
		status, _, _ := o.call(t, http.MethodPost, "/deposit", "amount="+amount)
		require.Equal(t, http.StatusBadRequest, status, amount)
	}
	status, _, _ := o.call(t, http.MethodPost, "/withdraw", "amount=1")
	require.Equal(t, http.StatusConflict, status)

	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { o.call(t, http.MethodPost, "/deposit", "amount=2") })
	}
	all.Wait()
	status, balance, _ := o.call(t, http.MethodGet, "/", "")
	require.Equal(t, http.StatusOK, status)
	require.EqualValues(t, 100, balance)
	require.Equal(t, map[string]string{"epoch": "1", "balance": "100"}, stored(t, client))
}
