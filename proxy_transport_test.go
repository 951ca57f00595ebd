package pinboard

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

func TestAnIdleTimeShorterThanUvicornsIsKept(t *testing.T) {
	t.Parallel()
	long := &http.Transport{IdleConnTimeout: time.Hour, MaxIdleConnsPerHost: 3, Proxy: http.ProxyFromEnvironment}
	made := newTransport(long, standardLimits())
	require.Equal(t, idleTimeout, made.IdleConnTimeout)
	require.Less(t, idleTimeout, 5*time.Second)
	require.Equal(t, 3, made.MaxIdleConnsPerHost)
	require.Nil(t, made.Proxy)
	require.True(t, made.DisableCompression)
	require.NotNil(t, long.Proxy, "the model is left alone")
	require.Equal(t, time.Second, newTransport(&http.Transport{IdleConnTimeout: time.Second}, standardLimits()).IdleConnTimeout)
	require.Equal(t, maxIdlePerWorker, newTransport(nil, standardLimits()).MaxIdleConnsPerHost)
}

// dialTo resolves every name to one address, as a dialer of the host's.
func dialTo(addr string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}}
}

func TestANameThatWasPointedElsewhereIsNotDialled(t *testing.T) {
	t.Parallel()
	w := newFake(t, nil)
	for pinned, status := range map[string]int{"127.0.0.1": 200, "127.0.0.2": 503} {
		f := newFront(t, func(s *setup) { s.opts.Transport = dialTo(w.addr) })
		s := f.register(w, "a", func(r *store.Registration) {
			r.AdvertiseURL, r.BackendHosts, r.BackendAddr = "http://worker.example", []string{"worker.example"}, pinned
		})
		s.place("alice")
		resp, _ := f.get("/counters/alice")
		require.Equal(t, status, resp.StatusCode, pinned)
	}
	require.Len(t, w.seen(), 1)
}

func TestTheAddressIsCheckedBeforeItIsDialled(t *testing.T) {
	t.Parallel()
	for pinned, status := range map[string]int{"127.0.0.1": 200, "127.0.0.2": 503} {
		f := newFront(t)
		w := newFake(t, nil)
		_, port, err := net.SplitHostPort(w.addr)
		require.NoError(t, err)
		f.register(w, "a", func(r *store.Registration) {
			r.AdvertiseURL, r.BackendHosts, r.BackendAddr = "http://localhost:"+port, []string{"localhost"}, pinned
		})
		resp, _ := f.get("/counters/alice")
		require.Equal(t, status, resp.StatusCode, pinned)
		if status == 503 {
			// Connections are accepted in order, and the first is the test's own.
			conn, err := net.Dial("tcp", w.addr)
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			_, err = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
			require.NoError(t, err)
			require.Eventually(t, func() bool { return len(w.seen()) == 1 }, patience, time.Millisecond)
			require.Equal(t, 1, w.connections())
		}
	}
}

func TestAPooledConnectionIsOnlyUsedWhereItMayLead(t *testing.T) {
	t.Parallel()
	old, next := newFake(t, nil), newFake(t, nil)
	target := old.addr
	f := newFront(t, func(s *setup) {
		s.opts.Transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, target)
			if err == nil && target == next.addr {
				conn = movedConn{conn}
			}
			return conn, err
		}}
	})
	named := func(addr string) func(*store.Registration) {
		return func(r *store.Registration) {
			r.AdvertiseURL, r.BackendHosts, r.BackendAddr = "http://worker.example", []string{"worker.example"}, addr
		}
	}
	s := f.register(old, "a", named("127.0.0.1"))
	s.place("alice")
	resp, _ := f.get("/counters/alice")
	require.Equal(t, 200, resp.StatusCode)
	require.NoError(t, f.store.Deregister(t.Context(), s.SessionID))

	target = next.addr
	f.register(next, "b", named("192.0.2.1"))
	for _, body := range []string{"", "body"} {
		resp, _ = f.post("/counters/alice", body)
		require.Equal(t, 200, resp.StatusCode)
	}
	require.Len(t, next.seen(), 2)
	old.only()
}

// movedConn says that it leads elsewhere.
type movedConn struct{ net.Conn }

func (movedConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

// What a worker may have carried out is not sent again, whatever the client says
// of repeating it: that is the client's to do.
func TestARequestThatWasSentIsNotRepeatedForItsHeaders(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	w := newFake(t, func(h *hit) {
		if h.body(); h.method == "GET" {
			h.ok("")
			return
		}
		h.last = true // dies over it
	})
	f.register(w, "a")
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		for _, body := range []string{"", "body"} {
			f.get("/counters/alice") // so that there is a connection to use again
			before := len(w.seen())
			resp, _ := f.post("/counters/alice", body, name+": once")
			require.Equal(t, http.StatusBadGateway, resp.StatusCode)
			hits := w.seen()[before:]
			require.Len(t, hits, 1, "%s %q", name, body)
			require.Equal(t, []string{"once"}, hits[0].header[name])
		}
	}
}

// A connection that was kept may have been closed under a request, which is why
// the transport repeats a safe one. A request that the worker dies over must not
// go over all kept connections for that.
func TestASafeRequestIsSentOnceMoreAtMost(t *testing.T) {
	t.Parallel()
	const kept = 5
	f := newFront(t)
	gate := make(chan struct{})
	w := newFake(t, func(h *hit) {
		body := h.body()
		if strings.HasSuffix(h.target, "/dies") {
			h.last = true
			return
		}
		<-gate
		h.ok(body)
	})
	f.register(w, "a")
	for _, body := range []string{"", "body"} {
		clients := make([]*client, kept)
		for i := range clients {
			clients[i] = f.ask("GET /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
		}
		for range clients {
			gate <- struct{}{}
		}
		for _, c := range clients {
			c.whole("GET")
		}
		before := len(w.seen())
		resp, _ := f.ask(fmt.Sprintf("GET /counters/alice/dies HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)).whole("GET")
		require.Equal(t, http.StatusBadGateway, resp.StatusCode)
		require.Len(t, w.seen(), before+2, "%q", body)
	}
}
