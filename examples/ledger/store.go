package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/rueidis"
)

//go:embed fenced.lua
var fenced string

// errFenced means that the account has a later owner: nothing was written.
var errFenced = errors.New("a later owner has claimed the account")

// store keeps accounts in Redis. The one script decides and writes in one step:
// a look at the epoch first and a write after it would leave a gap in between,
// and a paused process pauses wherever it is. Redis itself has to keep what it
// has acknowledged: run it with appendfsync always where that matters.
type store struct {
	client rueidis.Client
	script *rueidis.Lua
}

func newStore(client rueidis.Client) *store {
	return &store{client: client, script: rueidis.NewLuaScript(fenced)}
}

// claim makes epoch the account's from now on, and returns the balance. Once it
// has returned, no write of a lower epoch can reach the account any more, so
// what it returned is the whole truth until this owner changes it.
func (s *store) claim(ctx context.Context, id string, epoch int64) (balance int64, err error) {
	return s.run(ctx, id, epoch, "")
}

// save writes the balance. With errFenced nothing was written; with any other
// error it is not known whether it was.
func (s *store) save(ctx context.Context, id string, epoch, balance int64) error {
	_, err := s.run(ctx, id, epoch, strconv.FormatInt(balance, 10))
	return err
}

func (s *store) run(ctx context.Context, id string, epoch int64, balance string) (int64, error) {
	key := "ledger:{" + id + "}"
	stored, err := s.script.Exec(ctx, s.client, []string{key}, []string{strconv.FormatInt(epoch, 10), balance}).AsInt64()
	switch {
	case rueidis.IsRedisNil(err):
		return 0, errFenced
	case err != nil:
		return 0, fmt.Errorf("account %s in Redis: %w", id, err)
	}
	return stored, nil
}
