package pinboard

import (
	"bufio"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// requestLine is the request that net/http makes of a request line, or nil if
// it refuses the line itself.
func requestLine(method, raw string) *http.Request {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + raw + " HTTP/1.1\r\nHost: p\r\n\r\n")))
	if err != nil {
		return nil
	}
	return r
}

func TestAnInstanceKeepsNoRequestLine(t *testing.T) {
	t.Parallel()
	target, err := parseTarget(requestLine(http.MethodGet, "/counters/alice/"+strings.Repeat("x", 1000)))
	require.NoError(t, err)
	i, err := target.instance()
	require.NoError(t, err)
	require.Equal(t, instance{"/counters", "alice"}, i)
	require.NotSame(t, unsafe.StringData(target.path), unsafe.StringData(i.namespace))
	require.NotSame(t, unsafe.StringData(target.path[len("/counters/"):]), unsafe.StringData(i.id))
}

func TestATargetIsWhatTheClientSent(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]target{
		"/counters/alice":              {path: "/counters/alice"},
		"/counters/alice?":             {path: "/counters/alice", hasQuery: true},
		"/counters/alice?a=1;b=2&c=%z": {path: "/counters/alice", hasQuery: true, query: "a=1;b=2&c=%z"},
		"/counters/alice?a?b=/../":     {path: "/counters/alice", hasQuery: true, query: "a?b=/../"},
		// C05
		"/counters/alice/a%2Fb/%2F/c%2520d/%E2%82%AC?x=%2F": {path: "/counters/alice/a%2Fb/%2F/c%2520d/%E2%82%AC", hasQuery: true, query: "x=%2F"},
		"/counters//alice//":  {path: "/counters//alice//"},
		"//counters/alice":    {path: "//counters/alice"},
		"/c/a/...":            {path: "/c/a/..."},
		"/c/a/%252e%252e":     {path: "/c/a/%252e%252e"},
		"/c/a/x..y/.z/a.":     {path: "/c/a/x..y/.z/a."},
		"/":                   {path: "/"},
		"http://h/counters/x": {path: "/counters/x"}, // C09
		"http://h:1/c/x?q":    {path: "/c/x", hasQuery: true, query: "q"},
		"http://h":            {path: "/"},
		"http://h?q":          {path: "/", hasQuery: true, query: "q"},
		"HTTPS://h/c/x//y":    {path: "/c/x//y"},
	} {
		r := requestLine("GET", raw)
		require.NotNil(t, r, raw)
		got, err := parseTarget(r)
		require.NoError(t, err, raw)
		require.Equal(t, want, got, raw)
	}
}

func TestATargetThatCouldBeReadInTwoWaysIs400(t *testing.T) {
	t.Parallel()
	refused := 0
	for _, raw := range []string{
		"/c/x#frag", "/c/x?q#frag", "/c/.", "/c/..", "/c/../x", "/./c", "/c/x/%2e", "/c/x/%2E%2e/y", "/c/.%2e/", "/c/x/..?q",
		"/c/a%2F..%2Fb", "/c/a%2f%2e%2e", `/c/x/..\y`, "/c/x/%5C..%5c", "/c/x%2F.", "/%2e%2e/c", "*", "http://h/c/../x",
		"/c/x y", "http:///c/x", "http://?q", "ftp://h/c/x", "ws://h/c/x", "http://u@h/c/x", "http://u:p@h/c/x", "http://@h/c/x",
	} {
		r := requestLine("OPTIONS", raw)
		if r == nil {
			continue // the server has refused it already
		}
		refused++
		_, err := parseTarget(r)
		ref, ok := errors.AsType[*refusal](err)
		require.True(t, ok, raw)
		require.Equal(t, http.StatusBadRequest, ref.status, raw)
	}
	require.Greater(t, refused, 15)
	// In HTTP/2 the path is all that a path says.
	r := requestLine("GET", "http://h/c/x")
	r.ProtoMajor, r.ProtoMinor = 2, 0
	_, err := parseTarget(r)
	require.Error(t, err)
	// CONNECT's target is no path.
	_, err = parseTarget(requestLine("CONNECT", "127.0.0.1:6379"))
	require.Error(t, err)
}

func TestWhatAPrefixHandlerTookOffIsTheBase(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ prefix, raw, base, path string }{
		{"/pins", "/pins/c/x", "/pins", "/c/x"},
		{"/pins", "/pins/c/a%2Fb/%2F", "/pins", "/c/a%2Fb/%2F"},
		{"/pins/", "/pins/c/x", "/pins", "/c/x"},
		{"/pins", "/pins", "/pins", "/"},
		{"/pins", "/pins/", "/pins", "/"},
		{"/a b", "/a%20b/c/x%20y", "/a%20b", "/c/x%20y"},
		{"/p/q", "/p/q/p/q/x", "/p/q", "/p/q/x"},
		{"", "/c/x", "", "/c/x"},
	} {
		ran := false
		handler := http.StripPrefix(c.prefix, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			ran = true
			got, err := parseTarget(r)
			require.NoError(t, err, c.raw)
			require.Equal(t, target{base: c.base, path: c.path, query: "q=%2F", hasQuery: true}, got, c.raw)
			original := got.original(r)
			require.Equal(t, c.base+c.path, original.URL.EscapedPath())
			require.Equal(t, "q=%2F", original.URL.RawQuery)
		}))
		handler.ServeHTTP(httptest.NewRecorder(), requestLine("GET", c.raw+"?q=%2F"))
		require.True(t, ran, c.raw)
	}
}

func TestAPathThatAMiddlewareRewroteIsFollowedAndChecked(t *testing.T) {
	t.Parallel()
	r := requestLine("GET", "/short")
	r.URL.Path, r.URL.RawPath = "/counters/a b", ""
	got, err := parseTarget(r)
	require.NoError(t, err)
	require.Equal(t, target{path: "/counters/a%20b"}, got)
	r.URL.Path = "/counters/../registry"
	_, err = parseTarget(r)
	require.Error(t, err)
}

func TestARequestMadeByHandHasATargetToo(t *testing.T) {
	t.Parallel()
	r := &http.Request{Method: "GET", URL: &url.URL{Path: "/c/x y", RawQuery: "q"}}
	got, err := parseTarget(r)
	require.NoError(t, err)
	require.Equal(t, target{path: "/c/x%20y", hasQuery: true, query: "q"}, got)
}

// C08: an id is matched raw, a namespace decoded once.
func TestAnInstanceIsNamedInOneWay(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 257)
	for path, want := range map[string]instance{
		"/counters/alice":      {"/counters", "alice"},
		"/counters/alice/":     {"/counters", "alice"},
		"/counters/alice/b/c":  {"/counters", "alice"},
		"/%63ounters/A-z_0.9~": {"/counters", "A-z_0.9~"},
		"/%C3%A9/x":            {"/é", "x"},
		"/é/x":                 {"/é", "x"},
		"/a%2525/x":            {"/a%25", "x"},
		"/c/" + long[:256]:     {"/c", long[:256]},
	} {
		got, err := target{path: path}.instance()
		require.NoError(t, err, path)
		require.Equal(t, want, got, path)
	}
	for _, path := range []string{
		"/", "//", "/c", "/c/", "/c//v", "//x", "/c/al%69ce", "/c/a%2Fb", "/c/a%5Cb", "/c/a%00b", "/c/a%3Fb", "/c/a%23b", "/c/a%3Bb",
		"/c/a%20b", "/c/" + long, "/c/%C3%A9", "/c/é", "/c/a;b", "/c/a:b", "/c/a@b", "/c/.", "/c/..", "/c/http:",
		"/a%2Fb/x", "/a%20b/x", "/a%00/x", "/a%0a/x", "/%2e/x", "/%ff/x", "/_pinned/x", "/%5Fpinned/x", "/registry/x", "/%72egistry/x",
		"/healthz/x", "/metrics/x", "/" + strings.Repeat("n", 128) + "/x",
	} {
		_, err := target{path: path}.instance()
		ref, ok := errors.AsType[*refusal](err)
		require.True(t, ok, path)
		require.Equal(t, http.StatusBadRequest, ref.status, path)
	}
}

func TestOnlyWholeSegmentsAreTheRegistrys(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/registry": true, "/registry/": true, "/registry/workers": true, "/registry//": true,
		"/registryx": false, "/Registry": false, "/%72egistry": false, "/registry%2Fworkers": false, "/a/registry": false, "/": false,
	} {
		require.Equal(t, want, isRegistry(path), path)
	}
}

func FuzzTarget(f *testing.F) {
	for _, raw := range []string{"/c/x", "/c/a%2Fb?x=%2F", "/c/%2e%2e", "//c//x", "http://h/c/x", "*", "/c/x#f", "/p/c/x", "/%70/c", "/p%2Fc/x", "/é/x?;"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := requestLine("GET", raw)
		if r == nil {
			return
		}
		check := func(r *http.Request, base string) {
			// Of "/p" nothing is left below the base but a slash.
			got, err := parseTarget(r)
			if err != nil {
				return
			}
			require.True(t, strings.HasPrefix(got.path, "/"))
			line := got.base + got.path
			if got.hasQuery {
				line += "?" + got.query
			}
			if strings.HasPrefix(r.RequestURI, "/") && line != strings.Replace(r.RequestURI, base, base+"/", 1) {
				require.Equal(t, r.RequestURI, line, "byte for byte")
			}
			decoded, err := url.PathUnescape(got.path)
			require.NoError(t, err)
			require.NotContains(t, strings.Split(strings.ReplaceAll(decoded, `\`, "/"), "/"), "..")
			in, err := got.instance()
			if err != nil {
				return
			}
			require.NoError(t, wire.CheckNamespace(in.namespace))
			require.NoError(t, wire.CheckID(in.id))
			require.Contains(t, got.path, "/"+in.id, "the id is raw")
		}
		check(r, "")
		rec := httptest.NewRecorder()
		http.StripPrefix("/p", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { check(r, "/p") })).ServeHTTP(rec, r)
	})
}
