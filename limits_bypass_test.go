package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/store"
)

// slowPlacing is a store that keeps what may place an id waiting, but for one id.
type slowPlacing struct {
	store.Store
	waiting atomic.Int64
	let     chan struct{}
}

func (s *slowPlacing) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if r.View != lookOnly && r.ID != "placed" {
		s.waiting.Add(1)
		<-s.let
	}
	return s.Store.Resolve(ctx, r)
}

func forwardedFrom(addr string) string { return "X-Forwarded-For: " + addr }

// behindBalancer trusts what clients say of their addresses.
func behindBalancer(s *setup) {
	s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
}

// A limit that is looked at first and counted later holds only for those who ask
// one after the other.
func TestNewIDsAskedForAtOnceAreBoundAsWell(t *testing.T) {
	t.Parallel()
	const limit, asked = 2, 20
	slow := &slowPlacing{let: make(chan struct{})}
	f := newFront(t, behindBalancer, func(s *setup) {
		s.opts.Limits = Limits{PlacementsPerAddress: limit}
		s.store = func(inner store.Store) store.Store { slow.Store = inner; return slow }
	})
	f.register(newFake(t, nil), "a").place("placed")
	var refused atomic.Int64
	answers := make(chan int, asked)
	for i := range asked {
		c := f.waiting("/counters/id-"+strconv.Itoa(i), forwardedFrom("192.0.2.1"))
		go func() {
			status := c.answer("GET").StatusCode
			if status == http.StatusTooManyRequests {
				refused.Add(1)
			}
			answers <- status
		}()
	}
	require.Eventually(t, func() bool { return slow.waiting.Load()+refused.Load() == asked }, patience, time.Millisecond)
	resp, _ := f.get("/counters/placed", forwardedFrom("192.0.2.1"))
	require.Equal(t, http.StatusOK, resp.StatusCode, "it has an owner")
	close(slow.let)
	got := map[int]int{}
	for range asked {
		got[<-answers]++
	}
	require.Equal(t, map[int]int{http.StatusOK: limit, http.StatusTooManyRequests: asked - limit}, got)
}

// placingFails is a store that answers who looks, and fails who places, if it is on.
type placingFails struct {
	store.Store
	on atomic.Bool
}

func (s *placingFails) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if s.on.Load() && r.View != lookOnly {
		return store.Result{}, errPlanted
	}
	return s.Store.Resolve(ctx, r)
}

// What was counted for an id that was not placed after all is given back.
func TestOnlyWhatIsPlacedCountsAsPlaced(t *testing.T) {
	t.Parallel()
	out := &placingFails{}
	f := newFront(t, behindBalancer, func(s *setup) {
		s.opts.Limits = Limits{PlacementsPerAddress: 1}
		s.store = func(inner store.Store) store.Store { out.Store = inner; return out }
	})
	ask := func(want int) {
		t.Helper()
		resp, _ := f.get("/counters/x", forwardedFrom("192.0.2.1"))
		require.Equal(t, want, resp.StatusCode)
	}
	worker := f.register(newFake(t, nil), "a")
	resp, _ := f.get("/counters/first", forwardedFrom("192.0.2.2"))
	require.Equal(t, http.StatusOK, resp.StatusCode)
	out.on.Store(true)
	ask(http.StatusServiceUnavailable)
	out.on.Store(false)
	_, err := f.store.Drain(t.Context(), worker.ClientID, nil)
	require.NoError(t, err)
	ask(http.StatusServiceUnavailable)
	require.NoError(t, f.store.Undrain(t.Context(), worker.ClientID))
	ask(http.StatusOK)
	require.Equal(t, 1, f.pb.placer.made.of[netip.MustParsePrefix("192.0.2.1/32")])
}

// Who asks first for an id, and may have no more, must not have others refused
// who ask for it meanwhile.
func TestTheLimitOfOneAddressIsNotToldToThoseWhoWaitWithIt(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]time.Duration{"sharing a look-up": 0, "held": patience} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow := &slowLook{let: make(chan struct{})}
			f := newFront(t, behindBalancer, func(s *setup) {
				s.opts.Limits = Limits{PlacementsPerAddress: 1}
				s.opts.PlacementHold = hold
				s.store = func(inner store.Store) store.Store { slow.Store = inner; return slow }
			})
			worker := f.register(newFake(t, nil), "a")
			var first *client
			if hold > 0 {
				_, err := f.store.Drain(t.Context(), worker.ClientID, nil)
				require.NoError(t, err)
				first = f.waiting("/counters/x", forwardedFrom("192.0.2.1"))
				require.Eventually(t, func() bool { return f.pb.counters.held.Load() == 1 }, patience, time.Millisecond)
			} else {
				slow.on.Store(true)
				first = f.waiting("/counters/x", forwardedFrom("192.0.2.1"))
				require.Eventually(t, func() bool { return slow.waiting.Load() == 1 }, patience, time.Millisecond)
			}
			others := []*client{f.waiting("/counters/x", forwardedFrom("192.0.2.2")), f.waiting("/counters/x", forwardedFrom("192.0.2.3"))}
			if hold > 0 {
				require.Eventually(t, func() bool { return f.pb.counters.held.Load() == 3 }, patience, time.Millisecond)
			} else {
				require.Eventually(t, func() bool { return f.pb.counters.resolves.Load() == 3 }, patience, time.Millisecond)
			}
			// The first has its share by now.
			_, err := f.pb.placer.made.take(netip.MustParsePrefix("192.0.2.1/32"))
			require.NoError(t, err)
			close(slow.let)
			require.NoError(t, f.store.Undrain(t.Context(), worker.ClientID))
			for _, c := range others {
				require.Equal(t, http.StatusOK, c.answer("GET").StatusCode)
			}
			resp, body := first.whole("GET")
			// It has an owner by now, or had none when it was its turn.
			if resp.StatusCode != http.StatusOK {
				require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
				require.Contains(t, errorOf(t, body), "your address")
			}
		})
	}
}

// slowLook is a store that keeps those waiting who look an id up, if it is on.
type slowLook struct {
	store.Store
	on      atomic.Bool
	waiting atomic.Int64
	let     chan struct{}
}

func (s *slowLook) Resolve(ctx context.Context, r store.Request) (store.Result, error) {
	if s.on.Load() {
		s.waiting.Add(1)
		<-s.let
	}
	return s.Store.Resolve(ctx, r)
}

// Clients choose the host name that they ask, and all that nothing is bound under
// lead to one instance.
func TestRequestsOfAnInstanceAreBoundWhateverHostTheyAsk(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{RequestsPerID: 2}
		s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		s.namespaces = []string{store.Bind("bound.example", counters_)}
	})
	w := newFake(t, func(h *hit) { h.gone() })
	f.register(w, "a")
	other := newFake(t, nil)
	f.register(other, "b", func(r *store.Registration) { r.Hostname = "bound.example" })
	n := 0
	ask := func(host string) *client {
		n++ // one address has half
		return f.ask(fmt.Sprintf("GET /counters/alice HTTP/1.1\r\nConnection: close\r\nHost: %s\r\nX-Forwarded-For: 192.0.2.%d\r\n\r\n", host, n))
	}
	for i := range 2 {
		ask("host-" + strconv.Itoa(i) + ".example")
		require.Eventually(t, func() bool { return len(w.seen()) == i+1 }, patience, time.Millisecond)
	}
	resp, body := ask("host-2.example").whole("GET")
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.Contains(t, errorOf(t, body), "the instance")
	require.Len(t, w.seen(), 2)
	// What has its own instance under its name is not kept out by that, even
	// if this node has not met the name yet.
	resp, _ = ask("bound.example").whole("GET")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, other.seen(), 1)
}

// An instance is there for others, too, whatever one of its clients opens.
func TestAnAddressHasHalfOfAnInstancesRequests(t *testing.T) {
	t.Parallel()
	for most, half := range map[int]int{1: 1, 2: 1, 3: 1, 8: 4, 1000: 500} {
		l := newLimiter(Limits{Requests: 10_000, RequestsPerID: most})
		site := func(i int) netip.Prefix { return quota.Site(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})) }
		name := instance{"/counters", "alice"}
		fill := func(site netip.Prefix) (all []counted, err error) {
			for range most {
				var c counted
				if c, err = l.enterID(name, site); err != nil {
					break
				}
				all = append(all, c)
			}
			return all, err
		}
		for range 3 { // all is given back
			mine, err := fill(site(1))
			require.Len(t, mine, half)
			if most > 1 {
				require.Equal(t, errBusyIDAddress, err)
			}
			other, err := l.enterID(instance{"/counters", "bob"}, site(1))
			require.NoError(t, err, "of another instance")
			var theirs []counted
			for i := range 3 { // those that come late have less, by the few
				more, _ := fill(site(2 + i))
				theirs = append(theirs, more...)
			}
			require.Len(t, theirs, most-half)
			_, err = l.enterID(name, site(9))
			require.Equal(t, errBusyID, err)
			for _, c := range append(append(mine, theirs...), other) {
				l.leaveID(c)
			}
			// Nobody's, as of a trusted proxy's own, are not parted.
			all, err := fill(netip.Prefix{})
			require.NoError(t, err)
			for _, c := range all {
				l.leaveID(c)
			}
			total, keys := l.ids.Use()
			require.Zero(t, total+keys)
			total, keys = l.sitesOfIDs.Use()
			require.Zero(t, total+keys)
		}
	}
}

func TestAnAddressThatHasItsHalfOfAnInstanceIsToldSo(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way func(*setup)) {
		f := newFront(t, way, func(s *setup) {
			s.opts.Limits = Limits{RequestsPerID: 4}
			s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		})
		f.register(newFake(t, func(h *hit) {
			h.send(eventsHead + "8\r\ndata: x\n\r\n")
			h.gone()
		}), "a")
		ask := func(from string) (*client, int) {
			c := f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nX-Forwarded-For: " + from + "\r\n\r\n")
			return c, c.answer("GET").StatusCode
		}
		var open []*client
		for range 2 {
			c, status := ask("192.0.2.1")
			require.Equal(t, http.StatusOK, status)
			open = append(open, c)
		}
		_, status := ask("192.0.2.1")
		require.Equal(t, http.StatusTooManyRequests, status)
		c, status := ask("192.0.2.2")
		require.Equal(t, http.StatusOK, status)
		for _, c := range append(open, c) {
			require.NoError(t, c.Close())
		}
		f.quiet()
		require.Eventually(t, func() bool {
			total, keys := f.pb.limiter.sitesOfIDs.Use()
			return total == 0 && keys == 0
		}, patience, time.Millisecond)
	})
}

// A body that is longer than all bodies together may be is too long, which no
// waiting changes.
func TestABodyOfAWorkersCallThatIsTooLongIsToldSo(t *testing.T) {
	t.Parallel()
	inServedBubble(t, func(t *testing.T, n *regNode, _ *regWorker, c pipeConn) {
		began := time.Now()
		c.head("/registry/register", tokenWorker, int(n.pb.opts.Limits.RegistryBytes)+1, '{')
		require.Equal(t, http.StatusRequestEntityTooLarge, c.answer().StatusCode)
		require.Zero(t, time.Since(began), "nor is it waited for")
		synctest.Wait()
		require.True(t, n.pb.limiter.bodies.TryAcquire(n.pb.opts.Limits.RegistryBytes))
		time.Sleep(2 * time.Second) // the server closes in its own time
	})
}
