package pinboard

import (
	"maps"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/pinboard-go/pinboard/internal/upstream"
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
		names = list(names, line)
	}
	return names
}

// list adds the names in one Connection line.
func list(names map[string]struct{}, line string) map[string]struct{} {
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
	return names
}

// endToEnd reports whether a header is meant for the other end: it is neither
// hop-by-hop, nor among those that a Connection line lists, nor one of the names
// that only pinboard and its workers may use with each other (protocol §5), nor a
// spelling of one that says where a message ends. The name is canonical.
func endToEnd(name string, perHop map[string]struct{}) bool {
	if wire.Reserved(name) {
		return false
	}
	if plain := folded(name); hopByHop(plain) || plain == headerContentLength && name != plain {
		return false
	}
	_, drop := perHop[name]
	return !drop
}

// nominated is listed for a worker's answer.
func nominated(h upstream.Header) map[string]struct{} {
	var names map[string]struct{}
	for _, f := range h {
		if f.Name == headerConnection {
			names = list(names, f.Value)
		}
	}
	return names
}

// copyFields copies the headers of a worker's answer that are for the client.
func copyFields(dst http.Header, src upstream.Header) {
	perHop := nominated(src)
	var seen map[string]struct{} // of so many that they can't all be looked through each time
	if len(src) > 32 {
		seen = make(map[string]struct{}, len(src))
	}
	values := make([]string, 0, len(src))
	for i, f := range src {
		if !endToEnd(f.Name, perHop) {
			continue
		}
		var again bool
		if seen == nil {
			again = src[:i].Has(f.Name)
		} else {
			_, again = seen[f.Name]
			seen[f.Name] = struct{}{}
		}
		if again {
			dst[f.Name] = append(dst[f.Name], f.Value)
			continue
		}
		values = append(values, f.Value)
		dst[f.Name] = values[len(values)-1 : len(values) : len(values)]
	}
}

// trailer reports whether a trailer may pass; perHop are the names that a Connection
// line lists. Framing, routing, credentials and
// addresses in a trailer are attempts to fool whoever merges it into the headers
// (RFC 9110, section 6.5.1).
func trailer(name string, perHop map[string]struct{}) bool {
	switch folded(name) {
	case headerContentLength, "Host", headerExpect, "Authorization", headerCookie, "Set-Cookie",
		"Forwarded", "X-Real-Ip", headerForwardedFor, headerForwardedProto, headerForwardedHost:
		return false
	}
	// Any text can be announced, also what is no name.
	return isToken(name) && endToEnd(name, perHop)
}

// folded returns a name as servers and gateways read it that take "_" and "."
// for "-".
func folded(name string) string {
	i := 0
	for i < len(name) && name[i] != '_' && name[i] != '.' {
		i++
	}
	if i == len(name) {
		return name
	}
	return textproto.CanonicalMIMEHeaderKey(strings.Map(func(c rune) rune {
		if c == '_' || c == '.' {
			return '-'
		}
		return c
	}, name))
}

// copyTrailers copies the trailers of a client's request that may pass, with their
// values.
func copyTrailers(dst http.Header, r *http.Request) {
	perHop := listed(r.Header)
	for name, values := range r.Trailer {
		if trailer(name, perHop) {
			dst[name] = values
		}
	}
}

// withoutReserved returns the request as the host's callbacks may see it:
// without the headers that only pinboard may set, if it has any, and without its
// body.
func withoutReserved(r *http.Request, reserved bool) *http.Request {
	if !reserved && !hasBody(r) {
		return r
	}
	seen := *r
	seen.Body = http.NoBody
	if reserved {
		seen.Header = maps.Clone(r.Header)
		maps.DeleteFunc(seen.Header, func(name string, _ []string) bool { return wire.Reserved(name) })
	}
	return &seen
}

// appendFields appends what of the client's headers a worker may see, with the
// forwarding headers, without the credential of who, which may be nil. from is the
// other end of the connection. Headers that the client did not send are not made
// up.
func (p proxies) appendFields(b []byte, r *http.Request, from netip.Addr, who *passport.Identity) []byte {
	perHop := listed(r.Header)
	for name, values := range r.Header {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if !endToEnd(name, perHop) || framing(name) || who != nil && hides(who, name) {
			continue
		}
		if name == headerCookie && who != nil {
			values = withoutCookies(values, who.HideCookies)
		}
		for _, value := range values {
			b = appendField(b, name, value)
		}
	}
	if slices.ContainsFunc(r.Header["Te"], func(line string) bool { return hasToken(line, "trailers") }) {
		b = appendField(b, "Te", "trailers")
	}
	return p.appendForwarded(b, r, from)
}

// appendField leaves out what is no header. Only the host's own code can have
// put that into a request.
func appendField(b []byte, name, value string) []byte {
	b, _ = upstream.AppendField(b, name, value)
	return b
}

// framing reports whether a header that passes is written anew for the worker.
func framing(name string) bool {
	switch folded(name) { // any spelling would be read in place of ours
	case headerContentLength, "Host", headerExpect, headerForwardedFor, headerForwardedProto, headerForwardedHost:
		return true
	}
	return false
}

// hides reports whether a header holds the credential of who.
func hides(who *passport.Identity, name string) bool {
	return slices.ContainsFunc(who.HideHeaders, func(hidden string) bool { return strings.EqualFold(hidden, name) })
}

// appendForwarded says where the request came from: a trusted proxy's word is
// extended, anybody else's is replaced.
func (p proxies) appendForwarded(b []byte, r *http.Request, from netip.Addr) []byte {
	trusted := from.IsValid() && p.trust(from)
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	add := func(name, value string) {
		prior := r.Header[name]
		switch {
		case !trusted || len(prior) == 0:
			if value != "" { // the client may have named no host
				b = appendField(b, name, value)
			}
		case name == headerForwardedFor:
			b = appendField(b, name, strings.Join(prior, ", ")+", "+value)
		default:
			for _, value := range prior {
				b = appendField(b, name, value)
			}
		}
	}
	add(headerForwardedProto, proto)
	add(headerForwardedHost, r.Host)
	if from.IsValid() {
		var room [48]byte // for any address
		add(headerForwardedFor, string(from.AppendTo(room[:0])))
	}
	return b
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

// withoutCookies returns the lines without the named cookies, the others as they
// are, byte for byte. A line of which nothing is left is not among them.
func withoutCookies(lines, names []string) []string {
	if len(names) == 0 {
		return lines
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
	return kept
}

// isEventStream reports whether an answer is a stream of server-sent events.
func isEventStream(h upstream.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(textproto.TrimString(kind), "text/event-stream")
}
