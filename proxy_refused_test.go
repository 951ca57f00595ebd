package pinboard

import (
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// pair is a front with two workers, of which the first owns the id alice.
func pair(t *testing.T, first, second func(*hit), changes ...func(*setup)) (f *front, a, b *fake, sa, sb *session) {
	t.Helper()
	f = newFront(t, changes...)
	a, b = newFake(t, first), newFake(t, second)
	sa, sb = f.register(a, "a"), f.register(b, "b")
	sa.place("alice")
	return f, a, b, sa, sb
}

// owner returns the session that the id is placed on, "" if none.
func (f *front) owner(id string) string {
	f.t.Helper()
	row, err := f.store.Lookup(f.t.Context(), counters_, id)
	if errors.Is(err, store.ErrNotPlaced) {
		return ""
	}
	require.NoError(f.t, err)
	return row.SessionID
}

// reasons are those that workers give, and whether they give the placement up.
var reasons = map[string]bool{
	wire.RefusalLeaseUnhealthy: true, wire.RefusalDraining: true, wire.RefusalCapacity: true,
	wire.RefusalActivationQueue: true, wire.RefusalReleasedEpoch: true,
	wire.RefusalExpired: false, wire.RefusalClosing: false, wire.RefusalStaleEpoch: false,
}

func TestARefusedRequestIsPlacedOnceMoreAndOnlyTheSecondAnswerSeen(t *testing.T) {
	t.Parallel()
	for reason, givesUp := range reasons {
		f, a, b, sa, sb := pair(t,
			func(h *hit) { h.body(); h.reply(503, "no", "X-First: 1", "pinned-refusal: "+reason) },
			func(h *hit) { h.reply(201, h.body(), "X-Second: 1") })
		resp, body := f.post("/counters/alice/x?y=1;", "the body")
		if !givesUp {
			require.Equal(t, 503, resp.StatusCode, reason)
			require.Equal(t, sa.SessionID, f.owner("alice"), "an instance may live there")
			require.Empty(t, b.seen())
			continue
		}
		require.Equal(t, 201, resp.StatusCode, reason)
		require.Equal(t, "the body", body)
		require.Empty(t, resp.Header.Get("X-First"))
		require.Equal(t, "1", resp.Header.Get("X-Second"))
		require.Equal(t, sb.SessionID, f.owner("alice"))
		one, two := a.only(), b.only()
		require.Equal(t, one.target, two.target)
		two.claims(sb)
		require.Greater(t, two.epoch(), one.epoch())
		require.EqualValues(t, 1, f.pb.counters.retries.Load())
	}
}

func TestARefusedRequestFollowsARowThatHasMoved(t *testing.T) {
	t.Parallel()
	for reason := range reasons {
		asked, moved := make(chan struct{}), make(chan struct{})
		f, _, b, sa, sb := pair(t,
			func(h *hit) {
				h.body()
				asked <- struct{}{}
				<-moved
				h.reply(503, "no", "pinned-refusal: "+reason)
			},
			func(h *hit) { h.ok(h.body()) })
		c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 8\r\n\r\nthe body")
		<-asked
		freed, err := f.store.Release(t.Context(), []wire.Release{{SessionID: sa.SessionID, Namespace: counters_, ID: "alice"}})
		require.NoError(t, err)
		require.Equal(t, 1, freed)
		epoch := sb.place("alice")
		moved <- struct{}{}
		resp, body := c.whole("POST")
		require.Equal(t, 200, resp.StatusCode, reason)
		require.Equal(t, "the body", body)
		require.Equal(t, epoch, b.only().epoch(), "the row that is there is not touched")
	}
}

func TestAnExpiredOwnerPastItsDrainsDeadlineGivesUp(t *testing.T) {
	t.Parallel()
	f, _, b, _, _ := pair(t, func(h *hit) { h.reply(503, "no", "pinned-refusal: expired") }, nil)
	zero := time.Duration(0)
	_, err := f.store.Drain(t.Context(), "a", &zero)
	require.NoError(t, err)
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 200, resp.StatusCode)
	b.only()
}

func TestASecondWorkerThatAcceptsNoConnectionIsTheAnswer(t *testing.T) {
	t.Parallel()
	f, _, b, _, sb := pair(t, func(h *hit) { h.body(); h.refuse() }, nil)
	b.stop()
	resp, body := f.post("/counters/alice", "the body")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "the owner does not answer", errorOf(t, body))
	require.Equal(t, sb.SessionID, f.owner("alice"))
}

func TestAnUnknownMarkerIsNoRefusalAndIsTakenOff(t *testing.T) {
	t.Parallel()
	f, _, b, sa, _ := pair(t, func(h *hit) { h.reply(503, "mine", "pinned-refusal: something", "Retry-After: 7") }, nil)
	resp, body := f.get("/counters/alice")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "mine", body)
	require.Equal(t, "7", resp.Header.Get("Retry-After"))
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	require.Empty(t, b.seen())
	require.Equal(t, sa.SessionID, f.owner("alice"))
}

func TestAMarkerOnAnotherStatusIsNoRefusal(t *testing.T) {
	t.Parallel()
	f, _, b, _, _ := pair(t, func(h *hit) { h.reply(500, "mine", "pinned-refusal: lease-unhealthy") }, nil)
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 500, resp.StatusCode)
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	require.Empty(t, b.seen())
}

func TestASecondRefusalIsPassedOnWithoutItsMarker(t *testing.T) {
	t.Parallel()
	f, a, b, _, _ := pair(t,
		func(h *hit) { h.reply(503, "first", "pinned-refusal: lease-unhealthy") },
		func(h *hit) { h.reply(503, "second", "pinned-refusal: lease-unhealthy", "X-Second: 1") })
	c := newFake(t, nil)
	f.register(c, "c", func(r *store.Registration) { r.Headroom = 0 })
	resp, body := f.get("/counters/alice")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, "second", body)
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	a.only()
	require.Len(t, append(b.seen(), c.seen()...), 1, "no third attempt")
	require.Empty(t, f.owner("alice"), "its row does not stay with who refused it")
}

func TestWithNoOtherCandidateTheFirstRefusalIsTheAnswer(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		h.body()
		h.reply(503, `{"detail":"x"}`, "pinned-refusal: lease-unhealthy", "X-First: 1", "Content-Type: application/json")
	})
	s := f.register(w, "a")
	s.place("alice")
	resp, body := f.post("/counters/alice", "b")
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, `{"detail":"x"}`, body)
	require.Equal(t, "1", resp.Header.Get("X-First"))
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	require.Empty(t, f.owner("alice"), "the row is free")
}

func TestADrainingOwnersPlainRefusalsCountAndOthersDoNot(t *testing.T) {
	t.Parallel()
	zero, minute := time.Duration(0), time.Minute
	for _, c := range []struct {
		name, detail string
		own          bool
		drain        bool
		deadline     *time.Duration
		elsewhere    bool
	}{
		{name: "no drain", detail: wire.DetailHostDraining},
		{name: "own drain", detail: wire.DetailHostDraining, own: true, elsewhere: true},
		{name: "operator's drain", detail: wire.DetailHostDraining, drain: true, elsewhere: true},
		{name: "another detail", detail: "host draining", own: true},
		{name: "expired without drain", detail: wire.DetailLeaseExpired},
		{name: "expired before the deadline", detail: wire.DetailLeaseExpired, drain: true, deadline: &minute},
		{name: "expired in a drain without deadline", detail: wire.DetailLeaseExpired, drain: true},
		{name: "expired past the deadline", detail: wire.DetailLeaseExpired, drain: true, deadline: &zero, elsewhere: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t)
			answer := fmt.Sprintf(`{"detail":%q}`, c.detail)
			a := newFake(t, func(h *hit) { h.reply(503, answer, "Content-Type: application/json") })
			b := newFake(t, nil)
			sa := f.register(a, "a")
			sa.place("alice")
			if c.own {
				_, err := f.store.Heartbeat(t.Context(), store.Beat{SessionID: sa.SessionID, Headroom: 1, Draining: true})
				require.NoError(t, err)
			}
			if c.drain {
				_, err := f.store.Drain(t.Context(), "a", c.deadline)
				require.NoError(t, err)
			}
			f.register(b, "b")
			resp, body := f.get("/counters/alice")
			if c.elsewhere {
				require.Equal(t, 200, resp.StatusCode)
				require.Len(t, b.seen(), 1)
				return
			}
			require.Equal(t, 503, resp.StatusCode)
			require.Equal(t, answer, body)
			require.Empty(t, b.seen())
			require.Equal(t, sa.SessionID, f.owner("alice"))
		})
	}
}

func TestAnApplicationsOwn503PassesUnchanged(t *testing.T) {
	t.Parallel()
	long := `{"detail":"` + strings.Repeat("x", 3*maxDetail) + `"}`
	for _, body := range []string{`{"detail":"host draining; retry","more":1}`, `["host draining; retry"]`, `{`, "", long} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.reply(503, body, "Content-Type: application/json", "X-App: 1") })
		s := f.register(w, "a", func(r *store.Registration) { r.Draining = true })
		require.NotNil(t, s)
		b := newFake(t, nil)
		f.register(b, "b", func(r *store.Registration) { r.Draining = true })
		_, err := f.store.Heartbeat(t.Context(), store.Beat{SessionID: s.SessionID, Headroom: 1})
		require.NoError(t, err)
		s.place("alice")
		_, err = f.store.Heartbeat(t.Context(), store.Beat{SessionID: s.SessionID, Headroom: 1, Draining: true})
		require.NoError(t, err)
		resp, got := f.get("/counters/alice")
		require.Equal(t, 503, resp.StatusCode)
		require.Equal(t, body, got)
		require.Equal(t, "1", resp.Header.Get("X-App"))
		require.Empty(t, b.seen())
	}
}

func TestAChunkedRefusalOfADrainingOwnerIsRecognised(t *testing.T) {
	t.Parallel()
	f, _, b, sa, _ := pair(t, func(h *hit) {
		h.send("HTTP/1.1 503 x\r\nContent-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"b\r\n{\"detail\":\"\r\n15\r\nhost draining; retry\"\r\n1\r\n}\r\n0\r\n\r\n")
	}, nil)
	_, err := f.store.Drain(t.Context(), "a", nil)
	require.NoError(t, err)
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 200, resp.StatusCode)
	require.Len(t, b.seen(), 1)
	require.NotEqual(t, sa.SessionID, f.owner("alice"))
}

func TestAnInvalidAttestationIsAskedAgainLater(t *testing.T) {
	t.Parallel()
	for body, status := range map[string]int{
		`{"detail":"invalid attestation"}`:             503,
		`{"detail": "invalid attestation"}`:            503,
		`{"detail":"invalid attestation","code":1}`:    403,
		`{"detail":"invalid attestation of the cake"}`: 403,
		"": 403,
	} {
		f := newFront(t)
		w := newFake(t, func(h *hit) { h.reply(403, body, "Content-Type: application/json") })
		f.register(w, "a")
		resp, got := f.get("/counters/alice")
		require.Equal(t, status, resp.StatusCode, body)
		if status == 503 {
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			errorOf(t, got)
		} else {
			require.Equal(t, body, got)
		}
	}
}

func TestALongBodyThatWasPartlySentGivesTheRefusalAndFreesTheRow(t *testing.T) {
	t.Parallel()
	f, a, b, _, _ := pair(t, func(h *hit) { h.body(); h.refuse() }, nil,
		func(s *setup) { s.opts.ReplayBuffer = 1000 })
	resp, body := f.post("/counters/alice", strings.Repeat("b", 1001))
	require.Equal(t, 503, resp.StatusCode)
	require.Contains(t, body, "lease unhealthy")
	require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
	require.Empty(t, f.owner("alice"))
	a.only()
	require.Empty(t, b.seen())

	f.register(a, "a", func(r *store.Registration) { r.Draining = true })
	resp, body = f.post("/counters/alice", strings.Repeat("b", 1001))
	require.Equal(t, 200, resp.StatusCode, body)
}

func TestABodyOfExactlyTheReplayBufferIsSentAgain(t *testing.T) {
	t.Parallel()
	f, _, b, _, _ := pair(t, func(h *hit) { h.body(); h.refuse() }, func(h *hit) { h.ok(h.body()) },
		func(s *setup) { s.opts.ReplayBuffer = 1000 })
	sent := strings.Repeat("b", 999) + "!"
	resp, body := f.post("/counters/alice", sent)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, sent, body)
	b.only()
}

func TestALongBodyOfWhichNothingWasReadIsSentElsewhereWhole(t *testing.T) {
	t.Parallel()
	f, _, _, _, _ := pair(t, func(h *hit) { h.refuse(); h.gone() }, func(h *hit) { h.ok(fmt.Sprint(len(h.body()))) })
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n")
	// Nothing of the body is there until the second worker has the request.
	require.Eventually(t, func() bool { return f.pb.counters.retries.Load() == 1 }, patience, time.Millisecond)
	c.send(strings.Repeat("b", 1_000_000))
	resp, body := c.whole("POST")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "1000000", body)
}

// Bodies of any size and shape, sent in pieces, arrive whole at the second
// worker although the first reads some, all or nothing before it refuses.
func TestBodiesThroughARefusingWorkerArriveWhole(t *testing.T) {
	t.Parallel()
	const count, parallel = 1000, 8
	f := newFront(t)
	a := newFake(t, func(h *hit) {
		switch len(h.target) % 3 {
		case 0:
			h.body()
			h.refuse()
		case 1:
			_, _ = h.r.Peek(1)
			h.refuse()
			h.gone()
		case 2:
			h.refuse()
			h.gone()
		}
	})
	b := newFake(t, func(h *hit) {
		body, err := h.bodyErr()
		if err != nil {
			h.last = true
			return
		}
		h.reply(200, body, "X-Trailer: "+strings.TrimSpace(h.trailer))
	})
	sa, _ := f.register(a, "a"), f.register(b, "b")
	turns := make(chan int, count)
	ids := make([]string, count)
	for i := range count {
		ids[i] = fmt.Sprintf("id-%d", i) + strings.Repeat("x", i%3)
		sa.place(ids[i])
		turns <- i
	}
	close(turns)
	t.Run("all", func(t *testing.T) {
		for range parallel {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for i := range turns {
					f.sendInPieces(t, ids[i], i%2 == 0)
				}
			})
		}
	})
	require.EqualValues(t, count, f.pb.counters.retries.Load())
}

func (f *front) sendInPieces(t *testing.T, id string, chunked bool) {
	body := make([]byte, mrand.IntN(64<<10))
	_, _ = rand.Read(body)
	c := f.dial()
	c.t = t
	defer func() { _ = c.Close() }()
	head := fmt.Sprintf("POST /counters/%s HTTP/1.1\r\nHost: p\r\nConnection: close\r\n", id)
	if chunked {
		c.send(head + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
	} else {
		c.send(head + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)))
	}
	for left := body; len(left) > 0; {
		piece := left[:min(len(left), 1+mrand.IntN(20_000))]
		left = left[len(piece):]
		if chunked {
			c.send(fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece))
		} else {
			c.send(string(piece))
		}
	}
	if chunked {
		c.send("0\r\nX-Sum: s\r\n\r\n")
	}
	resp, got := c.whole("POST")
	require.Equal(t, 200, resp.StatusCode)
	require.True(t, got == string(body), "a body of %d bytes came as %d", len(body), len(got))
	if chunked {
		require.Equal(t, "X-Sum: s", resp.Header.Get("X-Trailer"))
	}
}

func TestAnExpectationReachesTheWorkerThatActsOnIt(t *testing.T) { // C11
	t.Parallel()
	const size = 1 << 20
	f := newFront(t)
	a := newFake(t, func(h *hit) {
		if h.method == "GET" {
			h.ok("")
			return
		}
		h.refuse()
	})
	b := newFake(t, func(h *hit) {
		if h.target == "/counters/final" {
			h.reply(417, "no")
			return
		}
		h.send("HTTP/1.1 100 Continue\r\n\r\n")
		h.ok(fmt.Sprint(len(h.body())))
	})
	sa, sb := f.register(a, "a"), f.register(b, "b")
	expect := func(id string) string {
		return fmt.Sprintf("POST /counters/%s HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", id, size)
	}
	sb.place("final")
	for i := range 50 {
		resp, _ := f.ask(expect("final")).whole("POST")
		require.Equal(t, 417, resp.StatusCode, "the final answer comes without the body")

		id := fmt.Sprint("id-", i)
		sa.place(id)
		c := f.ask(expect(id))
		resp = c.answer("POST")
		require.Equal(t, 100, resp.StatusCode)
		require.Equal(t, sb.SessionID, f.owner(id), "the second worker asked for the body")
		c.send(strings.Repeat("b", size))
		resp, body := c.whole("POST")
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, fmt.Sprint(size), body)

		getID := fmt.Sprint("get-", i)
		sa.place(getID)
		resp, _ = f.get("/counters/" + getID)
		require.Equal(t, 200, resp.StatusCode)
	}
	require.NotContains(t, a.bytes(), "bbbb", "the refusing worker got no body")
	for _, h := range append(a.seen(), b.seen()...) {
		if h.method == "POST" {
			require.Equal(t, "100-continue", h.header.Get("Expect"))
		}
	}
}

func TestAWorkerThatIgnoresAnExpectationGetsTheBodyAfterAWhile(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) { s.opts.Transport = &http.Transport{ExpectContinueTimeout: 20 * time.Millisecond} })
	w := newFake(t, func(h *hit) { h.ok(h.body()) })
	f.register(w, "a")
	c := f.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	require.Equal(t, 100, c.answer("POST").StatusCode)
	c.send("body")
	_, body := c.whole("POST")
	require.Equal(t, "body", body)
}

func TestAnUpgradeIsRetriedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	f, a, b, _, _ := pair(t, (*hit).refuse, func(h *hit) { h.accept(); h.gone() })
	c := f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	a.only()
	b.only()
}
