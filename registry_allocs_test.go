//go:build !race && !leakcheck

package pinboard

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/allocs"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/passport"
)

// Not parallel: it counts what the whole process allocates, net/http's server, the
// memory store and a new connection to the worker included.
func TestAFirstRequestAllocatesLittle(t *testing.T) {
	f := newFront(t, func(s *setup) { s.hasty = true }) // what is patient allocates
	w := serveProbes(t, "not asked for")
	f.register(w, "a")
	client := f.dial()
	request := func(n int) string { return fmt.Sprintf("GET /counters/id-%04d/json HTTP/1.1\r\nHost: p\r\n\r\n", n) }
	head := client.ask(t, request(0))
	requests, buf := make([][]byte, 0, allocs.Calls), make([]byte, head)
	for n := range allocs.Calls {
		requests = append(requests, []byte(request(n+1)))
	}
	var err error
	n := allocs.PerCall(t, func() {
		_, _ = client.Write(requests[0])
		requests = requests[1:]
		if _, failed := io.ReadFull(client.Conn, buf); failed != nil {
			err = failed
		}
	})
	require.NoError(t, err)
	require.LessOrEqual(t, n, 99.0+allocs.Margin)
}

// serveProbes answers every connection's first request with one challenge value. It
// allocates the connection and nothing else.
func serveProbes(t *testing.T, value string) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	body := fmt.Sprintf(`{"value":%q}`, value)
	answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	served := make(chan struct{})
	go func() {
		defer close(served)
		buf := make([]byte, 4<<10)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			for n := 0; err == nil && !bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")); {
				var more int
				more, err = conn.Read(buf[n:])
				n += more
			}
			_, _ = conn.Write(answer)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-served
	})
	return &fake{addr: listener.Addr().String()}
}

// Not parallel: it counts what the whole process allocates, net/http's server, the
// worker's side of the probe and the memory store included. Other workers, their
// rows and namespaces make no difference.
func TestAHeartbeatAllocatesLittleHoweverManyBeat(t *testing.T) {
	who, err := passport.Parse([]byte(regPassport), nil)
	require.NoError(t, err)
	f := newFront(t, func(s *setup) { s.opts.Passport = who })
	anywhere := func(r *store.Registration) { r.BackendHosts = []string{"*"} }
	s := f.register(serveProbes(t, "challenge-value"), "a", anywhere)
	body := fmt.Sprintf(`{"sessionId":%q,"headroom":100,"draining":false,"challenge":"c","challengeValue":"challenge-value","acks":[]}`, s.SessionID)
	text := fmt.Sprintf("POST /registry/heartbeat HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		tokenWorker, len(body), body)
	client := f.dial()
	head := client.ask(t, text)
	request, buf := []byte(text), make([]byte, head)
	beat := func() {
		_, _ = client.Write(request)
		_, err = io.ReadFull(client.Conn, buf)
	}
	n := allocs.PerCall(t, beat)
	require.NoError(t, err)
	require.NotContains(t, string(buf), "degraded")
	require.LessOrEqual(t, n, 189.0+allocs.Margin)
	for i := range 300 {
		client := fmt.Sprint("other-", i)
		f.register(&fake{addr: fmt.Sprintf("192.0.2.1:%d", i+1)}, client, anywhere, func(r *store.Registration) {
			r.Namespaces = []string{counters_, "/" + client}
			r.Instances = map[string][]string{counters_: {client}}
		})
	}
	require.InDelta(t, n, allocs.PerCall(t, beat), allocs.Margin)
	require.NoError(t, err)
}
