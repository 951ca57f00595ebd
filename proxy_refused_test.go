package pinboard

import (
	"errors"
	"fmt"
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
	require.Empty(t, f.owner("alice"), "that worker never serves this placement")
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

func TestAnUpgradeIsRetriedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	f, a, b, _, _ := pair(t, (*hit).refuse, func(h *hit) { h.accept(); h.gone() })
	c := f.ask(upgradeRequest("/counters/alice/ws"))
	require.Equal(t, 101, c.answer("GET").StatusCode)
	a.only()
	b.only()
}
