package pinboard

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/memnet"
	"github.com/pinboard-go/pinboard/passport"
)

// unruly is a passport that panics, and does not know everybody.
type unruly struct{ anyone }

func (u unruly) Identify(ctx context.Context, r *http.Request) (*passport.Identity, error) {
	switch r.Header.Get("Do") {
	case "panic":
		panic("planted")
	case "fail":
		return nil, errPlanted
	}
	return u.anyone.Identify(ctx, r)
}

func (u unruly) Admit(ctx context.Context, namespace string, who *passport.Identity) error {
	if u.refuse != nil {
		return u.refuse
	}
	return u.anyone.Admit(ctx, namespace, who)
}

func (unruly) AllowsOrigin(string, string) bool { return true }

// chaos is what a worker and its clients do at random, in virtual time.
type chaos struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (c *chaos) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *chaos) pause() { time.Sleep(time.Duration(c.n(2000)) * time.Millisecond) }

// worker does anything with a request but answer it well each time.
func (c *chaos) worker(h *hit) {
	defer c.pause()
	if c.n(3) > 0 {
		h.body()
	} else {
		h.last = true // what comes now may be a body
	}
	switch c.n(12) {
	case 0:
		h.refuse()
	case 1:
		h.reply(http.StatusServiceUnavailable, `{"detail":"host draining; retry"}`, "Content-Type: application/json")
	case 2:
		h.reply(http.StatusForbidden, `{"detail":"invalid attestation"}`, "Content-Type: application/json")
	case 3:
		for range 3 {
			h.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
			c.pause()
		}
		h.ok("hinted")
	case 4:
		h.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nframes")
		c.pause()
		h.last = true
	case 5:
		h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
		c.pause()
		h.last = true
	case 6:
		h.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut")
		h.last = true
	case 7:
		h.last = true
	case 8:
		h.send("HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n")
	case 9:
		h.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n")
	default:
		h.ok("well")
	}
	if c.n(4) == 0 {
		h.last = true
	}
}

// head is a request's line and header.
func (c *chaos) head() string {
	path := fmt.Sprintf("/counters/id-%d", c.n(6))
	methods := []string{"GET", "POST", "PUT", "OPTIONS", "HEAD"}
	var lines strings.Builder
	fmt.Fprintf(&lines, "%s %s HTTP/1.%d\r\nHost: h%d\r\n", methods[c.n(5)], path, min(1, c.n(6)), c.n(3))
	for _, more := range []string{
		"Do: panic\r\n", "Do: fail\r\n", "Affinity: panic\r\n", "Origin: https://x\r\nAccess-Control-Request-Method: PUT\r\n",
		"Pinboard-Session: nobody\r\n", "X: " + strings.Repeat("x", 9000) + "\r\n",
	} {
		if c.n(12) == 0 {
			lines.WriteString(more)
		}
	}
	return lines.String()
}

// client asks over HTTP/1, and may leave at any time.
func (c *chaos) client(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	read := make(chan struct{})
	go func() {
		defer close(read)
		if c.n(5) > 0 { // else it does not read
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	for range 1 + c.n(3) {
		_, _ = io.WriteString(conn, c.head())
		switch c.n(6) {
		case 0:
			_, _ = io.WriteString(conn, "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
		case 1:
			_, _ = io.WriteString(conn, "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n")
			c.pause()
			_, _ = io.WriteString(conn, "0123456789")
		case 2:
			_, _ = io.WriteString(conn, "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n")
			c.pause()
			_, _ = io.WriteString(conn, "5\r\n01234\r\n0\r\n\r\n")
		case 3:
			_, _ = io.WriteString(conn, "Content-Length: 20000\r\n\r\n")
			c.pause()
			_, _ = io.WriteString(conn, strings.Repeat("x", 100*c.n(200)))
		default:
			_, _ = io.WriteString(conn, "\r\n")
		}
		c.pause()
	}
	if c.n(2) == 0 {
		_ = conn.Close()
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Duration(1+c.n(20)) * time.Second))
	<-read
}

// stream asks over HTTP/2, and may reset the stream at any time.
func (c *chaos) stream(client *http.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.n(5000))*time.Millisecond)
	defer cancel()
	body, feed := io.Pipe()
	go func() {
		_, _ = io.WriteString(feed, strings.Repeat("x", c.n(9000)))
		c.pause()
		_ = feed.CloseWithError([]error{nil, errPlanted}[c.n(2)])
	}()
	defer func() { _ = body.Close() }()
	r, err := http.NewRequestWithContext(ctx, "POST", fmt.Sprintf("http://p/counters/id-%d", c.n(6)), body)
	if err != nil {
		return
	}
	if c.n(6) == 0 {
		r.Header.Set("Do", "panic")
	}
	if resp, err := client.Do(r); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// newLimited sees, when the test ends, that nothing is counted any more.
func TestWhateverBecomesOfRequestsTheirPlacesAreGivenBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			c := &chaos{rng: rand.New(rand.NewPCG(seed, 11))} // cases, not secrets
			opts := Options{
				PlacementHold: time.Duration(seed%2) * 3 * time.Second, MaxHeldPerID: 3, ReplayBuffer: 8 << 10,
				Affinity: Affinity{Key: func(r *http.Request, _ Client) (string, bool) {
					if r.Header.Get("Affinity") != "" {
						panic("planted")
					}
					return "x", true
				}},
				Limits: Limits{
					Requests: 40, RequestsPerID: 8, ReplayBytes: 50_000, HeaderBytes: 8000, BodyBytes: 12_000,
					BodyPause: time.Second, WritePause: time.Second, AnswerTimeout: 3 * time.Second, Informational: 2,
				},
			}
			b := newLimited(t, opts, c.worker)
			b.pb.opts.Passport = unruly{}
			if seed == 5 {
				b.pb.opts.Passport = unruly{anyone{refuse: passport.ErrUnauthenticated}}
			}
			h2 := memnet.NewListener()
			server := &http.Server{Handler: b.pb, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
			server.Protocols.SetUnencryptedHTTP2(true)
			go func() { _ = server.Serve(h2) }()
			defer func() { _ = server.Close() }()
			transport := &http.Transport{
				Protocols:   server.Protocols,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h2.Dial(ctx) },
			}
			var group sync.WaitGroup
			for range 100 {
				group.Go(func() {
					c.pause()
					if c.n(4) == 0 {
						c.stream(&http.Client{Transport: transport})
						return
					}
					conn, err := b.front.Dial(context.Background())
					if err == nil {
						c.client(conn)
					}
				})
			}
			group.Wait()
			transport.CloseIdleConnections()
			time.Sleep(time.Minute)
			total, _ := b.pb.limiter.requests.Use()
			require.Zero(t, total, "without anybody having to be cut")
			require.Zero(t, b.pb.counters.held.Load())
			b.pb.leases.mu.Lock()
			for _, s := range b.pb.leases.byID {
				require.Zero(t, s.flows)
			}
			b.pb.leases.mu.Unlock()
			if seed < 5 {
				require.Greater(t, len(b.worker.seen()), 20, "the requests are no good")
			}
		})
	}
}
