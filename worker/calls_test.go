package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

func TestACallToWhatLivesHereStaysInTheProcess(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		c.epoch = 7
		a := c.open("a")
		c.open("b")
		for _, base := range []string{"", ClusterURL, "http://Pinned.Cluster"} {
			res, err := a.Client().Get(base + "/c/b/%2Fx;y?q=%zz&r")
			require.Equal(t, `GET pinboard:8080 /%2Fx;y?q=%zz&r "" by /c/a at 1`, read(t, res, err))
		}
		req, err := http.NewRequest(http.MethodPut, "/c/a", strings.NewReader("hello"))
		require.NoError(t, err)
		req.Header = http.Header{
			"pinboard-attestation": {"forged"}, "PINNED_REFUSAL": {"forged"}, "Pinboard-From": {"/c/evil"},
			"Pinboard-Epoch": {"3"}, "X-Forwarded-For": {"1.2.3.4"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"h"},
		}
		res, err := a.Client().Do(req)
		require.Equal(t, `PUT pinboard:8080 / "hello" by /c/a at 1`, read(t, res, err), "an instance can call itself")
		require.Same(t, req, res.Request, "and not the one with pinboard's headers")
		require.Empty(t, c.seen())
	})
}

func TestWhatIsNotTheWorkersBasePathIsNotTakenForIt(t *testing.T) {
	t.Parallel()
	inBubble(t, Options{AdvertiseURL: "http://worker:8000/c"}, hosting(serving(whoCalls)), func(t *testing.T, h *harness) {
		h.start()
		require.Equal(t, http.StatusOK, h.get("/c/c/a/x").Code)
		h.w.dir.mu.Lock()
		a := h.w.dir.instances[key{"/c", "a"}]
		h.w.dir.mu.Unlock()
		res, err := a.Client().Get("/c/a/x")
		require.Contains(t, read(t, res, err), " /x ")
	})
}

func TestACallToWhatLivesElsewhereGoesThroughPinboard(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		req, err := http.NewRequest(http.MethodPost, "/c/else/%2Fx;y?q=%zz&r", strings.NewReader("hello"))
		require.NoError(t, err)
		req.Header = http.Header{
			"pinboard-session": {"forged"}, "PINBOARD_FROM": {"/c/evil"}, "Pinboard-Attestation": {"forged"}, "X-Own": {"kept"},
		}
		res, err := a.Client().Do(req)
		require.Equal(t, "elsewhere", read(t, res, err))
		require.Same(t, req, res.Request, "and not the one with the secret")
		require.Len(t, c.seen(), 1)
		got := c.seen()[0]
		require.Equal(t, "/c/else/%2Fx;y?q=%zz&r", got.RequestURI)
		require.Equal(t, "pinboard:8080", got.Host)
		require.Equal(t, []string{"hello"}, c.bodies)
		require.EqualValues(t, 5, got.ContentLength)
		require.Equal(t, http.Header{
			wire.HeaderFrom: {"/c/a"}, wire.HeaderSession: {"session-1"}, wire.HeaderDepth: {"1"},
			wire.HeaderSessionSecret: {c.w.reg.secret.Reveal()},
			"X-Own":                  {"kept"}, "Content-Length": {"5"}, "User-Agent": {"Go-http-client/1.1"},
		}, got.Header, "and no credential")
	})
}

func TestACallIsMadeBelowPinboardsBasePathUnderTheWorkersHostname(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		base, err := url.Parse("http://pinboard:8080/base%20path")
		require.NoError(t, err)
		c.w.dir.calls.base, c.w.dir.calls.hostname = base, "rooms.example.com"
		res, err := a.Client().Get("/c/else/a%2Fb?")
		require.Equal(t, "elsewhere", read(t, res, err))
		require.Equal(t, "/base%20path/c/else/a%2Fb?", c.seen()[0].RequestURI)
		require.Equal(t, "rooms.example.com", c.seen()[0].Host)
		res, err = a.Client().Get("/c/a")
		require.Contains(t, read(t, res, err), " rooms.example.com ", "the same for a call in process")
	})
}

func TestACallElsewhereThanToAnInstanceIsRefused(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		for _, target := range []string{
			"http://example.com/c/a", "https://pinned.cluster/c/a", "http://pinned.cluster:80/c/a", "ftp:///c/a",
			"http://pinned.cluster", "http:c/a", "c/a", "//example.com/c/a",
		} {
			body := &closedBody{Reader: strings.NewReader("x")}
			req, err := http.NewRequest(http.MethodPost, target, body)
			require.NoError(t, err)
			_, err = a.Client().Do(req)
			require.ErrorContains(t, err, "worker: call: the ", target)
			require.True(t, body.closed, target)
		}
		req, err := http.NewRequest(http.MethodPost, "/c/a", http.NoBody)
		require.NoError(t, err)
		req.Trailer = http.Header{"Pinned_X": nil}
		_, err = a.Client().Do(req)
		require.ErrorContains(t, err, "trailer")
		require.Empty(t, c.seen())
	})
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	away := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://pinboard:8080/c/other", http.StatusTemporaryRedirect)
	}
	first := true
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if !first {
			away(w, r)
		}
		first = false
	}, away, func(t *testing.T, c *cluster) {
		a := c.open("a")
		for _, path := range []string{"/c/a", "/c/else"} {
			res, err := a.Client().Get(path)
			read(t, res, err)
			require.Equal(t, http.StatusTemporaryRedirect, res.StatusCode)
		}
		require.Len(t, c.seen(), 1)
		follower := a.Client()
		follower.CheckRedirect = nil
		_, err := follower.Get("/c/else")
		require.ErrorContains(t, err, "the URL must start with", "nor to another host if one insists")
		require.Len(t, c.seen(), 2)
	})
}

func TestCallsInACircleEndAtDepth50(t *testing.T) {
	t.Parallel()
	var depths []int
	var failure error
	inCluster(t, func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			return
		}
		if caller, ok := CallerFrom(r.Context()); ok {
			depths = append(depths, caller.Instance.Depth)
		}
		next := map[string]string{"a": "b", "b": "a"}[inst.ID()]
		req, _ := http.NewRequestWithContext(r.Context(), http.MethodGet, "/c/"+next+"/deeper", nil)
		res, err := inst.Client().Do(req)
		if err != nil {
			failure = err
			return
		}
		_ = res.Body.Close()
	}, nil, func(t *testing.T, c *cluster) {
		c.open("a")
		c.open("b")
		c.get("/c/a/deeper")
		require.ErrorIs(t, failure, ErrDepth)
		require.Len(t, depths, 50)
		for i, depth := range depths {
			require.Equal(t, i+1, depth)
		}
		require.Empty(t, c.seen())
	})
}

func TestTheDepthIsThatOfTheContext(t *testing.T) {
	t.Parallel()
	inCluster(t, func(inst *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			return
		}
		for _, ctx := range []context.Context{r.Context(), inst.Context()} {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "/c/else", nil)
			res, err := inst.Client().Do(req)
			if err == nil {
				_ = res.Body.Close()
			}
		}
	}, nil, func(t *testing.T, c *cluster) {
		c.open("a")
		call := func(claims attest.Claims) {
			r := httptest.NewRequest(http.MethodGet, "/c/a/go", nil)
			r.Header.Set(wire.HeaderAttestation, c.mint(claims))
			r.Header.Set(wire.HeaderEpoch, strconv.FormatInt(c.epoch, 10))
			require.Equal(t, http.StatusOK, c.do(r).Code)
		}
		call(attest.Claims{Caller: "/d/x", Depth: 49})
		call(attest.Claims{Account: &attest.Account{Subject: "ada"}})
		var depths []string
		for _, r := range c.seen() {
			require.Equal(t, "/c/a", r.Header.Get(wire.HeaderFrom), "not whom the first request came from")
			depths = append(depths, r.Header.Get(wire.HeaderDepth))
		}
		require.Equal(t, []string{"50", "1", "1", "1"}, depths)
	})
}

func TestACallWaitsForASessionButNotForLong(t *testing.T) {
	t.Parallel()
	inCluster(t, whoCalls, nil, func(t *testing.T, c *cluster) {
		a := c.open("a")
		c.open("b")
		forgetful := func(back time.Duration) {
			c.pb.on(func(call call) (reply, bool) {
				switch call.path {
				case wire.PathHeartbeat:
					return reply{status: 409, body: object{"reregister": true}}, true
				case wire.PathRegister:
					out := c.pb.agree(call)
					out.delay = back
					return out, true
				}
				return reply{}, false
			})
			for c.w.reg.sessionID() != "" {
				c.after(time.Millisecond)
			}
		}
		forgetful(4 * time.Second)
		res, err := a.Client().Get("/c/b")
		require.Contains(t, read(t, res, err), "by /c/a", "what lives here needs no session")
		began := c.since()
		_, err = a.Client().Get("/c/else")
		require.ErrorIs(t, err, ErrNotRegistered)
		require.Equal(t, time.Second, c.since()-began)
		require.Empty(t, c.seen())
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/c/else", nil)
		require.NoError(t, err)
		_, err = a.Client().Do(req)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		c.pb.on(nil)
		c.after(10 * time.Second)
		forgetful(500 * time.Millisecond)
		res, err = a.Client().Get("/c/else")
		require.Equal(t, "elsewhere", read(t, res, err))
		require.Equal(t, "session-3", c.seen()[0].Header.Get(wire.HeaderSession))
	})
}

// The session's secret goes to pinboard itself, whatever HTTP_PROXY says.
func TestCallsAreMadeDirectly(t *testing.T) {
	t.Parallel()
	w, err := New(Options{PinboardURL: "http://pinboard:8080", Token: "t", AdvertiseURL: "http://worker:8000"})
	require.NoError(t, err)
	require.Same(t, w.dir.calls.owned, w.dir.calls.remote)
	require.Nil(t, w.dir.calls.owned.Proxy)
	require.Nil(t, w.dir.calls.loopback.transport.Proxy)
	require.NotSame(t, w.reg.client.owned, w.dir.calls.owned, "a heartbeat waits for no call")
	require.NoError(t, w.Shutdown(t.Context()))
}

func TestNoSecretOfACallIsShownToTheApplication(t *testing.T) {
	t.Parallel()
	hinted := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Pinned-Hint", "x")
		w.Header().Set("Link", "</style>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "Pinboard-Sum, Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Pinboard-Sum", "1")
		w.Header().Set("Sum", "2")
		w.Header().Set(http.TrailerPrefix+"Pinned_Other", "3")
	}
	inCluster(t, func(_ *Instance, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			hinted(w, r)
		}
	}, hinted, func(t *testing.T, c *cluster) {
		a := c.open("a")
		for _, path := range []string{"/c/a/hints", "/c/else"} {
			var wrote []string
			var hints []textproto.MIMEHeader
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				WroteHeaderField: func(name string, _ []string) { wrote = append(wrote, name) },
				Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
					hints = append(hints, header)
					return nil
				},
			})
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
			require.NoError(t, err)
			res, err := a.Client().Do(req)
			require.NoError(t, err)
			require.NotContains(t, res.Trailer, "Pinboard-Sum")
			require.Equal(t, "body", read(t, res, err))
			require.Equal(t, []string{"Host", "User-Agent"}, wrote)
			require.Equal(t, []textproto.MIMEHeader{{"Link": {"</style>"}}}, hints)
			require.NotContains(t, res.Header, "Pinned-Hint")
			require.Equal(t, http.Header{"Sum": {"2"}}, res.Trailer)
		}
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("not waited for"))
	return ctx
}
