package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// place stands in for the *worker.Instance.
type place struct{ ctx context.Context }

func (place) ID() string                 { return "lobby" }
func (place) Epoch() int64               { return 7 }
func (p place) Context() context.Context { return p.ctx }

// house is a room behind an HTTP server on a network in memory, so that it can
// live in virtual time.
type house struct {
	t     *testing.T
	end   context.CancelFunc // ends the instance
	conns chan net.Conn
	last  net.Conn // the client's end of the newest connection
}

// inHouse runs a test on a room in a bubble, and ends everything after it.
func inHouse(t *testing.T, test func(*testing.T, *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(context.Background())
		h := &house{t: t, end: end, conns: make(chan net.Conn)}
		server := &http.Server{Handler: openRoom(place{ctx}, "worker-1"), ReadHeaderTimeout: time.Second}
		go func() { _ = server.Serve(h) }()
		defer synctest.Wait()
		defer func() { _ = server.Close() }()
		defer end()
		test(t, h)
	})
}

// Accept, Close and Addr make the house its server's listener.
func (h *house) Accept() (net.Conn, error) {
	conn, ok := <-h.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (h *house) Close() error   { close(h.conns); return nil }
func (h *house) Addr() net.Addr { return &net.UnixAddr{Name: "house"} }

func (h *house) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	h.conns <- far
	h.last = near
	return near, nil
}

// guest is a client of the room.
type guest struct {
	*websocket.Conn
	t *testing.T
}

func (h *house) enter() guest {
	h.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: h.dial}}
	conn, _, err := websocket.Dial(h.t.Context(), "ws://room/ws", &websocket.DialOptions{HTTPClient: client})
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	return guest{conn, h.t}
}

// next reads until a frame of that type has come.
func next[T any](g guest, kind string) (frame T) {
	g.t.Helper()
	for {
		_, text, err := g.Read(g.t.Context())
		require.NoError(g.t, err)
		var head struct{ Type string }
		require.NoError(g.t, json.Unmarshal(text, &head))
		if head.Type == kind {
			require.NoError(g.t, json.Unmarshal(text, &frame))
			return frame
		}
	}
}

func (g guest) welcome() welcome   { g.t.Helper(); return next[welcome](g, "welcome") }
func (g guest) message() message   { g.t.Helper(); return next[message](g, "message") }
func (g guest) presence() presence { g.t.Helper(); return next[presence](g, "presence") }

func (g guest) say(text string) {
	g.t.Helper()
	require.NoError(g.t, g.Write(g.t.Context(), websocket.MessageText, encode(saying{Name: "Ada", Text: text})))
}

// farewell reads until the room closes the connection, and returns how.
func (g guest) farewell() websocket.CloseError {
	g.t.Helper()
	for range 10 {
		if _, _, err := g.Read(g.t.Context()); err != nil {
			var closed websocket.CloseError
			require.ErrorAs(g.t, err, &closed)
			return closed
		}
	}
	require.FailNow(g.t, "the room goes on sending")
	return websocket.CloseError{}
}

func TestEveryMemberSeesEveryMessageInOneOrder(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		const many, each = 40, 3
		seen := make([][]string, many)
		guests := make([]guest, many)
		for i := range guests {
			guests[i] = h.enter()
			require.Equal(t, "lobby", guests[i].welcome().Room)
		}
		var all sync.WaitGroup
		for i, g := range guests {
			all.Go(func() {
				for n := range each {
					g.say(fmt.Sprint(i, " says ", n))
				}
			})
			all.Go(func() {
				for number := range many * each {
					m := g.message()
					if m.Number != number+1 {
						t.Errorf("member %d got message %d as number %d", i, m.Number, number+1)
					}
					seen[i] = append(seen[i], m.Text)
				}
			})
		}
		all.Wait()
		for i := range seen {
			require.Equal(t, seen[0], seen[i])
		}
	})
}

func TestANewMemberGetsTheLastMessages(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		ada := h.enter()
		for i := range maxHistory + 5 {
			ada.say(fmt.Sprint("message ", i+1))
			ada.message()
		}
		bob := h.enter().welcome()
		require.Equal(t, "worker-1", bob.Worker)
		require.EqualValues(t, 7, bob.Epoch)
		require.Equal(t, 2, bob.Members)
		require.Len(t, bob.History, maxHistory)
		require.Equal(t, "message 6", bob.History[0].Text)
		require.Equal(t, maxHistory+5, bob.History[maxHistory-1].Number)
	})
}

func TestASlowReaderIsDroppedAndTheOthersGoOn(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		begun := time.Now()
		h.enter() // reads nothing, ever
		const many = queue/sayBurst + 2
		guests := make([]guest, many)
		seen := make([]int, many)
		for i := range guests {
			guests[i] = h.enter()
			go func() {
				for {
					if _, text, err := guests[i].Read(t.Context()); err != nil {
						return
					} else if strings.Contains(string(text), `"message"`) {
						seen[i]++
					}
				}
			}()
		}
		for range sayBurst {
			for _, g := range guests {
				g.say("hello")
				synctest.Wait() // whoever reads has read it
			}
		}
		require.Equal(t, many, h.enter().welcome().Members-1, "the slow one has gone")
		for i := range seen {
			require.Equal(t, many*sayBurst, seen[i], "the others got everything")
		}
		require.Zero(t, time.Since(begun), "nobody has waited for it")
	})
}

func TestAMemberThatSendsTooFastIsReadSlower(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		ada, begun := h.enter(), time.Now()
		const flood = 25
		var sending sync.WaitGroup
		sending.Go(func() {
			for range flood {
				ada.say("me")
			}
		})
		for range flood {
			ada.message()
		}
		sending.Wait()
		require.Equal(t, (flood-sayBurst)*sayEvery, time.Since(begun).Round(sayEvery/10))
	})
}

func TestAFullRoomTurnsAwayByACloseCode(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		guests := make([]guest, maxMembers)
		for i := range guests {
			guests[i] = h.enter()
			guests[i].welcome()
		}
		require.Equal(t, websocket.StatusTryAgainLater, h.enter().farewell().Code)
		require.NoError(t, guests[0].CloseNow())
		synctest.Wait()
		require.Equal(t, maxMembers, h.enter().welcome().Members, "there is room again")
	})
}

func TestFramesOutOfBoundsEndTheConnection(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxText)
	for _, tt := range []struct {
		name, frame string
		code        websocket.StatusCode
	}{
		{"not JSON", "hello", websocket.StatusPolicyViolation},
		{"another type", `{"name":"Ada","text":1}`, websocket.StatusPolicyViolation},
		{"no text", `{"name":"Ada","text":"  "}`, websocket.StatusPolicyViolation},
		{"no name", `{"text":"hello"}`, websocket.StatusPolicyViolation},
		{"a long name", `{"name":"` + long[:maxName+1] + `","text":"hello"}`, websocket.StatusPolicyViolation},
		{"a long text", `{"name":"Ada","text":"` + long + `x"}`, websocket.StatusPolicyViolation},
		{"a huge frame", strings.Repeat("x", maxFrame+1), websocket.StatusMessageTooBig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inHouse(t, func(t *testing.T, h *house) {
				ada, bob := h.enter(), h.enter()
				require.NoError(t, ada.Write(t.Context(), websocket.MessageText, []byte(tt.frame)))
				require.Equal(t, tt.code, ada.farewell().Code)
				bob.say("I am still here")
				require.Equal(t, 1, bob.message().Number, "nobody else has said anything")
			})
		})
	}
}

func TestTheLongestTextFits(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		ada := h.enter()
		// Six bytes each in JSON, as long as a character gets there.
		ada.say("." + strings.Repeat("\u2028", maxText-2) + ".")
		require.Len(t, []rune(ada.message().Text), maxText)
	})
}

func TestMembersAreToldWhenTheInstanceEnds(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		ada, bob := h.enter(), h.enter()
		ada.welcome()
		bob.welcome()
		h.end()
		for _, g := range []guest{ada, bob} {
			require.Equal(t, websocket.CloseError{Code: websocket.StatusServiceRestart, Reason: errRestart.reason}, g.farewell())
		}
	})
}

func TestAnIdleMemberStaysAndIsToldThatTheRoomLives(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		ada, begun := h.enter(), time.Now()
		ada.presence() // that she came
		for range 100 {
			ada.presence()
		}
		require.Equal(t, 100*keepAlive, time.Since(begun).Round(time.Second))
	})
}

func TestAMemberWhoAnswersNoPingIsDropped(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		h.enter()
		mute := h.last // whose system takes what comes, while nobody is at home
		go func() { _, _ = io.Copy(io.Discard, mute) }()
		time.Sleep(keepAlive + sendTimeout + time.Second)
		require.Equal(t, 1, h.enter().welcome().Members)
	})
}

func TestPagesOfOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	inHouse(t, func(t *testing.T, h *house) {
		transport := &http.Transport{DialContext: h.dial}
		defer transport.CloseIdleConnections()
		_, res, err := websocket.Dial(t.Context(), "ws://room/ws", &websocket.DialOptions{
			HTTPClient: &http.Client{Transport: transport},
			HTTPHeader: http.Header{"Origin": {"http://elsewhere.example"}},
		})
		require.Error(t, err)
		require.Equal(t, http.StatusForbidden, res.StatusCode)
	})
}
