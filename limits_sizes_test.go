package pinboard

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pinboard-go/pinboard/passport"
)

func TestEachLimitHasItsPlaceInTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("docs", "operating.md"))
	require.NoError(t, err)
	variables := map[string]bool{}
	for _, f := range (&Limits{}).fields(nil) {
		require.False(t, variables[f.variable], f.variable)
		variables[f.variable] = true
		standard := f.standard
		if _, ok := f.value.(*time.Duration); ok {
			standard /= int64(time.Millisecond)
		}
		require.Regexp(t, fmt.Sprintf("(?m)^\\| [^|]+ \\| `%s` \\| `%s` \\| %d\\b", f.field, f.variable, standard), string(text))
	}
}

func TestLimitsOutOfRangeAreNamed(t *testing.T) {
	t.Parallel()
	for _, f := range (&Limits{}).fields(nil) {
		for _, wrong := range []int64{-1, f.high + 1} {
			var l Limits
			for _, mine := range l.fields(nil) {
				if mine.field == f.field {
					mine.set(wrong)
				}
			}
			_, err := New(Options{Passport: anyone{}, Store: MemoryStore(), Limits: l})
			require.ErrorContains(t, err, "Options.Limits."+f.field+" is ")
		}
	}
}

func TestALimitGoesBeforeTheTransportsAndThatBeforeTheDefault(t *testing.T) {
	t.Parallel()
	model := &http.Transport{TLSHandshakeTimeout: 3 * time.Second, ResponseHeaderTimeout: 4 * time.Second, MaxResponseHeaderBytes: 5}
	made := func(l Limits, model *http.Transport) (Limits, *http.Transport) {
		pb, err := New(Options{Passport: anyone{}, Store: MemoryStore(), Limits: l, Transport: model})
		require.NoError(t, err)
		transport := newTransport(model, &pb.opts.Limits)
		require.Zero(t, transport.ResponseHeaderTimeout)
		return pb.opts.Limits, transport
	}
	l, transport := made(Limits{TLSTimeout: time.Second, AnswerTimeout: 2 * time.Second, AnswerHeaderBytes: 9}, model)
	require.Equal(t, time.Second, transport.TLSHandshakeTimeout)
	require.Equal(t, 2*time.Second, l.AnswerTimeout)
	require.EqualValues(t, 9, transport.MaxResponseHeaderBytes)
	l, transport = made(Limits{}, model)
	require.Equal(t, 3*time.Second, transport.TLSHandshakeTimeout)
	require.Equal(t, 4*time.Second, l.AnswerTimeout)
	require.EqualValues(t, 5, transport.MaxResponseHeaderBytes)
	l, transport = made(Limits{Requests: 30, RequestsPerID: 20}, nil)
	require.Equal(t, 5*time.Second, transport.TLSHandshakeTimeout)
	require.Equal(t, 10*time.Minute, l.AnswerTimeout)
	require.EqualValues(t, 64<<10, transport.MaxResponseHeaderBytes)
	require.Equal(t, 15, l.RequestsPerAddress)
	require.Equal(t, 20, l.RequestsPerID)
}

func TestEachLimitHasAVariable(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PINBOARD_PASSPORT": `{"providers":[]}`, "REDIS_URL": "memory:"}
	lookup := func(name string) (string, bool) { value, ok := env[name]; return value, ok }
	read, err := ReadEnvironment(lookup)
	require.NoError(t, err)
	require.Equal(t, Limits{}, read.Options.Limits, "what is not set is for New to fill in")
	var want Limits
	for i, f := range want.fields(nil) {
		value := f.high
		if i%2 == 0 {
			value = max(f.low, f.standard)
		}
		f.set(value)
		if _, ok := f.value.(*time.Duration); ok {
			value /= int64(time.Millisecond)
		}
		env[f.variable] = strconv.FormatInt(value, 10)
	}
	read, err = ReadEnvironment(lookup)
	require.NoError(t, err)
	require.Equal(t, want, read.Options.Limits)
	for _, f := range want.fields(nil) {
		kept := env[f.variable]
		env[f.variable] = "-1"
		_, err = ReadEnvironment(lookup)
		require.ErrorContains(t, err, f.variable+`: is "-1", must be a number from `)
		env[f.variable] = kept
	}
}

func TestSizesOfARequestAreBound(t *testing.T) {
	t.Parallel()
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{URLBytes: 100, HeaderBytes: 500, HeaderLines: 6, BodyBytes: 10}
	})
	w := newFake(t, nil)
	f.register(w, "a")
	get := "GET /counters/alice"
	post := "POST /counters/alice HTTP/1.1\r\nHost: p\r\nConnection: close\r\n"
	rest := " HTTP/1.1\r\nHost: p\r\nConnection: close\r\n"
	fits := len("/counters/alice?")
	for _, c := range []struct {
		name, raw string
		status    int
	}{
		{"a target that fits", get + "?" + strings.Repeat("q", 100-fits) + rest + "\r\n", 200},
		{"a long target", get + "?" + strings.Repeat("q", 101-fits) + rest + "\r\n", 414},
		{"a long target of the registry", "GET /registry/workers?" + strings.Repeat("q", 100) + rest + "\r\n", 414},
		{"six lines", get + rest + strings.Repeat("X: 1\r\n", 5) + "\r\n", 200},
		{"seven lines", get + rest + strings.Repeat("X: 1\r\n", 6) + "\r\n", 431},
		{"a header that fits", get + rest + "X: " + strings.Repeat("x", 480-len("pConnectioncloseX")) + "\r\n\r\n", 200},
		{"a large header", get + rest + "X: " + strings.Repeat("x", 501-len("pConnectioncloseX")) + "\r\n\r\n", 431},
		{"a body that fits", post + "Content-Length: 10\r\n\r\n0123456789", 200},
		{"a long body", post + "Content-Length: 11\r\n\r\n0123456789a", 413},
		{"a long body in chunks", post + "Transfer-Encoding: chunked\r\n\r\n6\r\n012345\r\n5\r\n6789a\r\n0\r\n\r\n", 413},
		{"chunks that fit", post + "Transfer-Encoding: chunked\r\n\r\n6\r\n012345\r\n4\r\n6789\r\n0\r\n\r\n", 200},
	} {
		resp, body := f.ask(c.raw).whole("GET")
		require.Equal(t, c.status, resp.StatusCode, "%s: %s", c.name, body)
		if c.status != http.StatusOK {
			errorOf(t, body)
		}
		resp, _ = f.get("/counters/alice")
		require.Equal(t, http.StatusOK, resp.StatusCode, "after "+c.name)
	}
	for _, h := range w.seen() {
		require.LessOrEqual(t, len(h.target), 100)
	}
}

// waiting opens a request that its worker keeps open until it is closed.
func (f *front) waiting(path string, headers ...string) *client {
	f.t.Helper()
	return f.ask("GET " + path + " HTTP/1.1\r\nHost: p\r\n" + lines(headers) + "\r\n")
}

func TestOpenRequestsAreBound(t *testing.T) {
	t.Parallel()
	from := func(addr string) string { return "X-Forwarded-For: " + addr }
	core, said := observer.New(zap.WarnLevel)
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{Requests: 5, RequestsPerAddress: 3, RequestsPerID: 2}
		s.opts.Logger = zap.New(core)
		s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	w := newFake(t, func(h *hit) {
		if strings.HasSuffix(h.target, "/quick") {
			h.ok("")
			return
		}
		h.gone()
	})
	f.register(w, "a")
	open := func(n int64) {
		require.Eventually(t, func() bool { return f.pb.counters.proxying.Load() == n }, patience, time.Millisecond)
	}
	refused := func(status int, message, path string, headers ...string) {
		resp, body := f.get(path, headers...)
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Contains(t, errorOf(t, body), message)
	}
	served := func(path string, headers ...string) {
		resp, _ := f.get(path+"/quick", headers...)
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	held := []*client{f.waiting("/counters/a", from("192.0.2.1")), f.waiting("/counters/a", from("192.0.2.2"))}
	open(2)
	refused(503, "the instance", "/counters/a/quick", from("192.0.2.3"))
	served("/counters/b", from("192.0.2.3"))
	// One IPv6 site has many addresses.
	for i := range 3 {
		held = append(held, f.waiting("/counters/c"+strconv.Itoa(i), from("2001:db8::"+strconv.Itoa(i+1))))
		open(int64(len(held)))
		if i < 2 {
			served("/counters/b", from("2001:db8::f"))
		}
	}
	refused(429, "your address", "/counters/b/quick", from("2001:db8::f"))
	refused(503, "this node", "/counters/b/quick", from("2001:db8:0:1::f"))
	require.EqualValues(t, 3, f.pb.counters.turnedAway())
	require.Equal(t, 1, said.FilterMessage("requests are turned away").Len(), "once in a while")
	for _, c := range held {
		require.NoError(t, c.Close())
	}
	open(0)
	for range 6 {
		served("/counters/a", from("192.0.2.1"))
	}
	require.Eventually(t, func() bool {
		total, addresses := f.pb.limiter.requests.Use()
		return total == 0 && addresses == 0
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool {
		total, ids := f.pb.limiter.ids.Use()
		return total == 0 && ids == 0
	}, patience, time.Millisecond)
}

// A request that is refused or never identified counts no longer than it takes.
func TestARefusedRequestGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	f := newFront(t, withPassport(anyone{refuse: passport.ErrUnauthenticated}), func(s *setup) { s.opts.Limits = Limits{Requests: 1} })
	for range 3 {
		resp, _ := f.get("/counters/alice")
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		resp, _ = f.get("/counters")
		require.Equal(t, http.StatusBadRequest, resp.StatusCode)
	}
}

func TestWithoutRoomForItsBodyARequestIsSentButOnce(t *testing.T) {
	t.Parallel()
	for room, status := range map[int64]int{4: 200, 3: 503} {
		f := newFront(t, func(s *setup) { s.opts.Limits = Limits{ReplayBytes: room} })
		first := newFake(t, func(h *hit) { h.body(); h.refuse() })
		f.register(first, "first").place("alice")
		second := newFake(t, nil)
		f.register(second, "second")
		resp, _ := f.post("/counters/alice", "body")
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, "body", strings.TrimPrefix(first.bytes(), first.only().head+"\r\n\r\n"))
		resp, _ = f.get("/counters/alice")
		require.Equal(t, http.StatusOK, resp.StatusCode, "the row was freed")
		require.Eventually(t, func() bool { return f.pb.limiter.replay.Load() == 0 }, patience, time.Millisecond)
	}
}

func TestAStallEndsOnlyWhatIsWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Int64
		s := newStall(time.Minute, func() { ended.Add(1) })
		for range 3 {
			s.watch()
			time.Sleep(59 * time.Second)
		}
		s.rest()
		time.Sleep(time.Hour)
		require.Zero(t, ended.Load())
		s.watch()
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, ended.Load(), "once")
		s.watch()
		s.stop()
		s.watch()
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, ended.Load())
		s = newStall(0, func() { ended.Add(1) })
		s.watch()
		s.rest()
		s.stop()
	})
}

func TestNewIDsOfOneAddressAreBound(t *testing.T) {
	t.Parallel()
	from := func(addr string) string { return "X-Forwarded-For: " + addr }
	f := newFront(t, func(s *setup) {
		s.opts.Limits = Limits{PlacementsPerAddress: 2}
		s.opts.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	w := newFake(t, nil)
	owner := f.register(w, "a")
	owner.place("placed")
	mine, other := from("192.0.2.1"), from("192.0.2.2")
	for _, c := range []struct {
		path, from string
		status     int
	}{
		{"/counters/a", mine, 200},
		{"/counters/b", mine, 200},
		{"/counters/c", mine, 429},
		{"/counters/a", mine, 200},
		{"/counters/placed", mine, 200},
		{"/nobodys/c", mine, 404},
		{"/counters/c", other, 200},
		{"/counters/c", mine, 200},
		{"/counters/d", other, 200},
		{"/counters/e", other, 429},
	} {
		resp, body := f.get(c.path, c.from)
		require.Equal(t, c.status, resp.StatusCode, "%s %s: %s", c.path, c.from, body)
		if c.status == http.StatusTooManyRequests {
			require.Contains(t, errorOf(t, body), "your address")
			require.Regexp(t, `^[1-9][0-9]?$`, resp.Header.Get("Retry-After"))
		}
	}
	f.pb.placer.made.mu.Lock()
	f.pb.placer.made.began = time.Now().Add(-placementSpan)
	f.pb.placer.made.mu.Unlock()
	resp, _ := f.get("/counters/e", other)
	require.Equal(t, http.StatusOK, resp.StatusCode, "in the next minute")
}

func TestPlacementsAreCountedForSoManyAddressesOnly(t *testing.T) {
	t.Parallel()
	p := placements{limit: 1}
	site := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	for i := range maxSites {
		_, err := p.take(site(i))
		require.NoError(t, err)
	}
	giveBack, err := p.take(site(maxSites))
	require.NoError(t, err)
	require.False(t, p.may(site(maxSites+1)), "it counts together with the one before")
	_, err = p.take(site(maxSites + 1))
	require.Error(t, err)
	giveBack()
	require.True(t, p.may(site(maxSites+1)))
	_, err = p.take(site(maxSites + 1))
	require.NoError(t, err)
	require.LessOrEqual(t, len(p.of), maxSites+1)
	require.True(t, p.may(netip.Prefix{}))
}

// To the server a client whose body does not come has gone: it has not.
func TestAClientThatIsTooSlowIsNotOneThatHasLeft(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := &exchange{r: (&http.Request{}).WithContext(ctx)}
	require.Equal(t, statusClientGone, asRefusal(e.gone()).status)
	e.slow.Store(true)
	require.Equal(t, http.StatusRequestTimeout, asRefusal(e.gone()).status)
}
