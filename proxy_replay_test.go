package pinboard

import (
	"crypto/rand"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/wire"
)

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
	// Not empty: the first worker may wait for a byte of it.
	body := make([]byte, 1+mrand.IntN(64<<10))
	_, _ = rand.Read(body)
	defer func() {
		if t.Failed() {
			t.Logf("%s: %d bytes, chunked: %t", id, len(body), chunked)
		}
	}()
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

// A refusal that no worker takes back is the final answer, without the body.
func TestAnExpectationThatEverybodyRefusesCostsNoBody(t *testing.T) { // C11
	t.Parallel()
	refusing := func(h *hit) {
		if h.method == "GET" {
			h.ok("")
			return
		}
		h.refuse() // without having read
	}
	f := newFront(t)
	a, b := newFake(t, refusing), newFake(t, refusing)
	sa := f.register(a, "a")
	f.register(b, "b")
	for i := range 50 {
		id := fmt.Sprint("id-", i)
		sa.place(id)
		c := f.ask("POST /counters/" + id + " HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: 1048576\r\n\r\n")
		resp, _ := c.whole("POST")
		require.Equal(t, 503, resp.StatusCode, "and no 100 before it")
		require.Empty(t, resp.Header.Get(wire.HeaderRefusal))
		require.True(t, resp.Close, "what comes now is the body, not a request")
		_, _ = io.WriteString(c.Conn, smuggled)
		rest, _ := c.rest()
		require.Empty(t, rest)
		resp, _ = f.get("/counters/" + id)
		require.Equal(t, 200, resp.StatusCode)
	}
	require.EqualValues(t, 50, f.pb.counters.retries.Load())
	require.NotContains(t, a.bytes()+b.bytes(), "smuggled")
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
