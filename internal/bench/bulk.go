package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
)

const (
	// bigBytes is the length of a long answer, and uploadBytes that of a long body.
	bigBytes, uploadBytes = 1 << 20, 4 << 20
	// chunkBytes is the length of a chunk of one that is in chunks.
	chunkBytes = 64 << 10
	// bulkConns is how many connections carry them, and bulkCalls how many of the calls of
	// a round do.
	bulkConns, bulkCalls = 8, 1000
)

// bulk measures what long bodies cost a proxy, both ways: pinboard beside a bare
// httputil.ReverseProxy. An operation is one body.
func bulk(ctx context.Context, s settings) error {
	w, err := startStreamWorker(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	proxies := map[string]*proxied{}
	for _, name := range []string{bareProxy, pinboardProxy} {
		if proxies[name], err = startProxy(ctx, name, w); err != nil {
			return err
		}
		defer proxies[name].stop()
	}
	var kinds []*kind
	calls := max(bulkConns, s.calls/bulkCalls)
	get, post := fmt.Sprintf("GET of %d MiB", bigBytes>>20), fmt.Sprintf("POST of %d MiB", uploadBytes>>20)
	body := bytes.Repeat([]byte("x"), uploadBytes)
	for _, load := range []requestLoad{
		{name: get, conns: bulkConns, calls: 4 * calls, big: true},
		{name: post, conns: bulkConns, calls: calls, body: body},
		{name: get + " in chunks", conns: bulkConns, calls: 4 * calls, big: true, chunks: true},
		{name: post + " in chunks", conns: bulkConns, calls: calls, body: inChunks(uploadBytes), chunks: true},
	} {
		plain := load.kind("bare", proxies[bareProxy])
		ours := load.kind("pinboard", proxies[pinboardProxy])
		ours.against, ours.atLeast = plain, 1
		kinds = append(kinds, plain, ours)
	}
	if err := takeTurns(ctx, s.rounds, kinds); err != nil {
		return err
	}
	return report(os.Stdout, kinds)
}

// inChunks returns so many bytes in chunks.
func inChunks(size int) []byte {
	chunk := fmt.Sprintf("%x\r\n%s\r\n", chunkBytes, strings.Repeat("x", chunkBytes))
	return []byte(strings.Repeat(chunk, size/chunkBytes) + "0\r\n\r\n")
}

// chunkedAnswer is what a worker answers to /chunks.
var chunkedAnswer = append([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"), inChunks(bigBytes)...)

// bigAnswer is what a worker answers to /big.
var bigAnswer = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", bigBytes),
	bytes.Repeat([]byte("x"), bigBytes)...)
