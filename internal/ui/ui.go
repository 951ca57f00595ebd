// Package ui is the operators' page: plain HTML, CSS and JavaScript, embedded in
// the program. There is no data in it, and so it needs no credential: it asks
// for a token and then calls what every operator may call (protocol §4).
package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// Path is where the page is, below pinboard's own path; its files lie below it.
const Path = "/registry/ui"

// policy lets the page load its own files and talk to where it came from, and
// nothing else: text that got into it as markup could neither run, load nor send
// anything. With Trusted Types, browsers refuse to make markup of text at all.
var policy = strings.Join([]string{
	"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
	"form-action 'none'", "frame-ancestors 'none'", "base-uri 'none'",
	"require-trusted-types-for 'script'", "trusted-types 'none'",
}, "; ")

//go:embed static/*.html static/*.css static/*.js static/*.svg
var static embed.FS

var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// Asset answers GET and HEAD for one of the page's URLs, also those with a
// condition. The caller refuses other methods. It is safe for concurrent use.
type Asset struct {
	name, etag string
	content    []byte
	// redirect is where the asset really is, relative to its URL.
	redirect string
}

var assets = load()

// Find returns what is at a raw path below pinboard's own, nil if there is
// nothing.
func Find(path string) *Asset {
	if !strings.HasPrefix(path, Path) {
		return nil
	}
	return assets[path]
}

func load() map[string]*Asset {
	files, err := fs.ReadDir(static, "static")
	if err != nil {
		panic(err) // it is in the program
	}
	// The page's own URLs are relative: right at Path, wrong below Path + "/".
	found := map[string]*Asset{Path + "/": {redirect: "../ui"}}
	for _, file := range files {
		content, err := static.ReadFile("static/" + file.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		at := Path + "/" + file.Name()
		if file.Name() == "index.html" {
			at = Path
		}
		found[at] = &Asset{name: file.Name(), content: content, etag: `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`}
	}
	return found
}

// ServeHTTP answers with the asset. Browsers keep it, and ask each time whether
// it is still the same: another node may be of another version.
func (a *Asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	if a.redirect != "" {
		h.Set("Location", a.redirect)
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	h.Set("Content-Type", types[path.Ext(a.name)])
	h.Set("Etag", a.etag)
	http.ServeContent(w, r, a.name, time.Time{}, bytes.NewReader(a.content))
}
