package passport

import (
	"bufio"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A credential is found where other readers find it too, and only if there is
// one: two of a name, or two lines, are none.
func FuzzTokenSources(f *testing.F) {
	for _, seed := range []string{
		"Cookie: session=a", "Cookie: session=a; session=b", "Cookie: x=1;session=\"a\"; \t session =b", "Cookie: session=a\nCookie: session=b", "Cookie: session", "Cookie: session= a",
		"Authorization: Bearer x", "Authorization: bEaReR  x ", "Authorization: Bearer", "Authorization: Bearer x\nAuthorization: Bearer y", "Authorization: Basic x",
	} {
		f.Add(seed, "access_token=a")
	}
	f.Add("", "access_token=a&%61ccess_token=b")
	f.Add("", "access_token=%zz&a;access_token=b")
	f.Fuzz(func(t *testing.T, lines, query string) {
		text := "GET / HTTP/1.1\r\nHost: p\r\n" + strings.ReplaceAll(lines, "\n", "\r\n") + "\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return
		}
		r.URL = &url.URL{Path: "/", RawQuery: query}
		if token, ok := bearer(r.Header); ok {
			require.Len(t, r.Header["Authorization"], 1)
			require.Equal(t, token, strings.Trim(token, " "))
			require.True(t, strings.HasSuffix(strings.TrimRight(r.Header.Get("Authorization"), " "), token))
		}
		token, ok := source{fromCookie, "session"}.token(r)
		require.Equal(t, ok, token != "")
		named := r.CookiesNamed("session") // leaves out what it can't read
		if len(named) > 1 {
			require.False(t, ok)
		}
		if ok && len(named) == 1 {
			// Blanks around a value are no part of it; net/http keeps them.
			require.Equal(t, strings.Trim(named[0].Value, "\" \t"), strings.Trim(token, "\" \t"))
		}
		token, ok = source{fromQuery, "access_token"}.token(r)
		values, err := url.ParseQuery(query)
		if found := values["access_token"]; err == nil && (len(found) != 1 || found[0] == "") {
			require.False(t, ok)
		} else if err == nil {
			require.Equal(t, found[0], token)
		}
	})
}
