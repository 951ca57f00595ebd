package pinboard

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/quota"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestPastItsBoundsARequestIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	bounds := func(o *Options) { o.MaxHeld, o.MaxHeldPerID = 3, 2 }
	inHoldBubble(t, bounds, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		replies := []*reply{b.get("alice"), b.get("alice")}
		synctest.Wait()
		b.get("alice").requireAtOnce(t, http.StatusServiceUnavailable)
		replies = append(replies, b.get("bob").requireWaits(b))
		b.get("carol").requireAtOnce(t, http.StatusServiceUnavailable)
		require.EqualValues(t, 3, b.held())
		time.Sleep(time.Second)
		b.worker("next", nil)
		for _, r := range replies {
			r.requireSoonAfter(t, time.Second)
		}
		require.Zero(t, b.held())

		// The places are free again.
		w := b.worker("late", refusing(wire.RefusalClosing))
		w.place("dave")
		again := []*reply{b.get("dave"), b.get("dave")}
		time.Sleep(time.Second)
		require.EqualValues(t, 2, b.held())
		r := b.get("dave").requireAtOnce(t, http.StatusServiceUnavailable)
		require.Contains(t, r.body, "refused: closing")
		require.Equal(t, "1", r.header.Get("Retry-After"), "the worker's has none")
		for _, r := range again {
			r.requireStatus(t, http.StatusServiceUnavailable)
			require.Contains(t, r.body, "refused: closing")
		}
	})
}

func TestAnAddressHasHalfOfThePlacesOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	bounds := func(o *Options) {
		o.MaxHeld, o.MaxHeldPerID = 4, 4
	}
	inHoldBubble(t, bounds, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		from := func(addr string) *held {
			return b.pb.holds.join(ask{instance: instance{counters_, "alice"}}, quota.Site(netip.MustParseAddr(addr)))
		}
		for range 3 { // and gives them back
			places := []*held{from("192.0.2.1"), from("192.0.2.1")}
			require.Nil(t, from("192.0.2.1"))
			places = append(places, from("192.0.2.2"), b.pb.holds.join(ask{instance: instance{counters_, "bob"}}, netip.Prefix{}))
			require.NotContains(t, places, (*held)(nil))
			require.Nil(t, from("192.0.2.3"))
			for _, w := range places {
				w.leave(route{})
			}
			require.Empty(t, b.pb.holds.sites)
		}
	})
}

func TestAClientThatLeavesFreesItsPlaceAtOnce(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"no body": "", "a body": "body", "a long body": strings.Repeat("b", 64<<10)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
				b.worker("old", nil, draining)
				stays, leaves := b.send("POST", "/counters/alice", body), b.send("POST", "/counters/alice", body)
				time.Sleep(time.Second)
				require.EqualValues(t, 2, b.held())
				leaves.leave()
				synctest.Wait()
				require.EqualValues(t, 1, b.held())
				stays.leave()
				synctest.Wait()
				require.Zero(t, b.held())
				require.Empty(t, b.pb.holds.ids)
				require.Zero(t, b.pb.counters.holdsGivenUp.Load(), "they gave up themselves")
				before := b.asked.resolves.Load()
				time.Sleep(time.Second)
				require.Equal(t, before, b.asked.resolves.Load(), "nobody asks for them any more")
			})
		})
	}
}

func TestAClientThatLeavesInTheMiddleOfItsBodyFreesItsPlace(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		conn, err := b.front.dial(t.Context())
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 100\r\n\r\npart")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.EqualValues(t, 1, b.held())
		require.NoError(t, conn.Close())
		synctest.Wait()
		require.Zero(t, b.held())
	})
}

func TestAHostsDeadlineEndsAWait(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rec := &recorded{header: http.Header{}}
		b.pb.ServeHTTP(rec, (&http.Request{
			Method: "GET", RequestURI: "/counters/alice", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			URL: mustURL("/counters/alice"), Header: http.Header{}, Body: http.NoBody, RemoteAddr: "192.0.2.1:1",
		}).WithContext(ctx))
		require.Equal(t, http.StatusServiceUnavailable, rec.status)
		require.Zero(t, b.held())
	})
}

func TestWhenTheNodeShutsDownNothingWaitsAnyMore(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		replies := []*reply{b.get("alice"), b.send("POST", "/counters/alice", "body"), b.get("bob")}
		time.Sleep(time.Second)
		require.EqualValues(t, 3, b.held())
		require.NoError(t, b.pb.Close())
		for _, r := range replies {
			r.requireStatus(t, http.StatusServiceUnavailable)
			require.Equal(t, time.Second, r.after)
			require.Equal(t, "this node is shutting down", errorOf(t, strings.TrimSpace(r.body)))
		}
		require.Empty(t, b.pb.holds.ids)
		require.EqualValues(t, 3, b.pb.counters.holdsGivenUp.Load())
	})
}

// A request that was on its way when the node closed does not begin to wait.
func TestARequestUnderWayDoesNotWaitOnANodeThatShutsDown(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		asked, goOn := make(chan struct{}), make(chan struct{})
		old := b.worker("old", func(rw http.ResponseWriter, r *http.Request) {
			close(asked)
			<-goOn
			refusing(wire.RefusalClosing)(rw, r)
		})
		old.place("alice")
		r := b.get("alice")
		<-asked
		require.NoError(t, b.pb.Close())
		close(goOn)
		r.requireAtOnce(t, http.StatusServiceUnavailable)
		require.Zero(t, b.pb.counters.holds.Load())
	})
}

func TestAllWhoWaitForAnIdShareItsLookUps(t *testing.T) {
	t.Parallel()
	const waiting, wait = 100, 4 * time.Second
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		replies := make([]*reply, waiting)
		for i := range replies {
			replies[i] = b.get("alice")
		}
		time.Sleep(wait / 2)
		require.EqualValues(t, waiting, b.held())
		before := b.asked.resolves.Load()
		time.Sleep(wait / 2)
		looks := b.asked.resolves.Load() - before
		require.LessOrEqual(t, looks, int64(wait/2/(lastPause*3/4))+1)
		require.GreaterOrEqual(t, looks, int64(wait/2/(lastPause*5/4)))

		before = b.asked.resolves.Load()
		next := b.worker("next", nil)
		for _, r := range replies {
			r.requireSoonAfter(t, wait)
			require.Equal(t, "next", r.body)
		}
		require.EqualValues(t, waiting, next.hits.Load())
		// Each look-up may ask the store more than once, for its preference.
		require.LessOrEqual(t, b.asked.resolves.Load()-before, int64(2*maxStale), "they go where the look-up says")
	})
}

func TestSlowRequestsDoNotKeepTheOthersWaiting(t *testing.T) {
	t.Parallel()
	const waiting = 100
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		replies := make([]*reply, waiting)
		for i := range replies {
			replies[i] = b.get("alice")
		}
		time.Sleep(time.Second)
		next := b.worker("next", func(rw http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			_, _ = io.WriteString(rw, "next")
		})
		time.Sleep(6 * lastPause)
		require.EqualValues(t, waiting, next.hits.Load(), "no answer was there yet")
		time.Sleep(5 * time.Second)
		require.Zero(t, b.held(), "a place is for as long as a request may wait")
		for _, r := range replies {
			r.requireStatus(t, http.StatusOK)
		}
	})
}

func TestAnOwnerThatRefusesIsNotAskedByAll(t *testing.T) {
	t.Parallel()
	const waiting = 50
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		replies := make([]*reply, waiting)
		for i := range replies {
			replies[i] = b.get("alice")
		}
		time.Sleep(time.Second)
		refuses := b.worker("refuses", refusing(wire.RefusalLeaseUnhealthy))
		time.Sleep(2 * time.Second)
		require.Positive(t, refuses.hits.Load())
		require.LessOrEqual(t, refuses.hits.Load(), int64(2*time.Second/(lastPause*3/4))+1)
		refuses.end()
		b.worker("next", nil)
		for _, r := range replies {
			r.requireSoonAfter(t, 3*time.Second)
		}
	})
}

func TestABodyWaitsOnlyIfItCanBeSentAgain(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("b", 5000)
	short := func(o *Options) { o.ReplayBuffer = 1000 }
	for name, c := range map[string]struct {
		handler http.HandlerFunc // nil: no connection is accepted
		body    string
		waits   bool
	}{
		"a body that is kept":       {refusing(wire.RefusalClosing), long[:1000], true},
		"a longer one, partly sent": {refusing(wire.RefusalClosing), long, false},
		"a longer one, partly sent too early": {func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			failing(http.StatusForbidden, wire.DetailInvalidAttestation)(rw, r)
		}, long, false},
		"a longer one, of which nothing was sent": {nil, long, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHoldBubble(t, short, func(t *testing.T, b *holdBubble) {
				old := b.worker("old", c.handler)
				old.place("alice")
				if c.handler == nil {
					old.stop()
				}
				b.worker("next", nil)
				r := b.send("PUT", "/counters/alice", c.body)
				if !c.waits {
					<-r.done // the worker's own answer, as without a hold
					require.Equal(t, http.StatusServiceUnavailable, r.status)
					require.Less(t, r.after, firstPause/2)
					require.Zero(t, b.pb.counters.holds.Load())
					return
				}
				time.Sleep(time.Second)
				r.requireWaits(b)
				old.end()
				r.requireSoonAfter(t, time.Second)
				require.Equal(t, "next"+c.body, r.body)
			})
		})
	}
}

// The client is not asked for a body before there is somebody to read it.
func TestAnAnnouncedBodyStaysWithItsClientDuringAWait(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		conn, err := b.front.dial(t.Context())
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, "POST /counters/alice HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		said := make(chan string, 1)
		go func() {
			first := make([]byte, len("HTTP/1.1 100"))
			_, _ = io.ReadFull(conn, first)
			said <- string(first)
			_, _ = io.Copy(io.Discard, conn)
		}()
		time.Sleep(time.Second)
		require.Empty(t, said)
		require.EqualValues(t, 1, b.held())
		b.worker("next", nil)
		require.Equal(t, "HTTP/1.1 100", <-said)
		_, err = io.WriteString(conn, "body")
		require.NoError(t, err)
	})
}

func TestStreamsAndUpgradesWaitLikeAnyOther(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		old := b.worker("old", refusing(wire.RefusalClosing))
		old.place("alice")
		next := func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "" {
				conn, _, err := http.NewResponseController(rw).Hijack()
				if err == nil {
					_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_ = conn.Close()
				}
				return
			}
			rw.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(rw, "data: 1\n\n")
		}
		b.worker("next", next)
		stream := b.get("alice")
		socket := b.send("GET", "/counters/alice", "", "Connection: Upgrade", "Upgrade: websocket",
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
		time.Sleep(time.Second)
		stream.requireWaits(b)
		socket.requireWaits(b)
		old.release("alice")
		require.Equal(t, "data: 1\n\n", stream.requireSoonAfter(t, time.Second).body)
		<-socket.done
		require.Equal(t, http.StatusSwitchingProtocols, socket.status)
	})
}

func TestHealthTellsOfRequestsThatWait(t *testing.T) {
	t.Parallel()
	inHoldBubble(t, nil, func(t *testing.T, b *holdBubble) {
		b.worker("old", nil, draining)
		b.get("alice").requireStatus(t, http.StatusServiceUnavailable)
		b.get("alice").requireWaits(b)
		rec := &recorded{header: http.Header{}}
		require.NoError(t, b.pb.registry.health(t.Context(), rec, nil))
		require.Contains(t, rec.body.String(), `"held":1,"holds":2,"holdsGivenUp":1`)
		require.Zero(t, b.pb.counters.proxying.Load(), "nothing is open to a worker")
	})
}

// What a worker that is bound under a host name releases is looked up at once, as
// what others release.
func TestAReleaseUnderAHostNameWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	waits := &heldID{nudged: make(chan struct{}, 1)}
	other := &heldID{nudged: make(chan struct{}, 1)}
	h := &holds{ids: map[heldName]*heldID{
		{instance{counters_, "x"}, "preview.example"}: waits,
		{instance{counters_, "y"}, "preview.example"}: other,
	}}
	h.freed([]wire.Release{{Namespace: store.Bind("preview.example", counters_), ID: "x"}})
	require.Len(t, waits.nudged, 1)
	require.Empty(t, other.nudged)
}
