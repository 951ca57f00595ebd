package pinboard

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// target is what a request asks for, byte for byte as the client sent it, below
// the path that pinboard is mounted at.
type target struct {
	// base is the raw path above the mount, "" at the root.
	base string
	// path is raw and starts with a slash.
	path string
	// query is raw; hasQuery tells "/x?" from "/x".
	query    string
	hasQuery bool
}

// instance is the (namespace, id) that a data-plane path names.
type instance struct{ namespace, id string }

func (i instance) String() string { return i.namespace + "/" + i.id }

// parseTarget reads the request line instead of r.URL, because net/url
// normalises escapes and a worker must see what the client sent (protocol §5).
// What http.StripPrefix took off r.URL.Path is the base.
func parseTarget(r *http.Request) (target, error) {
	raw := r.RequestURI
	if raw == "" { // a request made by hand, in a test or by another handler
		raw = r.URL.RequestURI()
	}
	if strings.Contains(raw, "#") {
		return target{}, refuse(http.StatusBadRequest, "a request target has no fragment")
	}
	if strings.Contains(raw, " ") { // HTTP/2 lets it through; a worker's request line would break
		return target{}, refuse(http.StatusBadRequest, "a request target has no white space")
	}
	if !strings.HasPrefix(raw, "/") && r.ProtoMajor == 1 { // HTTP/2 has an :authority for that
		raw = withoutAuthority(raw)
	}
	if !strings.HasPrefix(raw, "/") {
		return target{}, refuse(http.StatusBadRequest, "a request target is a path")
	}
	var t target
	t.path, t.query, t.hasQuery = strings.Cut(raw, "?")
	decoded, err := url.PathUnescape(t.path)
	if err != nil {
		return target{}, refuse(http.StatusBadRequest, "the path has a malformed escape")
	}
	if base, ok := strings.CutSuffix(decoded, r.URL.Path); ok && base != "" {
		cut := rawLength(t.path, len(base))
		t.base, t.path = t.path[:cut], t.path[cut:]
	} else if !ok { // a middleware rewrote the path: follow it
		t.path, decoded = r.URL.EscapedPath(), r.URL.Path
	}
	// Below a base without a final slash, as of "/p..", a segment begins anew.
	if hasDotSegment(decoded) || hasDotSegment(r.URL.Path) {
		return target{}, refuse(http.StatusBadRequest, "the path has a '.' or '..' segment")
	}
	if !strings.HasPrefix(t.path, "/") {
		t.base, t.path = strings.TrimSuffix(t.base, "/"), "/"+t.path
	}
	return t, nil
}

// withoutAuthority turns the absolute form "http://host/path" into "/path". What is
// another scheme's, or names no host or a user (RFC 9110, sections 4.2.1 and 4.2.4),
// it leaves as it is.
func withoutAuthority(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return raw
	}
	host, path := rest, ""
	if at := strings.IndexAny(rest, "/?"); at >= 0 {
		host, path = rest[:at], rest[at:]
	}
	if host == "" || strings.Contains(host, "@") {
		return raw
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}

// rawLength returns how many bytes of the escaped text make n decoded bytes.
func rawLength(escaped string, n int) int {
	i := 0
	for ; n > 0; n-- {
		if escaped[i] == '%' {
			i += 2
		}
		i++
	}
	return i
}

// hasDotSegment looks at the decoded path, also behind slashes that were
// escaped and behind backslashes, because a worker may fold them.
func hasDotSegment(decoded string) bool {
	if strings.IndexByte(decoded, '.') < 0 {
		return false
	}
	for segment := range strings.FieldsFuncSeq(decoded, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// instance reads the namespace, decoded once, and the id, which must match raw
// (protocol §1).
func (t target) instance() (instance, error) {
	segment, rest, _ := strings.Cut(t.path[1:], "/")
	id, _, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(segment)
	if err != nil {
		return instance{}, refuse(http.StatusBadRequest, "the path has a malformed escape")
	}
	// Both are remembered, and so are a text of their own, not part of the request's,
	// which may be a thousand times as long.
	both := "/" + name + id
	i := instance{namespace: both[:1+len(name)], id: both[1+len(name):]}
	if err := wire.CheckNamespace(i.namespace); err != nil {
		return instance{}, refuse(http.StatusBadRequest, "invalid namespace: "+err.Error())
	}
	if err := wire.CheckID(i.id); err != nil {
		return instance{}, refuse(http.StatusBadRequest, "invalid id: "+err.Error())
	}
	return i, nil
}

// original returns the request with the URL the client sent, for callbacks of
// the host.
func (t target) original(r *http.Request) *http.Request {
	if t.base == "" {
		return r
	}
	out := *r
	out.URL = new(url.URL)
	*out.URL = *r.URL
	out.URL.Path, _ = url.PathUnescape(t.base + t.path)
	out.URL.RawPath = t.base + t.path
	return &out
}
