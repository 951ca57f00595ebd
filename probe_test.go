package pinboard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestAProbeIsOneGetWithTheSecretAndTheEscapedChallenge(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	seen := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		seen <- r
		_, _ = io.WriteString(rw, `{"value":"v ü","more":[1]}`)
	}))
	defer server.Close()
	w := n.workerAt(server.URL + "/base%2Fx/y/")
	w.register(fields{"challenge": "a b&challenge=c#ü%/", "challengeValue": "v ü"})
	r := <-seen
	require.Equal(t, http.MethodGet, r.Method)
	require.Equal(t, "/base%2Fx/y/_pinned/challenge?challenge=a+b%26challenge%3Dc%23%C3%BC%25%2F", r.RequestURI)
	require.Equal(t, "a b&challenge=c#ü%/", r.URL.Query().Get("challenge"))
	require.Equal(t, strings.TrimPrefix(server.URL, "http://"), r.Host)
	require.Equal(t, []string{w.secret}, r.Header.Values("Pinboard-Proxy-Secret"))
	require.Empty(t, r.Header.Values("Accept-Encoding"))
	require.True(t, r.Close, "the connection is not kept")
}

func TestWhatAProbesAnswerMeans(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register() // for the heartbeats
	fresh := n.worker()
	status := func(code int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
	}
	text := func(body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, body) }
	}
	moved := httptest.NewServer(w)
	defer moved.Close()
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		has    string
	}{
		{"another secret", status(403), 409, "another process"},
		{"another challenge", status(404), 409, "another process"},
		{"another value", text(`{"value":"x"}`), 409, "another process"},
		{"no value", text(`{}`), 409, "another process"},
		{"a list", text(`[]`), 409, "another process"},
		{"null", text(`null`), 409, "another process"},
		{"a number", text(`{"value":1}`), 409, "another process"},
		{"no JSON", text(`<html>`), 409, "another process"},
		{"nothing", text(``), 409, "another process"},
		{"more than one value", text(`{"value":"planted-value-fixed"}{}`), 409, "another process"},
		{"over-long", text(`{"value":"planted-value-fixed"` + strings.Repeat(" ", 4<<10) + `}`), 409, "another process"},
		{"over-long after its end", text(`{"value":"planted-value-fixed"}` + strings.Repeat(" ", 4<<10)), 409, "another process"},
		{"a redirect", func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, moved.URL+r.RequestURI, http.StatusTemporaryRedirect)
		}, 503, "status 307"},
		{"no content", status(204), 503, "status 204"},
		{"unauthorized", status(401), 503, "status 401"},
		{"an error", status(500), 503, "status 500"},
		{"not ready", status(503), 503, "status 503"},
		{"a cut answer", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(rw, `{"value":`)
		}, 503, "does not answer"},
		{"a closed connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 503, "does not answer"},
		{"an endless head", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X", strings.Repeat("x", 100<<10))
		}, 503, "does not answer"},
	} {
		value := fields{"challengeValue": "planted-value-fixed"}
		fresh.answers(c.answer)
		a := n.post("/registry/register", tokenWorker, fresh.registration(value))
		require.Equal(t, c.status, a.status, "%s: %s", c.name, a.text)
		a.requireRefusal(t, c.status, c.has)
		require.Nil(t, fresh.listed(), c.name)
		w.answers(c.answer)
		a = w.heartbeat(value)
		require.Equal(t, http.StatusOK, a.status, c.name)
		require.Equal(t, true, a.field(t, "degraded"), c.name)
	}
	// Exactly 4 KiB is not over-long.
	fits := `{"value":"planted-value-fixed"`
	fresh.answers(text(fits + strings.Repeat(" ", 4<<10-len(fits)-1) + `}`))
	fresh.register(fields{"challengeValue": "planted-value-fixed"})
}

func TestAWorkerThatCannotBeReachedIs503(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := n.workerAt("http://" + listener.Addr().String())
	require.NoError(t, listener.Close())
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
	require.Contains(t, n.said.String(), "connection refused")
	w = n.workerAt("http://name.invalid:8000")
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
}

// rawWorker answers on a socket as f says.
func (n *regNode) rawWorker(f func(net.Conn)) *regWorker {
	n.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(n.t, err)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer func() { _ = conn.Close() }()
				f(conn)
			})
		}
	})
	n.t.Cleanup(func() {
		_ = listener.Close()
		conns.Wait()
	})
	return n.workerAt("http://" + listener.Addr().String())
}

// readHead reads a request up to its empty line.
func readHead(conn net.Conn) string {
	var head strings.Builder
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != ""; {
		head.WriteString(lines.Text() + "\n")
	}
	return head.String()
}

// A peer that sends the request back must not get the secret into the log.
func TestAnEchoOfTheSecretIsNotLogged(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.rawWorker(func(conn net.Conn) {
		head := readHead(conn)
		for line := range strings.Lines(head) {
			if strings.HasPrefix(strings.ToLower(line), "pinboard-proxy-secret") {
				_, _ = io.WriteString(conn, line)
			}
		}
		_, _ = io.WriteString(conn, head)
	})
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
	require.Contains(t, n.said.String(), "malformed")
	w.record("/a")
	require.Equal(t, true, w.heartbeat().field(t, "degraded"))
}

// misbehaving are workers whose answers never come, never end, or are not worth
// reading.
func (n *regNode) misbehaving() []*regWorker {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
	large := []byte(head + `{"value":"` + strings.Repeat("a", 5_000_000) + `"}`)
	untilHungUp := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	endless := func(first, more string) func(net.Conn) {
		return func(conn net.Conn) {
			readHead(conn)
			_, err := io.WriteString(conn, first)
			for err == nil {
				_, err = io.WriteString(conn, more)
			}
		}
	}
	drip := func(conn net.Conn) {
		readHead(conn)
		_, _ = io.WriteString(conn, head+"{")
		done := make(chan struct{})
		go func() { defer close(done); untilHungUp(conn) }()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_, _ = io.WriteString(conn, " ")
			}
		}
	}
	return []*regWorker{
		n.rawWorker(untilHungUp),
		n.rawWorker(endless(head+`{"value":"`, "aaaa")),
		n.rawWorker(endless("HTTP/1.1 200 OK\r\n", "X: y\r\n")),
		n.rawWorker(endless("", "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n")),
		n.rawWorker(drip),
		n.rawWorker(func(conn net.Conn) { readHead(conn); _, _ = conn.Write(large) }),
		n.rawWorker(func(net.Conn) {}),
	}
}

// C31: the real client gives up after 5 s, and one bad worker must not cost
// another its lease. Not parallel: it measures the heap.
func TestEndlessProbesAreGivenUpAndCostLittle(t *testing.T) {
	n := serveRegNode(t, Options{})
	n.pb.probe.within = probeTime
	kinds := n.misbehaving()
	var before, during runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const each = 50
	var calls sync.WaitGroup
	answers, beats := make(chan regAnswer, each), make(chan regAnswer, each)
	post := func(path string, body fields, to chan<- regAnswer) {
		calls.Go(func() {
			a, err := n.try(t.Context(), "POST", path, tokenWorker, body)
			if err != nil {
				t.Error(err)
			}
			to <- a
		})
	}
	for i := range each {
		url := kinds[i%len(kinds)].url
		post("/registry/register", n.workerAt(fmt.Sprintf("%s/new/%d", url, i)).registration(), answers)
		live := n.workerAt(fmt.Sprintf("%s/live/%d", url, i))
		live.record("/a")
		post("/registry/heartbeat", live.beat(), beats)
	}
	require.Eventually(t, func() bool { return n.dials.Load() >= 2*each }, patience, time.Millisecond)
	honest := n.worker()
	honest.register()
	require.Equal(t, http.StatusOK, honest.heartbeat().status)
	runtime.GC()
	runtime.ReadMemStats(&during)
	require.Less(t, int64(during.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20))
	calls.Wait()
	close(answers)
	close(beats)
	for a := range answers {
		require.Contains(t, []int{http.StatusConflict, http.StatusServiceUnavailable}, a.status, a.text)
		a.requireRefusal(t, a.status, "")
	}
	for a := range beats {
		require.Equal(t, http.StatusOK, a.status, a.text)
		require.Equal(t, true, a.field(t, "degraded"))
		require.Greater(t, a.field(t, "expiresInMs"), 0.0)
	}
}

func TestARegistrationOfANameKeepsTheAddressThatAnswered(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.url = strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	w.register()
	s, err := n.store.Session(t.Context(), w.session)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", s.BackendAddr)
	require.Equal(t, http.StatusOK, w.heartbeat().status)
}

// rulesOptions has one worker's key, for these backend hosts.
func rulesOptions(rules string) Options {
	lookup := variables(map[string]string{"PINBOARD_TOKEN": tokenWorker})
	document := strings.Replace(envPassport, `"allowedBackendHosts":["*"]`, `"allowedBackendHosts":[`+rules+`]`, 1)
	env, err := ReadEnvironment(func(name string) (string, bool) {
		if name == "PINBOARD_PASSPORT" {
			return document, true
		}
		return lookup(name)
	})
	if err != nil {
		panic(err)
	}
	return env.Options
}

// C30: a name that the claims allow leads to an address that they do not.
func TestANameThatLeadsToAnAddressOutsideTheClaimsIs403(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, rulesOptions(`"localhost","10.0.0.0/8"`))
	w := n.worker()
	w.url = strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusForbidden, "outside the credential's claims")
	require.Zero(t, w.probes.Load(), "nothing was sent")
}

// C30: the name led to the worker when it registered, and leads elsewhere now.
func TestANameThatIsPointedElsewhereLaterIsNotCalled(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, rulesOptions(`"localhost"`))
	w := n.worker()
	w.url = strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	w.register()
	require.Nil(t, w.heartbeat().field(t, "degraded"))
	probes := w.probes.Load()

	moved := n.workerAt(w.url)
	moved.session = "moved"
	registration := moved.at(w.url, "127.0.0.2")
	_, err := n.store.Register(t.Context(), registration)
	require.NoError(t, err)
	w.answers(moved.ServeHTTP)
	a := moved.heartbeat() // the name leads to 127.0.0.1
	require.Equal(t, http.StatusOK, a.status, a.text)
	require.Equal(t, true, a.field(t, "degraded"))
	require.Equal(t, probes, w.probes.Load(), "nothing was sent")
}

func TestProbesGoDirectlyWhateverTheEnvironmentSays(t *testing.T) {
	t.Parallel()
	transport := &http.Transport{Proxy: http.ProxyURL(mustURL("http://127.0.0.1:1"))}
	n := serveRegNode(t, Options{Transport: transport})
	n.worker().register()
}

func TestAProbeOverTLSTrustsWhatTheTransportTrusts(t *testing.T) {
	t.Parallel()
	untrusting := serveRegNode(t, Options{})
	w := untrusting.workerAt("")
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	w.url = server.URL
	untrusting.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
	require.Contains(t, untrusting.said.String(), "certificate")

	trusting := serveRegNode(t, Options{Transport: server.Client().Transport.(*http.Transport)})
	w.n = trusting
	w.register()
}

func TestAProbeIsGivenUpAfterTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newRegNode(t, Options{}, func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe() // connected, and then silent
			t.Cleanup(func() { _ = there.Close() })
			return here, nil
		})
		w := n.workerAt("http://127.0.0.1:1")
		began := time.Now()
		n.post("/registry/register", tokenWorker, w.registration()).requireRefusal(t, http.StatusServiceUnavailable, "does not answer")
		require.Equal(t, probeTime, time.Since(began)) // virtual time
		w.record("/a")
		began = time.Now()
		require.Equal(t, true, w.heartbeat().field(t, "degraded"))
		require.Equal(t, probeTime, time.Since(began))
	})
}

func TestAProbeThatHangsDelaysNoOtherOnTheSameHost(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{Transport: &http.Transport{MaxConnsPerHost: 1}})
	host := n.worker()
	hanging, quick := n.workerAt(host.url+"/hanging"), n.workerAt(host.url+"/quick")
	begun := make(chan struct{})
	host.answers(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/hanging") {
			close(begun)
			<-r.Context().Done()
			return
		}
		r.URL.Path = strings.TrimPrefix(r.URL.Path, "/quick")
		quick.ServeHTTP(rw, r)
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	body := hanging.registration()
	go func() {
		_, err := n.try(ctx, "POST", "/registry/register", tokenWorker, body)
		left <- err
	}()
	<-begun
	quick.register()
	require.Empty(t, left, "the other one still hangs")
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
}

func TestEveryProbeMakesItsOwnConnection(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	w := n.worker()
	w.register()
	for range 3 {
		w.heartbeat()
	}
	require.EqualValues(t, 4, n.dials.Load())
}

func TestAProbesDialEndsWithTheProbe(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	n := newRegNode(t, Options{}, func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := n.pb.probe.ask(ctx, probe{url: "http://127.0.0.1:1", secret: wire.NewSecret("x"), rules: []string{"*"}})
		asked <- err
	}()
	require.Eventually(t, func() bool { return n.dials.Load() == 1 }, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-asked, errUnreachable)
}
