package pinboard

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// lookGate is a store in which the first look at one id waits.
type lookGate struct {
	store.Store
	first      atomic.Bool // there was one
	looks, let chan struct{}
}

func (g *lookGate) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if r.View == lookOnly && r.ID == "shared" && g.first.CompareAndSwap(false, true) {
		g.looks <- struct{}{}
		<-g.let
	}
	return g.Store.Resolve(ctx, r)
}

// Look-ups of one id share an answer, but a 429 is for one address only.
func TestTheLimitOfOneAddressIsNotThatOfAnother(t *testing.T) {
	t.Parallel()
	gate := &lookGate{looks: make(chan struct{}, 1), let: make(chan struct{})}
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{PlacementsPerAddress: 1}
		s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		s.store = func(inner store.Store) store.Store { gate.Store = inner; return gate }
	})
	f.register(newFake(t, nil), "a")
	resp, _ := f.get("/counters/mine", "X-Forwarded-For: 192.0.2.1")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	limited := f.waiting("/counters/shared", "X-Forwarded-For: 192.0.2.1")
	<-gate.looks
	other := f.waiting("/counters/shared", "X-Forwarded-For: 192.0.2.2")
	resp, _ = other.whole("GET")
	close(gate.let)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	limited.answer("GET")
}
