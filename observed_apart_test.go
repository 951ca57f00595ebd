package pinboard

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A stream that goes on without its handler is open, and is told of when it ends.
func TestAStreamThatOutlivesItsRequestIsObservedToItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, kind, cut string
		bytesIn         float64
		then            func(f *front, s *session, c *client)
	}{
		{"a worker's end", "sse", "", 0, nil},
		{"a client that leaves", "sse", "client_left", 0, func(_ *front, _ *session, c *client) { c.reset() }},
		{"an owner whose session ends", "sse", "owner_ended", 0, func(f *front, s *session, _ *client) { f.pb.leases.cutNow(s.SessionID) }},
		{"a client that leaves", "websocket", "client_left", 5, func(_ *front, _ *session, c *client) { c.reset() }},
		{"an owner whose session ends", "websocket", "owner_ended", 5, func(f *front, s *session, _ *client) { f.pb.leases.cutNow(s.SessionID) }},
		{"a client's end", "websocket", "", 5, func(_ *front, _ *session, c *client) {
			require.NoError(t, c.Conn.(interface{ CloseWrite() error }).CloseWrite())
		}},
	} {
		registry, log := prometheus.NewPedanticRegistry(), &accessLines{t: t}
		f := newFront(t, metered(registry), log.logged(1), func(s *setup) { s.opts.DetachStreams = true })
		let := make(chan struct{})
		s := f.register(newFake(t, func(h *hit) {
			if c.kind == "websocket" {
				h.echo()
				return
			}
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			if c.then != nil {
				h.gone()
				return
			}
			<-let
			h.send("0\r\n\r\n")
		}), "a")
		seen := watch(t, registry)
		request, status, code := "GET /counters/alice HTTP/1.1\r\nHost: p\r\nX-Request-Id: r\r\n\r\n", 200, "2xx"
		if c.kind == "websocket" {
			request, status, code = upgradeRequest("/counters/alice"), http.StatusSwitchingProtocols, "1xx"
		}
		client := f.ask(request)
		resp := client.answer("GET")
		require.Equal(t, status, resp.StatusCode)
		if c.kind == "websocket" {
			client.send("hello")
			client.expect("hello")
		} else {
			got := make([]byte, 5)
			_, err := resp.Body.Read(got)
			require.NoError(t, err)
		}
		seen.becomes(map[string]float64{"pinboard_open_requests{kind=" + c.kind + "}": 1}, append(ends, "pinboard_open_requests")...)
		require.Empty(t, log.String(), "it has not ended")
		if c.then != nil {
			c.then(f, s, client)
		} else {
			close(let)
		}
		want := map[string]float64{
			"pinboard_open_requests{kind=" + c.kind + "}":                                        -1,
			"pinboard_requests_total{code=" + code + ",kind=" + c.kind + ",namespace=/counters}": 1,
			"pinboard_first_byte_seconds_count{namespace=/counters}":                             1,
		}
		line := map[string]any{
			"method": "GET", "namespace": "/counters", "id": "alice", "kind": c.kind, "status": float64(status), "client": "a", "attempts": 1.,
			"address": "127.0.0.1", "bytesIn": c.bytesIn, "bytesOut": 5.,
		}
		if c.kind == "sse" {
			line["request"] = "r"
		}
		if c.cut != "" {
			want["pinboard_cuts_total{namespace=/counters,reason="+c.cut+"}"] = 1
			line["cut"] = c.cut
		}
		seen.becomes(want, append(ends, "pinboard_open_requests")...)
		log.has(log.read(1)[0], line)
	}
}
