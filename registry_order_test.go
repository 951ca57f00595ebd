package pinboard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/passport"
)

var registryCalls = []struct{ method, path, scope string }{
	{"POST", "/registry/register", passport.ScopeWorker},
	{"POST", "/registry/heartbeat", passport.ScopeWorker},
	{"POST", "/registry/release", passport.ScopeWorker},
	{"POST", "/registry/deregister", passport.ScopeWorker},
	{"GET", "/registry/workers", passport.ScopeOperator},
	{"GET", "/registry/health", passport.ScopeOperator},
	{"GET", "/registry/placements", passport.ScopeOperator},
	{"POST", "/registry/drain", passport.ScopeOperator},
	{"POST", "/registry/undrain", passport.ScopeOperator},
	{"POST", "/registry/wind_down", passport.ScopeOperator},
}

func TestEveryRegistryCallNeedsACredentialWithItsScope(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	for _, c := range registryCalls {
		other, has := tokenOperator, tokenWorker
		if c.scope == passport.ScopeOperator {
			other, has = has, other
		}
		n.call(c.method, c.path, "", "{}").requireRefusal(t, http.StatusUnauthorized, "token")
		n.call(c.method, c.path, tokenUnknown, "{}").requireRefusal(t, http.StatusUnauthorized, "token")
		n.call(c.method, c.path, tokenNobody, "{}").requireRefusal(t, http.StatusForbidden, c.scope)
		n.call(c.method, c.path, other, "{}").requireRefusal(t, http.StatusForbidden, c.scope)
		a := n.call(c.method, c.path, has, "{}")
		require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, a.status, c.path)
		require.Equal(t, "no-store", a.header.Get("Cache-Control"), c.path)
	}
	require.Zero(t, n.dials.Load())
}

func TestUnknownRegistryPathsAre404(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	for _, path := range []string{"/registry", "/registry/", "/registry/register/", "/registry//register", "/registry/Workers", "/registry/%77orkers"} {
		for _, method := range []string{"GET", "POST", "OPTIONS"} {
			n.call(method, path, tokenWorker, nil).requireRefusal(t, http.StatusNotFound, "path")
		}
	}
}

func TestWrongRegistryMethodsAre405AndNameTheRightOne(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	for _, c := range registryCalls {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS", "BREW"} {
			if method == c.method {
				continue
			}
			a := n.call(method, c.path, tokenWorker, nil)
			a.requireRefusal(t, http.StatusMethodNotAllowed, c.method)
			require.Contains(t, a.header.Get("Allow"), c.method)
		}
	}
	require.Equal(t, http.StatusOK, n.call("HEAD", "/registry/workers", tokenOperator, nil).status)
}

func TestTheRegistryIsFoundBelowABasePath(t *testing.T) {
	t.Parallel()
	n := newRegNode(t, Options{}, nil)
	mux := http.NewServeMux()
	mux.Handle("/pins/", http.StripPrefix("/pins", n.pb))
	for path, status := range map[string]int{"/pins/registry/workers": 200, "/pins/healthz": 200, "/pins/registry/nothing": 404, "/registry/workers": 404} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+tokenOperator)
		rec := httptest.NewRecorder()
		mux.ServeHTTP(rec, r)
		require.Equal(t, status, rec.Code, path)
	}
}

// passportFunc identifies callers as a function says.
type passportFunc func(context.Context, *http.Request) (*passport.Identity, error)

func (f passportFunc) Identify(ctx context.Context, r *http.Request) (*passport.Identity, error) {
	return f(ctx, r)
}
func (passportFunc) Admit(context.Context, string, *passport.Identity) error { return nil }

func TestACredentialThatCannotBeCheckedIs503(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failing := passportFunc(func(context.Context, *http.Request) (*passport.Identity, error) {
			return nil, errors.New("the key server is away")
		})
		n := newRegNode(t, Options{Passport: failing}, nil)
		n.post("/registry/register", tokenWorker, "{}").requireRefusal(t, http.StatusServiceUnavailable, "credential")
		require.Contains(t, n.said.String(), "the key server is away")

		hanging := passportFunc(func(ctx context.Context, _ *http.Request) (*passport.Identity, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		n = newRegNode(t, Options{Passport: hanging}, nil)
		began := time.Now()
		n.post("/registry/register", tokenWorker, "{}").requireRefusal(t, http.StatusServiceUnavailable, "credential")
		require.Less(t, time.Since(began), 5*time.Second) // virtual time
	})
}

// send writes a request by hand and reads the answer's head.
func (n *regNode) send(text string) (conn net.Conn, res *http.Response) {
	n.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(n.t.Context(), "tcp", strings.TrimPrefix(n.url, "http://"))
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(n.t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(n.t, err)
	res, err = http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(n.t, err)
	n.t.Cleanup(func() { _ = res.Body.Close() })
	return conn, res
}

func TestNothingOfTheBodyIsReadBeforeTheCredentialIsGood(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	head := func(path, token, more string) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %s\r\n%s\r\n", path, token, more)
	}
	// The body never comes, and yet there is an answer.
	for _, length := range []string{"Content-Length: 100\r\n", "Content-Length: 30000000\r\n", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\nContent-Length: 100\r\n"} {
		_, res := n.send(head("/registry/register", tokenUnknown, length))
		require.Equal(t, http.StatusUnauthorized, res.StatusCode, length)
		_, res = n.send(head("/registry/register", tokenOperator, length))
		require.Equal(t, http.StatusForbidden, res.StatusCode, length)
		_, res = n.send(head("/registry/nothing", tokenWorker, length))
		require.Equal(t, http.StatusNotFound, res.StatusCode, length)
	}
	_, res := n.send(head("/registry/heartbeat", tokenWorker, "Content-Length: 33554433\r\n"))
	require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
	// With a good credential, the body is asked for.
	_, res = n.send(head("/registry/register", tokenWorker, "Expect: 100-continue\r\nContent-Length: 100\r\n"))
	require.Equal(t, http.StatusContinue, res.StatusCode)
}

func TestAConnectionServesOnAfterARefusalOfAReadBody(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	text := fmt.Sprintf("POST /registry/heartbeat HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}", tokenWorker)
	conn, res := n.send(text)
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.False(t, res.Close)
	_, err := io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	res, err = http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
}

func TestABodyLargerThanItsLimitIs413(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	n.post("/registry/drain", tokenOperator, strings.Repeat(" ", 64<<10)+"{}").requireRefusal(t, http.StatusRequestEntityTooLarge, "too large")
	n.post("/registry/drain", tokenOperator, "{}"+strings.Repeat(" ", 64<<10-2)).requireRefusal(t, http.StatusBadRequest, "clientId")
	// Of unknown length.
	r, err := http.NewRequestWithContext(t.Context(), "POST", n.url+"/registry/release", io.LimitReader(spaces{}, 32<<20+1))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+tokenWorker)
	res, err := n.do(r)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
	require.Equal(t, "no-store", res.Header.Get("Cache-Control"))
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestARegistrationIsCheckedInTheProtocolsOrder gives each request everything
// that is wrong from some step on: the answer is the first step's.
func TestARegistrationIsCheckedInTheProtocolsOrder(t *testing.T) {
	t.Parallel()
	n := serveRegNode(t, Options{})
	incumbent := n.worker()
	incumbent.register()
	n.dials.Store(0)
	w := n.worker()
	w.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTeapot) })
	wrong := func(changes ...fields) fields { return w.registration(changes...) }
	outside := fields{"namespaces": []string{"/b"}}
	other := fields{"clientId": incumbent.client}
	for _, step := range []struct {
		name, token string
		body        any
		status      int
		has         string
		dials       int64
	}{
		{"credential", tokenUnknown, spacesAbove(32 << 20), 401, "token", 0},
		{"scope", tokenOperator, spacesAbove(32 << 20), 403, "scope", 0},
		{"size", tokenSome, spacesAbove(32 << 20), 413, "large", 0},
		{"JSON", tokenSome, "{", 400, "JSON", 0},
		{"fields", tokenSome, wrong(outside, other, fields{"headroom": -1}), 400, "headroom", 0},
		{"advertise URL", tokenSome, wrong(outside, other, fields{"advertiseUrl": "ftp://x"}), 400, "advertiseUrl", 0},
		{"claims", tokenSome, wrong(outside, other), 403, "/b", 0},
		{"conflicts", tokenSome, wrong(other), 409, "another secret", 0},
		{"probe", tokenSome, wrong(), 503, "status 418", 1},
	} {
		before := n.dials.Load()
		n.post("/registry/register", step.token, step.body).requireRefusal(t, step.status, step.has)
		require.Equal(t, step.dials, n.dials.Load()-before, step.name)
	}
}

// spacesAbove is a body of more than so many bytes.
func spacesAbove(limit int) string { return strings.Repeat(" ", limit+1) }
