package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The model: many clients share few connections to a worker that does what it
// may and much that it must not. Every request has a name, and whatever comes
// back for it must have that name, and be whole or an error.

// model is one run of it.
type model struct {
	t     *testing.T
	seed  uint64
	pause func(*rand.Rand) // lets others run, for a while

	mu   sync.Mutex
	seen map[string]int // how often a worker has got each request
}

// text is the body of a message with that name. No two names have bodies of
// which one is in the other.
func text(name string, size int) string {
	unit := "<" + name + ">"
	return strings.Repeat(unit, size/len(unit)+1)[:size]
}

const other = "HTTP/1.1 200 OK\r\nX-Name: nobody\r\nContent-Length: 6\r\n\r\nnobody"

// serve is the worker's side of a connection.
func (m *model) serve(p *peer) {
	rng := rand.New(rand.NewPCG(m.seed, uint64(p.n)))
	for {
		head := p.head()
		if head == "" {
			return
		}
		name := field(head, "X-Name")
		m.mu.Lock()
		m.seen[head[:strings.IndexByte(head, ' ')+1]+name]++
		m.mu.Unlock()
		if !strings.Contains(head, " /"+name+" HTTP/1.1\r\n") || strings.Count(head, "X-Name: ") != 1 {
			m.t.Errorf("a request that is none: %.200q", head)
			return
		}
		m.pause(rng)
		m.inform(p, rng, name)
		early := rng.IntN(8) == 0
		if !early && !m.readBody(p, rng, head, name) {
			return
		}
		if !m.answer(p, rng, head, name) || early && !m.readBody(p, rng, head, name) {
			return
		}
	}
}

func field(head, name string) string {
	_, rest, _ := strings.Cut(head, "\r\n"+name+": ")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// inform sends informational answers.
func (m *model) inform(p *peer, rng *rand.Rand, name string) {
	for range rng.IntN(6) - 3 {
		m.send(p, rng, fmt.Sprintf("HTTP/1.1 103 Early Hints\r\nX-Name: %s\r\nContent-Length: 9\r\n\r\n", name))
	}
}

// readBody reads what the head announces, and reports whether it was whole. What
// is whole must be the very body.
func (m *model) readBody(p *peer, rng *rand.Rand, head, name string) bool {
	if field(head, "Expect") != "" && rng.IntN(3) > 0 {
		m.send(p, rng, "HTTP/1.1 100 Continue\r\n\r\n")
	}
	if rng.IntN(20) == 0 {
		return false // it ends instead
	}
	body, trailers, err := p.body(head)
	if err != nil {
		return false
	}
	size := -1
	_, _ = fmt.Sscan(field(head, "X-Size"), &size)
	want := ""
	if strings.Contains(head, "chunked") {
		want = "X-Sum: " + name + "\r\n"
	}
	if body != text(name, max(size, 0)) || trailers != want {
		m.t.Errorf("the body of %s is whole and another one: %d of %d, %q", name, len(body), size, trailers)
	}
	return true
}

// answer answers, and reports whether another request may follow.
func (m *model) answer(p *peer, rng *rand.Rand, head, name string) (goOn bool) {
	raw, length, goOn := shape(rng, strings.HasPrefix(head, "HEAD "), name)
	switch fault := rng.IntN(40); {
	case fault == 0 && length > 0: // not whole, of a body whose end is known
		m.send(p, rng, raw[:len(raw)-1-rng.IntN(length)])
		return false
	case fault == 1:
		m.send(p, rng, raw[:rng.IntN(10)])
		return false
	case fault == 2 && len(raw) < 1000 && goOn: // more than there should be, at once
		p.send(raw + other[:1+rng.IntN(len(other))])
		return true
	case fault == 3:
		reset(p)
		return false
	case fault == 4:
		m.send(p, rng, "HTTP/1.1 103 X\r\nX-Name: "+name+"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n")
		return true
	case fault == 5: // and ends without having said so
		goOn = false
	}
	m.send(p, rng, raw)
	return goOn
}

// shape returns an answer, and how much of it is a body whose end can be told.
func shape(rng *rand.Rand, head bool, name string) (raw string, length int, goOn bool) {
	size := []int{0, 1, 300, 5_000, 40_000}[rng.IntN(5)]
	body := text(name, size)
	fields := fmt.Sprintf("X-Name: %s\r\nX-Size: %d\r\n", name, size)
	status, framed, goOn := 200, true, true
	switch rng.IntN(12) {
	case 0:
		status, body = []int{204, 304}[rng.IntN(2)], ""
		fields = "X-Name: " + name + "\r\n"
	case 1, 2, 3:
		fields += "Transfer-Encoding: chunked\r\nTrailer: X-Name\r\n"
		body = inChunks(rng, body) + "0\r\nX-Name: " + name + "\r\n\r\n"
	case 4: // to the end of the connection
		framed, goOn = false, false
	case 5:
		goOn = false
		fields += "Connection: x, Close\r\nContent-Length: " + strconv.Itoa(size) + "\r\n"
	default:
		fields += "Content-Length: " + strconv.Itoa(size) + "\r\n"
	}
	if head {
		body = ""
	}
	if framed {
		length = len(body)
	}
	return fmt.Sprintf("HTTP/1.1 %d X\r\n%s\r\n%s", status, fields, body), length, goOn
}

func inChunks(rng *rand.Rand, body string) string {
	var raw strings.Builder
	for body != "" {
		n := min(1+rng.IntN(9_000), len(body))
		fmt.Fprintf(&raw, "%x;x=\"y\"\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return raw.String()
}

// reset ends a connection without order.
func reset(p *peer) {
	if tcp, ok := p.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = p.Close()
}

// send sends raw bytes in pieces.
func (m *model) send(p *peer, rng *rand.Rand, raw string) {
	for rng.IntN(3) > 0 && raw != "" {
		n := 1 + rng.IntN(len(raw))
		p.send(raw[:n])
		raw = raw[n:]
		m.pause(rng)
	}
	p.send(raw)
}

// request returns a random request.
func (m *model) request(w *worker, rng *rand.Rand, name string) *Request {
	r := w.request([]string{"GET", "HEAD", "POST", "PUT"}[rng.IntN(4)], "/"+name)
	r.Repeatable = r.Method == "GET" || r.Method == "HEAD"
	size := -1
	if rng.IntN(2) == 0 {
		size = []int{0, 1, 500, 10_000, 70_000}[rng.IntN(5)]
		if r.Length = int64(size); rng.IntN(2) == 0 {
			r.Length = -1
		}
		r.Expect = rng.IntN(4) == 0
		pauses := rand.New(rand.NewPCG(rng.Uint64(), 0))
		open := func() io.Reader {
			pieces := &slow{m: m, rng: pauses, left: text(name, size)}
			if r.Length < 0 {
				trailers := http.Header{"X-Sum": nil}
				r.Trailer = trailers
				pieces.end = func() { trailers["X-Sum"] = []string{name} }
			}
			return pieces
		}
		r.Body = open()
		r.Rewind = func() (io.Reader, error) {
			pauses = rand.New(rand.NewPCG(7, 0)) // the former one may still be in use
			return open(), nil
		}
	}
	r.Fields, _ = AppendField(nil, "X-Name", name)
	r.Fields, _ = AppendField(r.Fields, "X-Size", strconv.Itoa(size))
	r.Inform = func(_ int, h Header) error {
		if got := h.Get("X-Name"); got != "" && got != name {
			m.t.Errorf("%s was informed of %s", name, got)
		}
		if rng.IntN(10) == 0 {
			return errors.New("informed enough")
		}
		return nil
	}
	return r
}

// slow is a body that comes in pieces.
type slow struct {
	m    *model
	rng  *rand.Rand
	left string
	end  func()
}

func (s *slow) Read(p []byte) (int, error) {
	s.m.pause(s.rng)
	if s.left == "" {
		if s.end != nil {
			s.end()
		}
		return 0, io.EOF
	}
	n := copy(p, s.left[:1+s.rng.IntN(len(s.left))])
	s.left = s.left[n:]
	return n, nil
}

// ask sends one request and checks what comes back. It returns whether that was
// a whole answer.
func (m *model) ask(ctx context.Context, pool *Pool, w *worker, rng *rand.Rand, name string) bool {
	r := m.request(w, rng, name)
	resp, err := pool.Do(ctx, r)
	if err != nil {
		return false
	}
	defer resp.Close()
	if got := resp.Header.Get("X-Name"); got != name {
		m.t.Errorf("%s got the answer of %q", name, got)
	}
	size, _ := strconv.Atoi(resp.Header.Get("X-Size"))
	if r.Method == "HEAD" {
		size = 0
	}
	want, got := text(name, size), ""
	for {
		if rng.IntN(40) == 0 {
			return false // read no further
		}
		piece, err := resp.Next()
		got += string(piece)
		if err == io.EOF {
			break
		}
		if err != nil {
			if !strings.HasPrefix(want, got) {
				m.t.Errorf("%s got a part of another body", name)
			}
			return false
		}
	}
	if got != want {
		m.t.Errorf("%s got another body: %d of %d", name, len(got), len(want))
	}
	if sum := resp.Trailer.Get("X-Name"); sum != "" && sum != name {
		m.t.Errorf("%s got the trailers of %s", name, sum)
	}
	return true
}

// cancelled returns a context that some clients cancel at some time.
func (m *model) cancelled(rng *rand.Rand) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(m.t.Context())
	if rng.IntN(5) > 0 {
		return ctx, cancel
	}
	pauses := rand.New(rand.NewPCG(rng.Uint64(), 0))
	left := make(chan struct{})
	go func() {
		defer close(left)
		for range pauses.IntN(30) {
			m.pause(pauses)
		}
		cancel()
	}()
	return ctx, func() { cancel(); <-left }
}

// run has clients ask, and checks that nothing was carried out more often than
// it may be.
func (m *model) run(w *worker, pool *Pool, clients, requests int) {
	var asking sync.WaitGroup
	var answers atomic.Int64
	for client := range clients {
		asking.Go(func() {
			rng := rand.New(rand.NewPCG(m.seed, 1<<32+uint64(client)))
			for i := range requests {
				ctx, cancel := m.cancelled(rng)
				if m.ask(ctx, pool, w, rng, fmt.Sprintf("c%dr%d", client, i)) {
					answers.Add(1)
				}
				cancel()
				m.pause(rng)
			}
		})
	}
	asking.Wait()
	pool.CloseIdle()
	requireUnused(m.t, pool)
	require.Greater(m.t, int(answers.Load()), clients*requests/4, "many are answered")
	m.mu.Lock()
	defer m.mu.Unlock()
	for request, times := range m.seen {
		most := 1
		if strings.HasPrefix(request, "GET ") || strings.HasPrefix(request, "HEAD ") {
			most = 2
		}
		require.LessOrEqual(m.t, times, most, request)
	}
}

// settings are random ones for a pool.
func settings(rng *rand.Rand) func(*Config) {
	return func(c *Config) {
		c.MaxPerOrigin = rng.IntN(2) * 3
		c.MaxIdlePerOrigin = 1 + rng.IntN(3)
		c.IdleTimeout = time.Duration(1+rng.IntN(30)) * time.Millisecond
		c.WritePause = time.Duration(rng.IntN(2)) * time.Minute
		c.ContinueTimeout = 5 * time.Millisecond
	}
}

// Each run has a seed of its own, so that repeated runs see more.
func runModel(t *testing.T, start func(*testing.T, func(*peer)) *worker, pause func(*rand.Rand), requests int) {
	t.Helper()
	seed := rand.Uint64()
	t.Log("seed", seed)
	m := &model{t: t, seed: seed, pause: pause, seen: map[string]int{}}
	w := start(t, m.serve)
	var open opened
	pool := w.pool(settings(rand.New(rand.NewPCG(seed, 1))), func(c *Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if _, socket := conn.(*net.TCPConn); err != nil || socket {
				return conn, err // which is not to be hidden
			}
			if n := open.n.Add(1); c.MaxPerOrigin > 0 && int(n) > c.MaxPerOrigin {
				t.Errorf("%d connections", n)
			}
			return &openConn{Conn: conn, of: &open}, nil
		}
	})
	m.run(w, pool, 6, requests)
	require.Zero(t, open.n.Load(), "connections are left open")
}

// opened counts connections that are open.
type opened struct{ n atomic.Int64 }

type openConn struct {
	net.Conn
	of   *opened
	once sync.Once
}

func (c *openConn) Close() error {
	c.once.Do(func() { c.of.n.Add(-1) })
	return c.Conn.Close()
}

func TestNoRequestGetsWhatIsAnothers(t *testing.T) {
	t.Parallel()
	for range 5 {
		t.Run("virtual time", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				runModel(t, newMemoryWorker, func(rng *rand.Rand) {
					if rng.IntN(2) == 0 {
						time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
					}
				}, 50)
				time.Sleep(time.Second) // bodies may be read for longer than they are wanted
			})
		})
	}
	onEveryWire(t, func(t *testing.T, start func(*testing.T, func(*peer)) *worker) {
		runModel(t, start, func(rng *rand.Rand) {
			for range rng.IntN(20) {
				runtime.Gosched()
			}
		}, 60)
	})
}
