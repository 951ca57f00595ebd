package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

var raceRules = []rule{
	{"placements and a registration that reclaims agree on each row", reclaimRacesResolve},
	{"of clients that take one advertise URL at the same time one is not stopped", oneOnURL},
	{"while workers come and go an epoch has one client and they only rise", epochsUnderChurn},
}

func reclaimRacesResolve(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ids := manyIDs(500)
	placing := d.join(t, "a", headroom(1e6))
	reclaiming := registration("b", listing(counters, ids...))
	results := make([]store.Result, len(ids))
	errs := make([]error, len(ids))
	var ans store.Registered
	var regErr error
	var all sync.WaitGroup
	all.Go(func() { ans, regErr = d.lasting.Register(t.Context(), reclaiming) })
	const callers = 4
	for caller := range callers {
		all.Go(func() {
			// From the end, so that the two meet.
			for i := len(ids) - 1 - caller; i >= 0; i -= callers {
				results[i], errs[i] = d.Resolve(t.Context(), request(counters, ids[i]))
			}
		})
	}
	all.Wait()
	require.NoError(t, regErr)
	duplicate := map[wire.Ref]bool{}
	for _, ref := range ans.Duplicates {
		duplicate[ref] = true
	}
	for i, id := range ids {
		require.NoError(t, errs[i])
		row := d.lookup(t, counters, id)
		require.Equal(t, results[i].SessionID, row.SessionID)
		require.Equal(t, results[i].Epoch, row.Epoch)
		require.Equal(t, row.SessionID == placing, duplicate[wire.Ref{Namespace: counters, ID: id}])
	}
}

func oneOnURL(t *testing.T, f Fixture) {
	const clients = 12
	d := empty(f)
	errs := make([]error, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			_, errs[i] = d.lasting.Register(t.Context(), registration(fmt.Sprintf("client-%d", i), at("http://one.test")))
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	live, err := d.Live(t.Context())
	require.NoError(t, err)
	require.Len(t, live, clients)
	renewed := 0
	for _, s := range live {
		_, err := d.Heartbeat(t.Context(), store.Beat{SessionID: s.ID, Headroom: ample})
		if s.Stopped {
			require.ErrorIs(t, err, store.ErrNoSession)
			continue
		}
		require.NoError(t, err)
		renewed++
	}
	require.Equal(t, 1, renewed)
}

// churn records what callers saw of each id while workers come and go.
type churn struct {
	mu      sync.Mutex
	clients map[string]string           // of each session, known before it is
	owners  map[string]map[int64]string // id, epoch: client
	errs    []error
}

func (c *churn) fail(err error) {
	if err != nil {
		c.mu.Lock()
		c.errs = append(c.errs, err)
		c.mu.Unlock()
	}
}

// saw notes an answer, which came after one that told of the epoch before it.
func (c *churn) saw(id string, res store.Result, before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := c.clients[res.SessionID]
	if known, ok := c.owners[id][res.Epoch]; ok && known != client {
		c.errs = append(c.errs, fmt.Errorf("%s was owned by %s and %s in epoch %d", id, known, client, res.Epoch))
	}
	if res.Epoch < before {
		c.errs = append(c.errs, fmt.Errorf("%s went from epoch %d back to %d", id, before, res.Epoch))
	}
	c.owners[id][res.Epoch] = client
}

func epochsUnderChurn(t *testing.T, f Fixture) {
	d := ready(t, f, counters)
	ids := manyIDs(5)
	c := &churn{clients: map[string]string{}, owners: map[string]map[int64]string{}}
	for _, id := range ids {
		c.owners[id] = map[int64]string{}
	}
	enter := func(client string) string {
		r := registration(client, listing(counters, ids[:2]...))
		c.mu.Lock()
		c.clients[r.SessionID] = client
		c.mu.Unlock()
		_, err := d.lasting.Register(t.Context(), r)
		c.fail(err)
		c.fail(d.Activate(t.Context(), r.SessionID))
		return r.SessionID
	}
	enter("stays")
	var all sync.WaitGroup
	for _, client := range []string{"a", "b", "c"} {
		all.Go(func() {
			for i := range 30 {
				if session := enter(client); i%3 == 0 {
					c.fail(d.Deregister(t.Context(), session))
				}
			}
		})
	}
	for seed := range uint64(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 7)) // cases, not secrets
			newest := map[string]int64{}
			for range 150 {
				id := ids[rng.IntN(len(ids))]
				req := request(counters, id)
				req.Dice = store.Dice{rng.Uint32() >> 1, rng.Uint32() >> 1, rng.Uint32() >> 1}
				res, err := d.Resolve(t.Context(), req)
				c.fail(err)
				c.saw(id, res, newest[id])
				newest[id] = res.Epoch
				if rng.IntN(4) == 0 {
					_, err := d.Release(t.Context(), []wire.Release{{
						SessionID: res.SessionID, Namespace: counters, ID: id, Epoch: res.Epoch,
					}})
					c.fail(err)
				}
			}
		})
	}
	all.Wait()
	require.Empty(t, c.errs)
}
