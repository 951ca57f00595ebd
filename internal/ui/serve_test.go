package ui_test

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fetch makes a request without a credential, and follows no redirect.
func (s *site) fetch(method, path string, headers ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, nil)
	require.NoError(s.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	res, err := s.server.Client().Transport.RoundTrip(r)
	require.NoError(s.t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, res.Body.Close())
	return res, string(body)
}

// sources are the files of the page, by their paths below pinboard's own.
func sources(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS("static"), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile("static/" + path)
		at := "/registry/ui/" + path
		if path == "index.html" {
			at = "/registry/ui"
		}
		found[at] = string(text)
		return err
	}))
	require.Greater(t, len(found), 5)
	return found
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func TestEveryFileOfThePageIsServedToAnybodyWithItsHeaders(t *testing.T) {
	t.Parallel()
	types := map[string]string{"ui": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
	for _, base := range []string{"", "/pins"} {
		s := newSite(t, siteOptions{base: base})
		for path, source := range sources(t) {
			res, body := s.fetch(http.MethodGet, path)
			require.Equal(t, http.StatusOK, res.StatusCode, path)
			require.Equal(t, source, body, path)
			h := res.Header
			require.Equal(t, policy, h.Get("Content-Security-Policy"))
			require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
			require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
			require.Equal(t, "same-origin", h.Get("Cross-Origin-Opener-Policy"))
			require.Equal(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"))
			require.Equal(t, "no-cache", h.Get("Cache-Control"), "to be asked for, not to be forgotten")
			require.Equal(t, types[path[strings.LastIndexAny(path, "./")+1:]], h.Get("Content-Type"), path)
			require.Empty(t, h.Get("Set-Cookie"))

			head, none := s.fetch(http.MethodHead, path)
			require.Equal(t, http.StatusOK, head.StatusCode)
			require.Empty(t, none)
			require.Equal(t, res.ContentLength, head.ContentLength)
			require.Equal(t, h.Get("Etag"), head.Header.Get("Etag"))
		}
	}
}

func TestABrowserThatHasAFileOfThePageGetsItOnceOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	tags := map[string]bool{}
	for path := range sources(t) {
		res, _ := s.fetch(http.MethodGet, path)
		tag := res.Header.Get("Etag")
		require.Regexp(t, `^"[\w-]{20,}"$`, tag)
		require.False(t, tags[tag], "two files have one tag")
		tags[tag] = true
		same, body := s.fetch(http.MethodGet, path, "If-None-Match: "+tag)
		require.Equal(t, http.StatusNotModified, same.StatusCode)
		require.Empty(t, body)
		require.Equal(t, policy, same.Header.Get("Content-Security-Policy"))
		other, _ := s.fetch(http.MethodGet, path, `If-None-Match: "of-another-version"`)
		require.Equal(t, http.StatusOK, other.StatusCode)
	}
}

func TestThePageIsReadAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	for _, path := range []string{"/registry/ui", "/registry/ui/", "/registry/ui/app.js"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "x-mine"} {
			res, body := s.fetch(method, path)
			require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, "%s %s", method, path)
			require.Equal(t, "GET, HEAD", res.Header.Get("Allow"))
			require.JSONEq(t, `{"error": "the method must be GET, HEAD"}`, body)
		}
	}
}

func TestWhatIsNoFileOfThePageIsAnUnknownPath(t *testing.T) {
	t.Parallel()
	s := newSite(t, siteOptions{})
	for _, path := range []string{
		"/registry/uix", "/registry/ui/index.html", "/registry/ui/app", "/registry/ui/app.js/",
		"/registry/ui/ui.go", "/registry/ui/static/app.js", "/registry/ui/app%2Ejs", "/registry/ui/%2e%2e/overview", "/registry/UI",
	} {
		res, body := s.fetch(http.MethodGet, path)
		require.Contains(t, []int{http.StatusNotFound, http.StatusBadRequest}, res.StatusCode, path)
		require.Contains(t, body, `"error"`)
		require.Empty(t, res.Header.Get("Etag"))
	}
	res, _ := s.fetch(http.MethodGet, "/registry/overview")
	require.Equal(t, http.StatusUnauthorized, res.StatusCode, "the data is not for anybody")
}

// The page's own URLs are relative, so that it works below any base path; one more
// slash, and they would name other things.
func TestThePageWithASlashIsRedirectedToTheOneWithoutBelowAnyBase(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "/pins", "/a/b"} {
		s := newSite(t, siteOptions{base: base})
		res, _ := s.fetch(http.MethodGet, "/registry/ui/")
		require.Equal(t, http.StatusPermanentRedirect, res.StatusCode)
		to, err := res.Location()
		require.NoError(t, err)
		require.Equal(t, s.url+"/registry/ui", to.String())
	}
}

// What the policy would forbid is not there in the first place, in browsers that
// know no policy either.
func TestThePageHasNoScriptInItsMarkupAndMakesNoMarkupOfText(t *testing.T) {
	t.Parallel()
	for path, source := range sources(t) {
		switch {
		case path == "/registry/ui":
			require.NotRegexp(t, `(?i)<style|\sstyle=|\son[a-z]+=|javascript:|<base|<iframe|<form[^>]*\s(action|method)=`, source)
			require.Len(t, regexp.MustCompile(`<script`).FindAllString(source, -1), 1)
			require.Contains(t, source, `<script type="module" src="ui/app.js"></script>`)
			require.NotRegexp(t, `(src|href)="(/|[a-z]+:)`, source, "URLs are relative")
		case strings.HasSuffix(path, ".js"):
			require.NotRegexp(t, `innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|DOMParser|createContextualFragment|\beval\b|new Function|localStorage|document\.cookie`, source, path)
			require.NotRegexp(t, `["'\x60](https?:)?//`, strings.ReplaceAll(source, `"http://www.w3.org/2000/svg"`, ""), path)
		case strings.HasSuffix(path, ".css"):
			require.NotRegexp(t, `url\(|@import|@font-face`, source, path)
		}
	}
}
