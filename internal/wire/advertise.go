package wire

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Limits on host names (RFC 1035).
const (
	maxHostBytes  = 253
	maxLabelBytes = 63
)

// ParseAdvertiseURL checks the URL that a worker says it can be reached at and
// returns it in its normal form, in which equal targets are equal texts, with
// its host: a name, an IPv4 or an IPv6 address without brackets (protocol §2).
// The errors never hold the URL, which may hold a password.
//
// What net/url, a resolver and a reader could take for different targets is
// refused: user info, query, fragment, backslashes, white space, spellings of
// an IPv4 address other than four decimal numbers, IPv6 zones and IPv4 written
// as IPv6. In the normal form scheme and host are in lower case, the scheme's
// own port, the trailing dot of the host and the trailing slashes of the path
// are gone, and IPv6 is canonical. A base path stays byte for byte.
func ParseAdvertiseURL(raw string) (normal, host string, err error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	scheme = strings.ToLower(scheme)
	if !ok || scheme != "http" && scheme != "https" {
		return "", "", errors.New("must start with http:// or https://")
	}
	for i := range len(rest) {
		if err := checkURLByte(rest[i]); err != nil {
			return "", "", err
		}
	}
	authority, path, hasPath := strings.Cut(rest, "/")
	if strings.Contains(authority, "@") {
		return "", "", errors.New("must not have a user or password")
	}
	host, port, err := splitAuthority(authority)
	if err != nil {
		return "", "", err
	}
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		port = ""
	}
	if hasPath {
		if path, err = basePath("/" + path); err != nil {
			return "", "", err
		}
	}
	normal = scheme + "://" + host
	if strings.Contains(host, ":") {
		normal = scheme + "://[" + host + "]"
	}
	if port != "" {
		normal += ":" + port
	}
	return normal + path, host, nil
}

func checkURLByte(c byte) error {
	switch {
	case c <= ' ' || c >= 0x7f:
		return errors.New("must be printable ASCII without white space")
	case c == '?':
		return errors.New("must not have a query")
	case c == '#':
		return errors.New("must not have a fragment")
	case c == '\\':
		return errors.New("must not have a backslash")
	}
	return nil
}

// splitAuthority returns the normal host, without brackets, and the port as
// text, "" if there is none.
func splitAuthority(authority string) (host, port string, err error) {
	var rest string
	if inside, ok := strings.CutPrefix(authority, "["); ok {
		text, after, closed := strings.Cut(inside, "]")
		if !closed {
			return "", "", errors.New("has an unclosed bracket")
		}
		if host, err = hostIPv6(text); err != nil {
			return "", "", err
		}
		rest = after
	} else {
		end := strings.IndexByte(authority, ':')
		if end < 0 {
			end = len(authority)
		}
		if host, err = hostPlain(authority[:end]); err != nil {
			return "", "", err
		}
		rest = authority[end:]
	}
	if rest == "" {
		return host, "", nil
	}
	port, ok := strings.CutPrefix(rest, ":")
	if _, err := strconv.ParseUint(port, 10, 16); !ok || err != nil || port[0] == '0' {
		return "", "", errors.New("has a port that is not a plain number from 1 to 65535")
	}
	return host, port, nil
}

func hostIPv6(text string) (string, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !addr.Is6():
		return "", errors.New("has brackets around something that is not an IPv6 address")
	case addr.Zone() != "":
		return "", errors.New("must not have an IPv6 zone")
	case addr.Is4In6():
		return "", errors.New("has an IPv4 address written as IPv6: write it as four numbers")
	}
	return addr.String(), nil
}

func hostPlain(text string) (string, error) {
	// netip takes only the canonical spelling: no leading zeros, four parts.
	if addr, err := netip.ParseAddr(strings.TrimSuffix(text, ".")); err == nil && addr.Is4() {
		return addr.String(), nil
	}
	return HostName(text)
}

// HostName returns a DNS name in its normal form: lower case, no trailing dot.
// It refuses what is not ASCII letters, digits, '-' and '_' in dotted labels,
// and a last label that is a number: resolvers read such names as addresses in
// spellings of their own ("127.1", "0x7f000001").
func HostName(text string) (string, error) {
	// Only ASCII is lowered: strings.ToLower would turn a Kelvin sign into "k".
	name := strings.Map(lowerASCII, strings.TrimSuffix(text, "."))
	if name == "" {
		return "", errors.New("has no host")
	}
	if len(name) > maxHostBytes {
		return "", errors.New("has a host name of more than 253 bytes")
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > maxLabelBytes || strings.ContainsFunc(label, notInLabel) {
			return "", errors.New("has a malformed host name")
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", errors.New("has a host that ends in a number but is not an IPv4 address of four decimal numbers")
	}
	return name, nil
}

func lowerASCII(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

func notInLabel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// numeric reports whether inet_aton could read a label as a number: decimal,
// octal or hexadecimal.
func numeric(label string) bool {
	if digits, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// basePath checks a path and drops its trailing slashes. What could change the
// meaning of a path that is put behind it is refused.
func basePath(path string) (string, error) {
	for i := range len(path) {
		// The characters of a path in RFC 3986; everything else would be
		// escaped somewhere on the way.
		if c := path[i]; !idByte(c) && !strings.ContainsRune("/%:@!$&'()*+,;=", rune(c)) {
			return "", errors.New("has a character in its path that must be escaped")
		}
	}
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return "", errors.New("has a malformed escape in its path")
	}
	for i := range len(decoded) {
		if decoded[i] < ' ' || decoded[i] == 0x7f || decoded[i] == '\\' {
			return "", errors.New("has an escaped control character or backslash in its path")
		}
	}
	for segment := range strings.SplitSeq(decoded, "/") {
		if segment == "." || segment == ".." {
			return "", errors.New("has a '.' or '..' segment in its path")
		}
	}
	return strings.TrimRight(path, "/"), nil
}
