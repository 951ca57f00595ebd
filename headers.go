package pinboard

import (
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	headerConnection     = "Connection"
	headerUpgrade        = "Upgrade"
	headerTrailer        = "Trailer"
	headerExpect         = "Expect"
	headerContentLength  = "Content-Length"
	headerCookie         = "Cookie"
	headerForwardedFor   = "X-Forwarded-For"
	headerForwardedProto = "X-Forwarded-Proto"
	headerForwardedHost  = "X-Forwarded-Host"

	protocolWebSocket = "websocket"
)

// hopByHop reports whether a header is about one connection only and never
// forwarded (RFC 9110, section 7.6.1). The name is canonical.
func hopByHop(name string) bool {
	switch name {
	case headerConnection, "Proxy-Connection", "Keep-Alive", "Te", headerTrailer, "Transfer-Encoding",
		headerUpgrade, "Http2-Settings", "Proxy-Authenticate", "Proxy-Authorization":
		return true
	}
	return false
}

// listed returns the names in all Connection lines, canonical, but for those
// that are hop-by-hop anyway; nil if there are none. An empty line among them
// ends nothing.
func listed(h http.Header) map[string]struct{} {
	var names map[string]struct{} // there may be very many
	for _, line := range h[headerConnection] {
		for name := range strings.SplitSeq(line, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if name == "" || name == "Close" || hopByHop(name) {
				continue
			}
			if names == nil {
				names = map[string]struct{}{}
			}
			names[name] = struct{}{}
		}
	}
	return names
}

// copyEndToEnd copies the headers that are meant for the other end: neither
// hop-by-hop ones, nor what a Connection line lists, nor the names that only
// pinboard and its workers may use with each other (protocol §5). The values
// are shared.
func copyEndToEnd(dst, src http.Header) {
	perHop := listed(src)
	for name, values := range src {
		if _, drop := perHop[name]; !drop && !hopByHop(name) && !wire.Reserved(name) {
			dst[name] = values
		}
	}
}

// trailer reports whether a trailer may pass. Framing, routing, credentials and
// addresses in a trailer are attempts to fool whoever merges it into the headers
// (RFC 9110, section 6.5.1).
func trailer(name string) bool {
	switch folded(name) {
	case headerContentLength, "Host", headerExpect, "Authorization", headerCookie, "Set-Cookie",
		"Forwarded", "X-Real-Ip", headerForwardedFor, headerForwardedProto, headerForwardedHost:
		return false
	}
	// Any text can be announced, also what is no name.
	return isToken(name) && !hopByHop(name) && !wire.Reserved(name)
}

// folded returns a name as servers and gateways read it that take "_" and "."
// for "-".
func folded(name string) string {
	if !strings.ContainsAny(name, "_.") {
		return name
	}
	return textproto.CanonicalMIMEHeaderKey(strings.Map(func(c rune) rune {
		if c == '_' || c == '.' {
			return '-'
		}
		return c
	}, name))
}

// copyTrailers copies the trailers that may pass, with their values.
func copyTrailers(dst, src http.Header) {
	for name, values := range src {
		if trailer(name) {
			dst[name] = values
		}
	}
}

// withoutReserved returns the request as the host's callbacks may see it:
// without the headers that only pinboard may set, and without its body.
func withoutReserved(r *http.Request) *http.Request {
	seen := *r
	seen.Body = http.NoBody
	for name := range r.Header {
		if wire.Reserved(name) {
			seen.Header = maps.Clone(r.Header)
			maps.DeleteFunc(seen.Header, func(name string, _ []string) bool { return wire.Reserved(name) })
			break
		}
	}
	return &seen
}

// workerHeader returns what of the client's headers a worker may see, with the
// forwarding headers, without the credential of who, which may be nil. Headers
// that the client did not send are not made up.
func (p proxies) workerHeader(r *http.Request, who *passport.Identity) http.Header {
	h := make(http.Header, len(r.Header)+8)
	copyEndToEnd(h, r.Header)
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		switch read := folded(name); read {
		case headerForwardedFor, headerForwardedProto, headerForwardedHost:
			return read != name // would be read in place of ours
		}
		return false
	})
	if who != nil {
		for _, name := range who.HideHeaders {
			delete(h, textproto.CanonicalMIMEHeaderKey(name))
		}
		hideCookies(h, who.HideCookies)
	}
	if slices.ContainsFunc(r.Header["Te"], func(line string) bool { return hasToken(line, "trailers") }) {
		h["Te"] = []string{"trailers"}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // else the transport would send its own
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		// The transport repeats a request that has one of them by itself, also
		// when the worker may have carried it out. It does not look for them in
		// lower case.
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
	p.setForwarded(h, r)
	return h
}

// setForwarded says where the request came from: a trusted proxy's word is
// extended, anybody else's is replaced.
func (p proxies) setForwarded(h http.Header, r *http.Request) {
	from := peer(r)
	trusted := from.IsValid() && p.trust(from)
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	set := func(name string, value string) {
		prior := r.Header[name]
		switch {
		case !trusted || len(prior) == 0:
			h[name] = []string{value}
		case name == headerForwardedFor:
			h[name] = []string{strings.Join(prior, ", ") + ", " + value}
		default:
			h[name] = prior
		}
	}
	set(headerForwardedProto, proto)
	set(headerForwardedHost, r.Host)
	if from.IsValid() {
		set(headerForwardedFor, from.String())
	} else {
		delete(h, headerForwardedFor)
	}
}

// hasToken reports whether a comma-separated line holds a token of that name, in
// any case.
func hasToken(line, name string) bool {
	for part := range strings.SplitSeq(line, ",") {
		part, _, _ = strings.Cut(part, ";")
		if strings.EqualFold(textproto.TrimString(part), name) {
			return true
		}
	}
	return false
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2), as
// methods are.
func isToken(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0:
			return false
		}
	}
	return text != ""
}

// wantsWebSocket reports whether the request asks for a WebSocket and nothing
// else. All other upgrades are not carried out: what is spoken after them
// would escape every check made here.
func wantsWebSocket(r *http.Request) bool {
	upgrade := r.Header[headerUpgrade]
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor >= 1 && !hasBody(r) &&
		len(upgrade) == 1 && strings.EqualFold(textproto.TrimString(upgrade[0]), protocolWebSocket) &&
		slices.ContainsFunc(r.Header[headerConnection], func(line string) bool { return hasToken(line, headerUpgrade) })
}

func hasBody(r *http.Request) bool {
	return r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
}

// withoutParameters removes the named parameters from a raw query and leaves
// everything else as it is, byte for byte.
func withoutParameters(query string, names []string) string {
	parts := strings.Split(query, "&")
	parts = slices.DeleteFunc(parts, func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		return slices.Contains(names, name)
	})
	return strings.Join(parts, "&")
}

// hideCookies removes the named cookies and leaves the others as they are, byte
// for byte. A line of which nothing is left is removed too.
func hideCookies(h http.Header, names []string) {
	lines := h[headerCookie]
	if len(names) == 0 || len(lines) == 0 {
		return
	}
	kept := make([]string, 0, len(lines)) // the lines are the client's request's too
	for _, line := range lines {
		parts := strings.Split(line, ";")
		left := slices.DeleteFunc(parts, func(part string) bool {
			name, _, _ := strings.Cut(part, "=")
			return slices.Contains(names, textproto.TrimString(name))
		})
		if line = strings.TrimLeft(strings.Join(left, ";"), " \t"); line != "" {
			kept = append(kept, line)
		}
	}
	if h[headerCookie] = kept; len(kept) == 0 {
		delete(h, headerCookie)
	}
}

// isEventStream reports whether an answer is a stream of server-sent events.
func isEventStream(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(textproto.TrimString(kind), "text/event-stream")
}
