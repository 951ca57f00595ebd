package pinboard

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// more than a pipe, a server's buffers and a copy loop hold.
var flood = strings.Repeat("x", 256<<10)

func TestABodyThatDripsIsReadAndOneThatStopsIsARequestTimeout(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{}, or(func(h *hit) { h.ok(strconv.Itoa(len(h.body()))) }), func(t *testing.T, b *limited) {
		drips := b.ask("POST /counters/drips HTTP/1.1\r\nHost: p\r\nContent-Length: 40\r\n\r\n")
		stops := b.ask("POST /counters/stops HTTP/1.1\r\nHost: p\r\nContent-Length: 40\r\n\r\n")
		stops.send(strings.Repeat("x", 39))
		for range 40 {
			time.Sleep(59 * time.Second) // 39 minutes in all
			drips.send("x")
		}
		_, body := drips.whole("POST")
		require.Equal(t, "40", body)
		resp, body := stops.whole("POST")
		require.Equal(t, http.StatusRequestTimeout, resp.StatusCode)
		require.Equal(t, "the body took too long", errorOf(t, body))
		b.works()
	})
}

func TestABodyMayPauseOnceTheAnswerHasBegun(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{}, func(h *hit) {
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
		h.send(h.body())
	}, func(t *testing.T, b *limited) {
		c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 4\r\n\r\nab")
		resp := c.answer("POST")
		time.Sleep(30 * time.Minute)
		c.send("cd")
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "abcd", string(body))
	})
}

func TestAClientThatDoesNotReadItsAnswerIsCut(t *testing.T) {
	t.Parallel()
	cut := make(chan struct{}, 1)
	inLimits(t, Limits{}, or(func(h *hit) {
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
		for _, err := io.WriteString(h.conn, flood); err == nil; {
			_, err = io.WriteString(h.conn, flood)
		}
		h.last = true
		cut <- struct{}{}
	}), func(t *testing.T, b *limited) {
		c := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.Empty(t, cut, "it may yet read")
		b.works()
		_, err := io.ReadFull(c.r, make([]byte, 100<<10)) // and does
		require.NoError(t, err)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.Empty(t, cut)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, cut, 1)
		require.Zero(t, b.pb.counters.proxying.Load())
		_, err = io.Copy(io.Discard, c.r)
		require.NoError(t, err, "the connection has ended")
		b.works()
	})
}

func TestAClientThatNeverReadsItsAnswersIsCut(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{}, nil, func(t *testing.T, b *limited) {
		c := b.ask("")
		ended := make(chan error, 1)
		go func() { // refusals, which are written by the server after the handler
			for {
				if _, err := io.WriteString(c.Conn, "GET /counters HTTP/1.1\r\nHost: p\r\n\r\n"); err != nil {
					ended <- err
					return
				}
			}
		}()
		synctest.Wait()
		require.Empty(t, ended, "both sides wait for each other")
		time.Sleep(61 * time.Second)
		synctest.Wait()
		require.Len(t, ended, 1)
	})
}

func TestWhatIsRefusedDoesNotWaitForItsBody(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/counters", "/counters/alice?" + strings.Repeat("q", 20*kib), "/%"} {
		inLimits(t, Limits{}, nil, func(t *testing.T, b *limited) {
			began := time.Now()
			c := b.ask("POST " + path + " HTTP/1.1\r\nHost: p\r\nContent-Length: 10\r\n\r\nx")
			resp := c.answer("POST")
			require.GreaterOrEqual(t, resp.StatusCode, 400)
			require.LessOrEqual(t, time.Since(began), refusedLinger)
		})
	}
}

func TestSilentStreamsLiveOn(t *testing.T) {
	t.Parallel()
	inLimitsBothWays(t, Limits{}, func(h *hit) {
		if h.target == "/counters/ws" {
			h.echo()
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		for range 2 {
			time.Sleep(25 * time.Minute)
			h.send("data\n\n")
		}
		h.last = true
	}, func(t *testing.T, b *limited) {
		ws := b.ask(upgradeRequest("/counters/ws"))
		require.Equal(t, http.StatusSwitchingProtocols, ws.answer("GET").StatusCode)
		_, body := b.ask("GET /counters/sse HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
		require.Equal(t, "data\n\ndata\n\n", body)
		ws.send("x")
		ws.expect("x")
	})
}

func TestAnAnswerOrASocketMayBeBoundInItsSilence(t *testing.T) {
	t.Parallel()
	inLimitsBothWays(t, Limits{Silence: time.Minute}, or(func(h *hit) {
		if h.target == "/counters/ws" {
			h.echo()
			return
		}
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 100\r\n\r\n")
		for range 5 {
			h.send("x")
			time.Sleep(59 * time.Second)
		}
		h.gone()
	}), func(t *testing.T, b *limited) {
		ws := b.ask(upgradeRequest("/counters/ws"))
		require.Equal(t, http.StatusSwitchingProtocols, ws.answer("GET").StatusCode)
		sse := b.ask("GET /counters/sse HTTP/1.1\r\nHost: p\r\n\r\n")
		resp := sse.answer("GET")
		for range 5 {
			time.Sleep(59 * time.Second)
			ws.send("\x82\x01x")
			ws.expect("\x82\x01x")
		}
		text, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, "xxxxx", string(text))
		ws.expect("\x88\x02\x03\xf4") // close, 1012
		b.works()
	})
}

func TestATunnelWhoseReaderStopsIsCut(t *testing.T) {
	t.Parallel()
	for _, reader := range []string{"client", "worker"} {
		inLimitsBothWays(t, Limits{}, or(func(h *hit) {
			h.accept()
			h.last = true
			if reader == "worker" {
				time.Sleep(5 * time.Minute)
				return
			}
			_, err := io.WriteString(h.conn, flood)
			require.Error(t, err)
		}), func(t *testing.T, b *limited) {
			c := b.ask(upgradeRequest("/counters/alice"))
			require.Equal(t, http.StatusSwitchingProtocols, c.answer("GET").StatusCode)
			if reader == "worker" {
				go func() { _, _ = io.WriteString(c.Conn, flood) }()
			}
			time.Sleep(59 * time.Second)
			synctest.Wait()
			require.EqualValues(t, 1, b.pb.counters.proxying.Load(), reader)
			time.Sleep(time.Second + closeTime)
			synctest.Wait()
			require.Zero(t, b.pb.counters.proxying.Load(), reader)
			b.works()
		})
	}
}

func TestAWorkerThatDoesNotReadOrAnswerIsAGatewayTimeoutAndSlowsNobody(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{}, or(func(h *hit) {
		if h.target == "/counters/unread" {
			time.Sleep(20 * time.Minute)
			h.last = true
			return
		}
		h.gone()
	}), func(t *testing.T, b *limited) {
		unread := b.ask("POST /counters/unread HTTP/1.1\r\nHost: p\r\nContent-Length: " + strconv.Itoa(len(flood)) + "\r\n\r\n")
		go func() { _, _ = io.WriteString(unread.Conn, flood) }()
		silent := b.ask("POST /counters/silent HTTP/1.1\r\nHost: p\r\nContent-Length: 1\r\n\r\nx")
		upgrade := b.ask(upgradeRequest("/counters/upgrade"))
		synctest.Wait()
		for range 100 {
			b.works()
		}
		began := time.Now()
		for _, late := range []struct {
			c     *client
			after time.Duration
		}{{unread, time.Minute}, {upgrade, time.Minute}, {silent, 10 * time.Minute}} {
			resp, body := late.c.whole("POST")
			require.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)
			require.Equal(t, "the owner has not answered in time", errorOf(t, body))
			require.InDelta(t, late.after, time.Since(began), float64(time.Second), "virtual time")
			b.works()
		}
	})
}

// The worker's time begins when it has got the request: a slow client does not
// use it up.
func TestTheTimeToAnswerIsTheWorkersOwn(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{AnswerTimeout: 30 * time.Second}, func(h *hit) {
		length := len(h.body())
		for range 3 {
			time.Sleep(29 * time.Second)
			h.send("HTTP/1.1 102 Processing\r\n\r\n")
		}
		time.Sleep(29 * time.Second)
		h.ok(strconv.Itoa(length))
	}, func(t *testing.T, b *limited) {
		c := b.ask("POST /counters/alice HTTP/1.1\r\nHost: p\r\nContent-Length: 10\r\n\r\n")
		for range 10 {
			time.Sleep(59 * time.Second)
			c.send("x")
		}
		for range 3 {
			require.Equal(t, http.StatusProcessing, c.answer("POST").StatusCode)
		}
		_, body := c.whole("POST")
		require.Equal(t, "10", body)
	})
}

func TestAnAnswerThatMustBeLookedIntoIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{AnswerTimeout: time.Minute}, or(func(h *hit) {
		h.send("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{")
		h.gone()
	}), func(t *testing.T, b *limited) {
		resp, _ := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
		require.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)
		b.works()
	})
}

func TestInformationalAnswersWithoutEndAreABadGateway(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{Informational: 10}, or(func(h *hit) {
		many := 10
		if h.target == "/counters/flood" {
			many++
		}
		for range many {
			h.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
		}
		h.ok("")
	}), func(t *testing.T, b *limited) {
		for path, status := range map[string]int{"/counters/some": 200, "/counters/flood": 502} {
			c := b.ask("GET " + path + " HTTP/1.1\r\nHost: p\r\n\r\n")
			for range 10 {
				require.Equal(t, http.StatusEarlyHints, c.answer("GET").StatusCode)
			}
			require.Equal(t, status, c.answer("GET").StatusCode)
			b.works()
		}
	})
}

// The final answer may come all the same, and is for nobody else.
func TestWhatFollowsTooManyInformationalAnswersReachesNobody(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{Informational: 10}, func(h *hit) {
		if h.target == "/counters/flood" {
			h.send(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 11))
			time.Sleep(time.Second)
		}
		h.ok("for " + h.target)
	}, func(t *testing.T, b *limited) {
		c := b.ask("GET /counters/flood HTTP/1.1\r\nHost: p\r\n\r\n")
		for range 10 {
			require.Equal(t, http.StatusEarlyHints, c.answer("GET").StatusCode)
		}
		require.Equal(t, http.StatusBadGateway, c.answer("GET").StatusCode)
		_, body := b.ask("GET /counters/other HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
		require.Equal(t, "for /counters/other", body)
	})
}

// A client that does not read hints must not hold the worker's connection.
func TestAClientThatDoesNotReadHintsIsCut(t *testing.T) {
	t.Parallel()
	inLimits(t, Limits{}, or(func(h *hit) {
		for range 900 {
			h.send("HTTP/1.1 103 Early Hints\r\nLink: " + flood[:100] + "\r\n\r\n")
		}
		h.gone()
	}), func(t *testing.T, b *limited) {
		b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, b.pb.counters.proxying.Load())
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		require.Zero(t, b.pb.counters.proxying.Load())
		b.works()
	})
}

func TestAConnectionThatIsNotMadeInTimeIs503(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b *limited
		stuck := true
		b = newLimited(t, Options{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if stuck {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return b.worker.listener.(interface {
				Dial(context.Context) (net.Conn, error)
			}).Dial(ctx)
		}}}, or(nil))
		began := time.Now()
		resp, _ := b.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\n\r\n").whole("GET")
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Equal(t, "3", resp.Header.Get("Retry-After"))
		require.Equal(t, 2*time.Second, time.Since(began))
		stuck = false
		b.works()
	})
}
