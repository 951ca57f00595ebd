package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

const (
	// bigBytes is the length of a long answer, and uploadBytes that of a long body.
	bigBytes, uploadBytes = 1 << 20, 4 << 20
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
	for _, load := range []requestLoad{
		{name: fmt.Sprintf("GET of %d MiB", bigBytes>>20), conns: bulkConns, calls: 4 * calls, big: true},
		{name: fmt.Sprintf("POST of %d MiB", uploadBytes>>20), conns: bulkConns, calls: calls, body: bytes.Repeat([]byte("x"), uploadBytes)},
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

// bigAnswer is what a worker answers to /big.
var bigAnswer = append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", bigBytes),
	bytes.Repeat([]byte("x"), bigBytes)...)
