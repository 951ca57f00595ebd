package inbound

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/rounds"
)

// scripts is how many are played, each twice.
const scripts = 40

// script is what one client sends, in pieces.
type script struct {
	pieces []piece
	abrupt bool // it closes, and does not wait for its answers
}

// piece is sent when so many requests have begun, and so many handlers are done, or
// have taken the connection over.
type piece struct {
	bytes       []byte
	begun, done int
}

// String is for a script that is not served alike.
func (p piece) String() string { return fmt.Sprintf("%d %d %q", p.begun, p.done, p.bytes) }

// request returns the head and the body of one, made up.
func request(r *rand.Rand) (head, body string) {
	path := []string{"/quick", "/slow", "/unread", "/late"}[r.IntN(4)]
	// A head that fills the server's buffer but for a byte is read on by one byte.
	long := []int{0, 1, r.IntN(100), 4000 + r.IntN(200)}[r.IntN(4)]
	head = fmt.Sprintf("%s HTTP/1.1\r\nHost: p\r\nX-Long: %s\r\n", path, strings.Repeat("x", long))
	body = strings.Repeat("b", []int{0, 1, r.IntN(100), r.IntN(9000)}[r.IntN(4)])
	length := fmt.Sprint("Content-Length: ", len(body), "\r\n\r\n")
	switch r.IntN(6) {
	case 0:
		return "GET " + strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\n\r\n", ""
	case 1:
		return "POST " + head + "Expect: 100-continue\r\n" + length, body
	case 2:
		return "POST " + head + length, body
	case 3:
		body = fmt.Sprintf("1\r\nb\r\n%x\r\nb%s\r\n0\r\n\r\n", len(body)+1, body)
		return "POST " + head + "Transfer-Encoding: chunked\r\n\r\n", body
	}
	return "GET " + head + "\r\n", ""
}

// write makes a script up.
func write(r *rand.Rand) (s script) {
	var all []byte
	var heads, wholes []int // where those of requests end
	for range 1 + r.IntN(4) {
		head, body := request(r)
		all = append(all, head...)
		heads = append(heads, len(all))
		all = append(all, body...)
		wholes = append(wholes, len(all))
	}
	if r.IntN(2) == 0 {
		all = append(all, "GET /over HTTP/1.1\r\nHost: p\r\n\r\n"...)
		heads, wholes = append(heads, len(all)), append(wholes, len(all))
		all = append(all, strings.Repeat("o", r.IntN(100))...)
	}
	if s.abrupt = r.IntN(4) == 0; s.abrupt {
		all = all[:r.IntN(len(all)+1)]
	}
	next := func(from, to int) {
		p := piece{bytes: all[from:to]}
		before := func(end int) bool { return end <= from }
		switch r.IntN(4) {
		case 0:
			p.begun = count(heads, before)
		case 1:
			p.done = count(wholes, before)
		}
		s.pieces = append(s.pieces, p)
	}
	for at := 0; at < len(all); {
		end := min(len(all), at+[]int{1, r.IntN(20) + 1, len(all)}[r.IntN(3)])
		next(at, end)
		at = end
	}
	next(len(all), len(all)) // and then it says that this is all
	return s
}

func count(of []int, met func(int) bool) (n int) {
	for _, v := range of {
		if met(v) {
			n++
		}
	}
	return n
}

// played is a server, and what its handlers have seen.
type played struct {
	mu          sync.Mutex
	begun, done int
	more        chan struct{} // closed when there are more of these
	seen        []string
}

func (p *played) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprintf(format, args...))
}

func (p *played) add(to *int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*to++
	close(p.more)
	p.more = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (p *played) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.add(&p.begun)
	w.Header()["Date"] = nil
	// Long enough, most often, for somebody to look for the client.
	while := func() { <-time.After(3 * rounds.Time) }
	switch r.URL.Path {
	case "/over":
		while()
		p.over(w)
		return
	case "/late":
		while()
	}
	var body []byte
	var err error
	if r.URL.Path != "/unread" {
		body, err = io.ReadAll(r.Body)
	}
	if r.URL.Path == "/slow" {
		while()
	}
	defer p.add(&p.done)
	p.note("%s %s %d %v", r.Method, r.URL.Path, len(body), err)
	_, _ = fmt.Fprintf(w, "%s %d %d %v", r.URL.Path, len(r.Header.Get("X-Long")), len(body), err)
}

// over takes the connection over, and sends what comes back, to its end.
func (p *played) over(w http.ResponseWriter) {
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.note("not taken over: %v", err)
		return
	}
	defer func() { _ = conn.Close() }()
	p.add(&p.done)
	_, _ = io.WriteString(conn, "yours\r\n")
	early, _ := both.Reader.Peek(both.Reader.Buffered())
	_, _ = conn.Write(early)
	total := len(early)
	for size := 1; ; size = size*2%63 + 1 {
		room := make([]byte, size)
		n, err := conn.Read(room)
		total += n
		_, _ = conn.Write(room[:n])
		if err != nil {
			p.note("over %d %v", total, err == io.EOF)
			return
		}
		if n == 0 {
			p.note("a read brought nothing")
		}
	}
}

// await waits until it is time for a piece, or the server has closed the connection.
func (p *played) await(next piece, closed <-chan struct{}) {
	for {
		p.mu.Lock()
		due, more := p.begun >= next.begun && p.done >= next.done, p.more
		p.mu.Unlock()
		if due {
			return
		}
		select {
		case <-more:
		case <-closed:
			return
		}
	}
}

// play plays a script, and returns what the client got and what the handlers saw.
func play(t *testing.T, s *script, l net.Listener, over func(*http.Server)) (got string, seen []string) {
	t.Helper()
	p := &played{more: make(chan struct{})}
	server := &http.Server{Handler: p, ReadHeaderTimeout: patience, IdleTimeout: patience}
	over(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	client := dial(t, l)
	answers := make(chan []byte, 1)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		all, _ := io.ReadAll(client) // a reset where it sends more than is read
		answers <- all
	}()
	for _, piece := range s.pieces {
		p.await(piece, closed)
		if _, err := client.Write(piece.bytes); err != nil {
			break // answered, and closed
		}
	}
	if s.abrupt {
		require.NoError(t, client.(*net.TCPConn).SetLinger(len(s.pieces)%2-1)) // a reset if there is an odd number
		require.NoError(t, client.Close())
	} else {
		_ = client.(*net.TCPConn).CloseWrite()
	}
	all := <-answers
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, server.Shutdown(ctx))
	<-served
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(bytes.TrimSpace(all)), p.seen
}

// Whatever a client does, its server can't tell a Conn from the connection below.
func TestAServerServesBothAlike(t *testing.T) {
	t.Parallel()
	for seed := range uint64(scripts) {
		s := write(rand.New(rand.NewPCG(seed, 1)))
		below := listen(t)
		want, saw := play(t, &s, below.Listener, func(*http.Server) {})
		l := listen(t)
		got, seen := play(t, &s, l, tell)
		name := fmt.Sprintf("script %d: %v", seed, s.pieces)
		if !s.abrupt { // else it depends on when that reaches the server
			require.Equal(t, saw, seen, name)
			require.Equal(t, want, got, name)
		}
		select {
		case c := <-l.conns:
			require.Eventually(t, func() bool { return l.closed.Load() == 1 && !c.in.isBusy() }, patience, often, name)
		default: // its client had left before it was accepted
		}
	}
}

func (l *lane) isBusy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}
