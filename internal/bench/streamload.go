package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	challengeValue = "value of the bench"

	// eventEvery is how often each event stream has an event, of eventBytes.
	eventEvery, eventBytes = time.Second, 100
	// openWithin bounds the opening of a stream.
	openWithin = 20 * time.Second
)

// streamWorker answers /json, /big and /chunks with what they are named for, /sse with an event
// stream and all else with an echo, on bare connections, so that it costs little beside
// what is measured.
type streamWorker struct {
	listener net.Listener
	addr     string
	serving  sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{}
}

func startStreamWorker(ctx context.Context) (*streamWorker, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &streamWorker{listener: listener, addr: listener.Addr().String(), open: map[net.Conn]struct{}{}}
	w.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.open[conn] = struct{}{}
			w.mu.Unlock()
			w.serving.Go(func() {
				w.serve(conn)
				w.mu.Lock()
				delete(w.open, conn)
				w.mu.Unlock()
				_ = conn.Close()
			})
		}
	})
	return w, nil
}

func (w *streamWorker) stop() {
	_ = w.listener.Close()
	w.mu.Lock()
	for conn := range w.open {
		_ = conn.Close()
	}
	w.mu.Unlock()
	w.serving.Wait()
}

func (w *streamWorker) serve(conn net.Conn) {
	in := bufio.NewReaderSize(conn, 1<<10)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		switch {
		case strings.HasPrefix(req.URL.Path, "/_pinned"):
			body := `{"value":"` + challengeValue + `"}`
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		case strings.HasSuffix(req.URL.Path, "/json"):
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			_, _ = conn.Write(jsonAnswer)
		case strings.HasSuffix(req.URL.Path, "/big"):
			_, _ = conn.Write(bigAnswer)
		case strings.HasSuffix(req.URL.Path, "/chunks"):
			_, _ = conn.Write(chunkedAnswer)
		case strings.HasSuffix(req.URL.Path, "/sse"):
			w.events(conn)
			return
		default:
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			// Hidden, for a copy from socket to socket holds a pipe, which is two more files.
			_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{in}, make([]byte, 32<<10))
			return
		}
	}
}

// events sends events, each with the time, until that fails.
func (w *streamWorker) events(conn net.Conn) {
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; err == nil; first = false {
		<-timer.C
		event := fmt.Sprintf("data: %d ", time.Now().UnixNano())
		event += strings.Repeat("x", eventBytes-len(event)-2) + "\n\n"
		_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(event), event)
		next := eventEvery
		if first {
			next = rand.N(eventEvery) // so that they spread
		}
		timer.Reset(next)
	}
}

// load is streams that are held open.
type load struct {
	mu     sync.Mutex
	conns  []net.Conn
	delays []time.Duration
	group  sync.WaitGroup
}

// grow opens streams until there are n.
func (l *load) grow(ctx context.Context, addr, kind string, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make(chan int)
	var group sync.WaitGroup
	for range side {
		group.Go(func() {
			for i := range turns {
				if err := l.openOne(ctx, addr, kind, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := len(l.conns); i < n && ctx.Err() == nil; i++ {
		turns <- i
	}
	close(turns)
	group.Wait()
	return context.Cause(ctx)
}

func (l *load) openOne(ctx context.Context, addr, kind string, i int) error {
	conn, in, err := ask(ctx, addr, kind, i)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.conns = append(l.conns, conn)
	l.mu.Unlock()
	if kind == "ws" {
		if err := echo(conn, in, message(eventBytes)); err != nil {
			return err
		}
		return conn.SetDeadline(time.Time{})
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	l.group.Go(func() { l.listen(in) })
	return nil
}

// ask opens one stream, up to the end of the answer's head.
func ask(ctx context.Context, addr, kind string, i int) (net.Conn, *bufio.Reader, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	upgrade := ""
	if kind == "ws" {
		upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	}
	_ = conn.SetDeadline(time.Now().Add(openWithin))
	_, err = fmt.Fprintf(conn, "GET /bench/%s/%s HTTP/1.1\r\nHost: bench\r\n%s\r\n", proxiedID(i), kind, upgrade)
	in := bufio.NewReaderSize(conn, 512)
	for first := true; err == nil; first = false {
		var line []byte
		line, err = in.ReadSlice('\n')
		if first && err == nil && !bytes.Contains(line, []byte(" 200 ")) && !bytes.Contains(line, []byte(" 101 ")) {
			err = fmt.Errorf("answered %q", line)
		}
		if len(line) == len("\r\n") {
			break
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("open a stream: %w", err)
	}
	return conn, in, nil
}

// listen notes the delays of events.
func (l *load) listen(in *bufio.Reader) {
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		if rest, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			stamp, _, _ := bytes.Cut(rest, []byte(" "))
			sent, _ := strconv.ParseInt(string(stamp), 10, 64)
			delay := time.Duration(time.Now().UnixNano() - sent)
			l.mu.Lock()
			l.delays = append(l.delays, delay)
			l.mu.Unlock()
		}
	}
}

// take returns the delays since the last call, sorted.
func (l *load) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.delays
	l.delays = nil
	slices.Sort(all)
	return all
}

func (l *load) close() {
	l.mu.Lock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.group.Wait()
}

// message is a frame of a client: masked, with zeroes for a mask. The worker sends
// it back as it is.
func message(size int) []byte {
	frame := []byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for i := range 8 {
		frame[2+i] = byte(size >> (8 * (7 - i)))
	}
	return append(frame, make([]byte, size)...)
}

// echo sends a message and reads it back.
func echo(conn net.Conn, in *bufio.Reader, message []byte) error {
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(message)
		sent <- err
	}()
	_, err := in.Discard(len(message))
	if err := <-sent; err != nil {
		return err
	}
	return err
}
