package worker

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// replayers send attestations of all sessions that there were, with all epochs,
// again and again, while sessions end and instances wind down.
type replayers struct {
	t *testing.T
	h *harness

	mu     sync.Mutex
	tokens []replayed
	newest map[string]int64 // the highest epoch that was served, by id

	taken, refused, stale atomic.Int64
}

type replayed struct{ session, token string }

// pick returns an attestation of the present session, or of any one.
func (p *replayers) pick() (one replayed) {
	present := p.h.w.reg.sessionID()
	p.mu.Lock()
	defer p.mu.Unlock()
	if present != "" && rand.IntN(3) > 0 {
		claims := attest.Claims{Audience: present}
		if rand.IntN(2) > 0 {
			claims.Caller, claims.Depth = "/c/caller", 1
		}
		token, err := attest.Mint(p.h.w.reg.secret, claims, p.h.now().wall)
		require.NoError(p.t, err)
		p.tokens = append(p.tokens, replayed{present, token})
	}
	if len(p.tokens) == 0 {
		return replayed{}
	}
	return p.tokens[len(p.tokens)-1-rand.IntN(min(len(p.tokens), 40))]
}

func (p *replayers) ask(id string) {
	one, epoch := p.pick(), 100+rand.Int64N(1+int64(time.Since(p.h.pb.began)/time.Second))
	r := httptest.NewRequest(http.MethodGet, "/c/"+id, nil)
	r.Header.Set(wire.HeaderAttestation, one.token)
	r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(epoch, 10))
	before := p.h.w.reg.sessionID()
	p.mu.Lock()
	newest := p.newest[id]
	p.mu.Unlock()
	rec := p.h.do(r)
	after := p.h.w.reg.sessionID()
	forbidden := rec.Code == http.StatusForbidden
	switch {
	case before != one.session && !forbidden: // a session never comes back
		p.t.Errorf("an attestation for %q was taken in %q: %d", one.session, before, rec.Code)
	case before == one.session && after == one.session && before != "" && forbidden:
		p.t.Errorf("an attestation for %q was refused in it", before)
	case forbidden:
		p.refused.Add(1)
	case rec.Code == http.StatusOK:
		p.taken.Add(1)
		if epoch < newest {
			p.t.Errorf("%s was served for epoch %d behind %d", id, epoch, newest)
		}
		p.mu.Lock()
		p.newest[id] = max(p.newest[id], epoch)
		p.mu.Unlock()
	case rec.Header().Get(wire.HeaderRefusal) == wire.RefusalStaleEpoch:
		p.stale.Add(1)
	}
}

func TestNoAttestationOfAnotherSessionIsTakenWhileAllChanges(t *testing.T) {
	t.Parallel()
	var live sync.Map // of *atomic.Int64, how many instances an id has
	construct := func(inst *Instance) (http.Handler, error) {
		n, _ := live.LoadOrStore(inst.ID(), &atomic.Int64{})
		if n.(*atomic.Int64).Add(1) != 1 {
			t.Errorf("two instances of %s", inst.ID())
		}
		inst.OnClose(func(context.Context) error { n.(*atomic.Int64).Add(-1); return nil })
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			wait(r.Context(), time.Duration(rand.IntN(20))*time.Millisecond)
			switch rand.IntN(40) {
			case 0:
				inst.Abort()
			case 1:
				inst.WindDown(time.Duration(rand.IntN(30)) * time.Millisecond)
			}
		}), nil
	}
	inBubble(t, Options{}, hosting(construct), func(t *testing.T, h *harness) {
		h.start()
		beats := 0
		h.pb.on(func(c call) (reply, bool) {
			if c.path != wire.PathHeartbeat {
				return reply{}, false
			}
			beats++
			return reply{status: http.StatusConflict, body: object{"error": "unknown session", "reregister": true}}, beats%3 == 0
		})
		p := &replayers{t: t, h: h, newest: map[string]int64{}}
		var group sync.WaitGroup
		for range 6 {
			group.Go(func() {
				for range 400 {
					p.ask(strconv.Itoa(rand.IntN(3)))
					wait(t.Context(), time.Duration(rand.IntN(200))*time.Millisecond)
				}
			})
		}
		group.Wait()
		require.Positive(t, p.taken.Load())
		require.Positive(t, p.refused.Load())
		require.Positive(t, p.stale.Load())
		require.Greater(t, h.w.reg.reregistrations.Load(), int64(3))
		h.pb.on(nil)
	})
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
