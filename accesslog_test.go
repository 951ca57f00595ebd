package pinboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pinboard-go/pinboard/passport"
)

// accessLines is an access log in memory.
type accessLines struct {
	syncBuffer
	t *testing.T
}

func (l *accessLines) logger(level zapcore.Level) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeDuration = zapcore.StringDurationEncoder
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(config), l, level))
}

// logged has a front write its access log to l.
func (l *accessLines) logged(sample int) func(*setup) {
	return func(s *setup) { s.opts.AccessLog, s.opts.AccessLogSample = l.logger(zap.InfoLevel), sample }
}

// read waits for so many lines and returns them; each is a JSON object by itself.
func (l *accessLines) read(n int) []map[string]any {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return strings.Count(l.String(), "\n") >= n }, patience, 1e6)
	var lines []map[string]any
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		require.NoError(l.t, json.Unmarshal([]byte(line), &fields), "%q", line)
		require.Equal(l.t, "request", fields["msg"])
		require.Equal(l.t, "info", fields["level"])
		lines = append(lines, fields)
	}
	require.Len(l.t, lines, n)
	return lines
}

// has requires a line to have these fields, and, of those that not each line has,
// no others.
func (l *accessLines) has(line, want map[string]any) {
	l.t.Helper()
	for name := range line {
		switch name {
		case "level", "ts", "msg", "took", "address", "method", "bytesIn", "bytesOut", "firstByte", "resolve", "epoch":
			if _, asked := want[name]; !asked {
				delete(line, name)
			}
		}
	}
	require.Equal(l.t, want, line)
}

func TestEachRequestIsOneLineOfTheAccessLog(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	f, _, _, sa, _ := pair(t, func(h *hit) {
		switch h.target {
		case "/counters/alice/refused":
			h.body()
			h.refuse()
		case "/counters/alice/sse":
			h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata")
			h.last = true
		case "/counters/alice/ws":
			h.echo()
		default:
			h.reply(201, "answer"+h.body())
		}
	}, func(h *hit) { h.body(); h.ok("second") }, log.logged(0))
	n := 0
	next := func() map[string]any { n++; return log.read(n)[n-1] }

	f.post("/counters/alice/x?y=1", "four", "X-Request-Id: req-1", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	line := next()
	require.Positive(t, line["epoch"])
	for _, name := range []string{"took", "firstByte", "resolve"} {
		require.Regexp(t, `^[0-9.]+(ns|µs|ms|s)$`, line[name], name)
	}
	log.has(line, map[string]any{
		"method": "POST", "namespace": "/counters", "id": "alice", "kind": "http", "status": 201., "bytesIn": 4., "bytesOut": 10.,
		"address": "127.0.0.1", "client": "a", "attempts": 1., "request": "req-1", "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
	})

	_, _ = f.ask("GET /counters/alice/sse HTTP/1.1\r\nHost: p\r\n\r\n").rest()
	log.has(next(), map[string]any{
		"namespace": "/counters", "id": "alice", "kind": "sse", "status": 200., "bytesOut": 4., "client": "a", "attempts": 1., "cut": "worker",
	})

	ws := f.ask(upgradeRequest("/counters/alice/ws"))
	ws.answer("GET")
	ws.send("hello")
	ws.expect("hello")
	require.NoError(t, ws.Conn.(interface{ CloseWrite() error }).CloseWrite())
	_, _ = ws.rest()
	log.has(next(), map[string]any{
		"namespace": "/counters", "id": "alice", "kind": "websocket", "status": 101., "bytesIn": 5., "bytesOut": 5., "client": "a", "attempts": 1.,
	})

	f.get("/counters/alice", caller("/counters/alice", sa)...)
	log.has(next(), map[string]any{
		"namespace": "/counters", "id": "alice", "kind": "cluster", "status": 201., "client": "a", "attempts": 1., "caller": "/counters/alice",
	})

	f.post("/counters/alice/refused", "body")
	log.has(next(), map[string]any{
		"namespace": "/counters", "id": "alice", "kind": "http", "status": 200., "client": "b", "attempts": 2.,
	})

	f.get("/nobody/x")
	log.has(next(), map[string]any{
		"namespace": "/nobody", "id": "x", "kind": "http", "status": 404., "refused": "unknown_namespace", "attempts": 0.,
	})
	f.get("/counters/")
	log.has(next(), map[string]any{
		"method": "GET", "namespace": "", "id": "", "kind": "http", "status": 400., "refused": "bad_request", "bytesIn": 0., "bytesOut": 0.,
	})
}

func TestTheAccessLogHasNothingThatAClientWouldHide(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	who := &passport.Identity{Provider: "p", Subject: "planted-subject", HideHeaders: []string{"Authorization"}, HideQuery: []string{"access_token"}}
	f := newFront(t, log.logged(1), withPassport(anyone{tokens: map[string]*passport.Identity{"Bearer planted-token": who, "planted-token": who}}))
	f.register(newFake(t, nil), "a")
	f.get("/counters/alice/planted-path?access_token=planted-token&planted-query", "Authorization: Bearer planted-token",
		"Cookie: session=planted-cookie", "X-Request-Id: planted request", "traceparent: 00-planted-planted-01", "Referer: /planted-referer")
	f.get("/nobody/x/planted-path?access_token=planted-token", "Cookie: session=planted-cookie")
	f.get("/counters/alice/../planted-path?planted-query")
	f.get("/planted-path")
	log.read(4)
	require.NotContains(t, log.String(), "planted")
}

func TestNobodyCanForgeALineOfTheAccessLog(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	pb, err := New(Options{Passport: anyone{}, Store: MemoryStore(), AccessLog: log.logger(zap.InfoLevel)})
	require.NoError(t, err)
	defer func() { require.NoError(t, pb.Shutdown(t.Context())) }()
	forged := "\n{\"level\":\"info\",\"msg\":\"request\",\"id\":\"forged\"}\n"
	n := 0
	for _, target := range []string{
		"/%0a%7b%22msg%22:%22request%22%7d/x", "/%22,%22id%22:%22forged/x", "/%1b[2J/x", "/%00%ff%e2%80%a8/x", "/counters/x%0a", "/counters/x",
	} {
		for _, method := range []string{http.MethodGet, "GET" + forged, strings.Repeat("M", 1<<16)} {
			pb.ServeHTTP(httptest.NewRecorder(), rawRequest(method, target, http.Header{
				"X-Request-Id": {forged}, "Traceparent": {"00-" + forged + "-00f067aa0ba902b7-01"}, "X-Forwarded-For": {forged},
			}))
			n++
		}
	}
	for _, line := range log.read(n) {
		require.NotContains(t, line, "request")
		require.NotContains(t, line, "trace")
		require.NotEqual(t, "forged", line["id"])
		require.LessOrEqual(t, len(line["method"].(string)), maxMethod)
		require.Equal(t, "192.0.2.1", line["address"])
	}
	require.NotContains(t, log.String(), "\x1b")
}

func TestAFewOfManyGoodRequestsAreLoggedAndAllOthers(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	f := newFront(t, log.logged(5))
	f.register(newFake(t, nil), "a")
	for i := range 12 {
		f.get("/counters/alice")
		if i%3 == 0 {
			f.get("/nobody/x")
		}
	}
	statuses := map[any]int{}
	for _, line := range log.read(3 + 4) {
		statuses[line["status"]]++
	}
	require.Equal(t, map[any]int{200.: 3, 404.: 4}, statuses)
}

func TestTheAccessLogTellsTheAddressThatTrustedProxiesVouchFor(t *testing.T) {
	t.Parallel()
	for trusted, want := range map[string]string{"127.0.0.0/8": "198.51.100.7", "10.0.0.0/8": "127.0.0.1"} {
		log := &accessLines{t: t}
		f := newFront(t, log.logged(1), func(s *setup) { s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(trusted)} })
		f.get("/counters/alice", "X-Forwarded-For: 6.6.6.6, 198.51.100.7")
		require.Equal(t, want, log.read(1)[0]["address"])
	}
}

func TestAnAccessLogThatIsOffOrNotOfTheRegistryHasNothing(t *testing.T) {
	t.Parallel()
	log := &accessLines{t: t}
	for _, c := range []struct {
		level zapcore.Level
		path  string
	}{{zap.ErrorLevel, "/counters/alice"}, {zap.InfoLevel, "/healthz"}, {zap.InfoLevel, "/registry/workers"}} {
		f := newFront(t, func(s *setup) { s.opts.AccessLog = log.logger(c.level) })
		f.get(c.path)
	}
	require.Empty(t, log.String())
}

func TestASampleThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	for _, sample := range []int{-1, maxSample + 1} {
		_, err := New(Options{Passport: anyone{}, Store: MemoryStore(), AccessLogSample: sample})
		require.ErrorContains(t, err, fmt.Sprintf("Options.AccessLogSample is %d", sample))
	}
}
