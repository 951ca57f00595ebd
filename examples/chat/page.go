package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"regexp"
	"strings"
)

//go:embed page.html
var page []byte

// policy lets the page run its own script and style, named by their digests,
// and talk to where it came from. Even text that got into it as markup could
// neither run nor load anything.
var policy = strings.Join([]string{
	"default-src 'none'",
	"script-src " + digestOf("script"),
	"style-src " + digestOf("style"),
	"connect-src 'self'",
	"img-src data:", // its icon
	"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
}, "; ")

// digestOf returns the digest of the page's one element of that name.
func digestOf(element string) string {
	text := regexp.MustCompile(`(?s)<` + element + `>(.*)</` + element + `>`).FindSubmatch(page)
	sum := sha256.Sum256(text[1])
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (r *room) servePage(w http.ResponseWriter, req *http.Request) {
	// An instance is asked for "/" both by /chat/lobby/ and by /chat/lobby;
	// the request line tells which. The page's own relative URLs are right
	// below the first only. The redirect is relative as well, so that it is
	// right below any base path.
	path, query, asked := strings.Cut(req.RequestURI, "?")
	if !strings.HasSuffix(path, "/") {
		to := r.in.ID() + "/"
		if asked {
			to += "?" + query
		}
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(page)
}
