package pinboard

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/store"
)

// names is a DNS server with one answer for every name, which can be changed.
type names struct {
	conn net.PacketConn
	mu   sync.Mutex
	now  []netip.Addr
}

func newNames(t *testing.T, addrs ...string) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &names{conn: conn}
	n.point(addrs...)
	var serving sync.WaitGroup
	serving.Go(n.serve)
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return n
}

// point has every name lead to these addresses from now on.
func (n *names) point(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = nil
	for _, text := range addrs {
		n.now = append(n.now, netip.MustParseAddr(text))
	}
}

func (n *names) serve() {
	query := make([]byte, 512)
	for {
		size, from, err := n.conn.ReadFrom(query)
		if err != nil {
			return
		}
		_, _ = n.conn.WriteTo(n.answer(query[:size]), from)
	}
}

// answer is a DNS message (RFC 1035) that repeats the question of the query and
// answers it.
func (n *names) answer(query []byte) []byte {
	end := 12 // of the header
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5 // the name's end, type and class
	kind := binary.BigEndian.Uint16(query[end-4:])
	const typeA, typeAAAA = 1, 28
	out := append([]byte(nil), query[:end]...)
	copy(out[2:12], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, addr := range n.now {
		if want := addr.Is4() && kind == typeA || addr.Is6() && kind == typeAAAA; !want {
			continue
		}
		out[7]++
		out = append(out, 0xc0, 12) // the name of the question
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, 0, 1, 0, 0, 0, 0) // class, no time to live
		out = binary.BigEndian.AppendUint16(out, uint16(len(addr.AsSlice())))
		out = append(out, addr.AsSlice()...)
	}
	return out
}

// transport dials as pinboard does by itself, but asks this server for names.
func (n *names) transport() *http.Transport {
	return &http.Transport{DialContext: directDial(&net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
		},
	})}
}

// stranger is somebody at another address and the port of the worker. It must
// never be called, and answers everything so that it would be noticed.
func (w *realWorker) stranger(addr string) *realWorker {
	w.t.Helper()
	port := w.url[strings.LastIndexByte(w.url, ':')+1:]
	listener, err := net.Listen("tcp", net.JoinHostPort(addr, port))
	require.NoError(w.t, err)
	counted := &accepting{Listener: listener}
	s := &realWorker{t: w.t, client: "stranger", secret: w.secret}
	server := httptest.NewUnstartedServer(s)
	_ = server.Listener.Close()
	server.Listener = counted
	server.Start()
	w.t.Cleanup(func() {
		server.Close()
		require.Zero(w.t, counted.count(), "connections to %s", addr)
	})
	return s
}

type accepting struct {
	net.Listener
	mu    sync.Mutex
	conns int
}

func (a *accepting) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.mu.Lock()
		a.conns++
		a.mu.Unlock()
	}
	return conn, err
}

func (a *accepting) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conns
}

// called returns how a worker is reached under a name.
func (w *realWorker) called(name string) {
	w.url = strings.Replace(w.url, "127.0.0.1", name, 1)
}

func rulesFront(t *testing.T, dns *names, rules string) *front {
	t.Helper()
	f, _ := registryFront(t, withTransport(dns.transport()), withPassport(rulesOptions(rules).Passport))
	return f
}

// registered registers and returns the session, which is active.
func (w *realWorker) registered(f *front) (session any) {
	w.t.Helper()
	resp, answer := w.register(f)
	require.Equal(w.t, http.StatusOK, resp.StatusCode, answer)
	f.pb.registry.settled(w.t, w.client)
	return answer["sessionId"]
}

// C30: between the check and the call, and between one call and the next, the
// name is pointed elsewhere.
func TestANameThatChangesItsAddressIsFollowedByNothing(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []string{"127.0.0.2", "::ffff:127.0.0.2", "64:ff9b::7f00:2", "169.254.169.254", "0.0.0.0"} {
		t.Run(elsewhere, func(t *testing.T) {
			t.Parallel()
			dns := newNames(t, "127.0.0.1")
			f := rulesFront(t, dns, `"*.example"`)
			w := newRealWorker(t, "a", nil)
			w.stranger("127.0.0.2")
			w.called("worker.example")
			session := w.registered(f)
			resp, body := f.get("/counters/alice")
			require.Equal(t, http.StatusOK, resp.StatusCode, body)
			before := len(w.seen())

			dns.point(elsewhere)
			resp, beat := w.heartbeat(f, session)
			require.Equal(t, http.StatusOK, resp.StatusCode, beat)
			require.Equal(t, true, beat["degraded"])
			f.pb.proxy.closeIdle() // every request has to connect anew
			resp, _ = f.get("/counters/alice")
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			resp, _ = f.post("/counters/alice", "body")
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			require.Equal(t, http.StatusServiceUnavailable, f.ask(upgradeRequest("/counters/alice")).answer("GET").StatusCode)
			require.Len(t, w.seen(), before)

			dns.point(elsewhere, "127.0.0.1")
			resp, beat = w.heartbeat(f, session)
			require.Equal(t, http.StatusOK, resp.StatusCode, beat)
			require.Nil(t, beat["degraded"])
			resp, body = f.post("/counters/alice", "body")
			require.Equal(t, "POST:body", body, resp.StatusCode)
		})
	}
}

func TestOfANamesAddressesOnlyThoseThatAreAllowedAreDialled(t *testing.T) {
	t.Parallel()
	for _, addrs := range [][]string{{"127.0.0.2", "127.0.0.1"}, {"127.0.0.1", "127.0.0.2"}, {"127.0.0.2", "127.0.0.3", "127.0.0.1"}} {
		dns := newNames(t, addrs...)
		f := rulesFront(t, dns, `"worker.example","127.0.0.1"`)
		w := newRealWorker(t, "a", nil)
		w.stranger("127.0.0.2")
		w.stranger("127.0.0.3")
		w.called("worker.example")
		session := w.registered(f)
		_, beat := w.heartbeat(f, session)
		require.Nil(t, beat["degraded"])
		_, body := f.get("/counters/alice")
		require.Equal(t, "GET:", body)
	}
}

// A worker that is not up yet may become so: that is no reason to say that its
// name leads to a wrong place.
func TestANameWithoutAnAllowedAddressIs403AndOneThatDoesNotAnswerThere503(t *testing.T) {
	t.Parallel()
	dns := newNames(t)
	f := rulesFront(t, dns, `"worker.example","127.0.0.1"`)
	w := newRealWorker(t, "a", nil)
	w.stranger("127.0.0.2")
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	for _, c := range []struct {
		addrs  string
		host   string
		status int
	}{
		{"127.0.0.2", w.url, 403},
		{"127.0.0.2 127.0.0.3", w.url, 403},
		{"169.254.169.254", w.url, 403},
		{"::ffff:127.0.0.2", w.url, 403},
		{"127.0.0.2 127.0.0.1", "http://" + gone.Addr().String(), 503},
		{"127.0.0.1 127.0.0.2", "http://" + gone.Addr().String(), 503},
		{"", w.url, 503},
	} {
		dns.point(strings.Fields(c.addrs)...)
		w.url = strings.Replace(c.host, "127.0.0.1", "worker.example", 1)
		resp, answer := w.register(f)
		require.Equal(t, c.status, resp.StatusCode, "%s: %v", c.addrs, answer)
		require.Empty(t, w.seen())
		w.url = c.host
	}
}

// "*" lets a token name every worker there could be, and no more.
func TestUnderAWideRuleAReservedAddressIsNotDialled(t *testing.T) {
	t.Parallel()
	dns := newNames(t)
	for _, rules := range []string{`"*"`, `"*.example"`, `"*","0.0.0.0/0","::/0"`} {
		f := rulesFront(t, dns, rules)
		w := newRealWorker(t, "a", nil)
		port := w.url[strings.LastIndexByte(w.url, ':'):]
		for _, addr := range []string{"0.0.0.0", "::", "169.254.169.254", "fd00:ec2::254", "100.100.100.200", "64:ff9b::a9fe:a9fe", "::ffff:0.0.0.0", "fe80::1", "224.0.0.1"} {
			dns.point(addr)
			w.url = "http://worker.example" + port
			resp, answer := w.register(f)
			require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s %s: %v", rules, addr, answer)
			if parsed := netip.MustParseAddr(addr); rules != `"*.example"` && !parsed.Is4In6() {
				w.url = "http://" + netip.AddrPortFrom(parsed, 1).String()
				resp, answer = w.register(f)
				require.Equal(t, http.StatusForbidden, resp.StatusCode, "%s %s: %v", rules, addr, answer)
				require.Contains(t, answer["error"], "metadata")
			}
		}
		require.Empty(t, w.seen(), "0.0.0.0 would have led to it")
	}
}

// Rules belong to the session that registered under them, so that all nodes dial
// alike. Who may no longer advertise the URL is not renewed.
func TestASessionIsNotRenewedUnderClaimsThatNoLongerCoverItsAddress(t *testing.T) {
	t.Parallel()
	dns := newNames(t, "127.0.0.1")
	shared := MemoryStore()
	at := func(rules string) *front {
		f, _ := registryFront(t, func(s *setup) { s.opts.Store = shared }, withTransport(dns.transport()), withPassport(rulesOptions(rules).Passport))
		return f
	}
	old := at(`"worker.example"`)
	w := newRealWorker(t, "a", nil)
	w.called("worker.example")
	session := w.registered(old)
	for rules, status := range map[string]int{
		`"worker.example"`: 200, `"*"`: 200, `"*.example","127.0.0.0/8"`: 200,
		`"other.example"`: 403, `"worker.example","10.0.0.0/8"`: 403, `"127.0.0.1"`: 403,
	} {
		f := at(rules)
		resp, answer := w.heartbeat(f, session)
		require.Equal(t, status, resp.StatusCode, "%s: %v", rules, answer)
		// Until then every node serves it, by the rules that it came under.
		_, body := f.get("/counters/alice")
		require.Equal(t, "GET:", body, rules)
	}
}

// The data plane follows redirects as little as probes do: they are the client's.
func TestARedirectOfAWorkersIsTheClients(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	aim := newFake(t, nil)
	w := newFake(t, func(h *hit) { h.body(); h.reply(307, "", "Location: http://"+aim.addr+"/counters/alice") })
	f.register(w, "a", func(r *store.Registration) { r.BackendHosts = []string{"*"} })
	for _, method := range []string{"GET", "POST", "HEAD"} {
		resp, _ := f.ask(method + " /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").whole(method)
		require.Equal(t, 307, resp.StatusCode)
		require.Equal(t, "http://"+aim.addr+"/counters/alice", resp.Header.Get("Location"))
	}
	require.Equal(t, 307, f.ask(upgradeRequest("/counters/alice")).answer("GET").StatusCode)
	require.Len(t, w.seen(), 4)
	require.Empty(t, aim.seen())
}
