package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// answerBytes and postBytes are the sizes of an answer and of a body.
	answerBytes, postBytes = 100, 1 << 10
	// postConns is how many connections post.
	postConns = 64
)

// requests measures what requests to placed ids cost a proxy: pinboard with its
// directory in Redis, pinboard with one in memory, which is next to a static route,
// and a bare httputil.ReverseProxy. The client is known by a token, and is attested.
func requests(ctx context.Context, s settings) error {
	f, err := startFleet()
	if err != nil {
		return err
	}
	defer f.stop()
	w, err := startStreamWorker(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	proxies := map[string]*proxied{}
	for _, name := range []string{bareProxy, pinboardProxy, redisProxy} {
		if proxies[name], err = startProxy(ctx, name, w, redisVariable+"="+f.server.Addr()); err != nil {
			return err
		}
		defer proxies[name].stop()
	}
	var kinds []*kind
	for _, load := range []requestLoad{
		{name: "1 connection", conns: 1, calls: s.calls / 10, wanted: 1.1},
		{name: "16 connections", conns: 16, calls: s.calls, wanted: 1.4},
		{name: "64 connections", conns: 64, calls: s.calls, wanted: 1.4},
		{name: "256 connections", conns: 256, calls: s.calls, wanted: 1.4},
		{name: "POST of 1 KiB", conns: postConns, calls: s.calls, wanted: 1.6, body: bytes.Repeat([]byte("x"), postBytes)},
	} {
		plain := load.kind("bare", proxies[bareProxy])
		memory := load.kind("memory", proxies[pinboardProxy])
		memory.against = plain
		redis := load.kind("Redis", proxies[redisProxy])
		redis.against, redis.atLeast = plain, load.wanted
		kinds = append(kinds, plain, memory, redis)
		if load.conns == 64 && load.body == nil {
			// The same samples, compared otherwise.
			directory := &kind{name: "Redis, 64 connections", against: memory, atLeast: 0.95, round: func(context.Context) (sample, error) {
				return redis.samples[len(redis.samples)-1], nil
			}}
			kinds = append(kinds, directory)
		}
	}
	if err := takeTurns(ctx, s.rounds, kinds); err != nil {
		return err
	}
	return report(os.Stdout, kinds)
}

// requestLoad is one way of asking a proxy.
type requestLoad struct {
	name         string
	conns, calls int
	wanted       float64
	body         []byte // of a POST, nil for a GET
	big          bool   // the answer is bigAnswer
	chunks       bool   // the body is in chunks, or the big answer
}

func (l requestLoad) kind(proxy string, p *proxied) *kind {
	return &kind{name: proxy + ", " + l.name, round: func(ctx context.Context) (sample, error) { return l.round(ctx, p) }}
}

// round measures one run.
func (l requestLoad) round(ctx context.Context, p *proxied) (sample, error) {
	before, err := p.cpu()
	if err != nil {
		return sample{}, err
	}
	begun := time.Now()
	if err := l.run(ctx, p.addr); err != nil {
		return sample{}, err
	}
	took := time.Since(begun)
	after, err := p.cpu()
	calls := float64(l.each() * l.conns)
	return sample{rate: calls / took.Seconds(), cpu: calls / (after - before).Seconds()}, err
}

// each is how many calls a connection makes.
func (l requestLoad) each() int { return max(1, l.calls/l.conns) }

// run asks a server on all connections, each one request after the other.
func (l requestLoad) run(ctx context.Context, addr string) error {
	errs := make([]error, l.conns)
	var group sync.WaitGroup
	for i := range l.conns {
		group.Go(func() { errs[i] = l.client(ctx, addr, i, l.each()) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// client asks n times on one connection, for one id after the other.
func (l requestLoad) client(ctx context.Context, addr string, first, n int) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	var head []byte
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		head = l.head(head[:0], first+i)
		if _, err := conn.Write(append(head, l.body...)); err != nil {
			return err
		}
		size := answerBytes
		switch {
		case l.big && l.chunks:
			size = unknown
		case l.big:
			size = bigBytes
		}
		if err := readAnswer(in, size); err != nil {
			return err
		}
	}
	return nil
}

func (l requestLoad) head(b []byte, i int) []byte {
	method := "GET "
	if l.body != nil {
		method = "POST "
	}
	b = append(b, method+"/bench/"...)
	b = append(b, proxiedID(i)...)
	what := "/json"
	switch {
	case l.big && l.chunks:
		what = "/chunks"
	case l.big:
		what = "/big"
	}
	b = append(b, what+" HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer "+clientToken+"\r\n"...)
	switch {
	case l.body != nil && l.chunks:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case l.body != nil:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(l.body)), 10)
		b = append(b, '\r', '\n')
	}
	return append(b, '\r', '\n')
}

// unknown is the size of an answer in chunks.
const unknown = -1

// readAnswer reads an answer with so many bytes.
func readAnswer(in *bufio.Reader, size int) error {
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil:
			return fmt.Errorf("read an answer: %w", err)
		case first && !bytes.Contains(line, []byte(" 200 ")):
			return fmt.Errorf("answered %q", line)
		case len(line) == len("\r\n") && size == unknown:
			if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(in)); err != nil {
				return err
			}
			_, err := in.Discard(len("\r\n"))
			return err
		case len(line) == len("\r\n"):
			_, err := in.Discard(size)
			return err
		}
	}
}

// jsonAnswer is what a worker answers.
var jsonAnswer = []byte(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", answerBytes) +
	`{"text":"` + strings.Repeat("x", answerBytes-len(`{"text":""}`)) + `"}`)
