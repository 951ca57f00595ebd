package wire

import (
	"errors"
	"strings"
)

// maxHostnameBytes is the longest name of the domain name system.
const maxHostnameBytes = 253

var errHostname = errors.New("must be a host name in ASCII, or an address")

// ParseHostname returns a host name as bindings compare it (protocol §7): in
// lower case, without port and trailing dot. It takes what a Host header and a
// registration may hold. Names beyond ASCII have to come as they are in a Host
// header, which is as "xn--…".
func ParseHostname(text string) (string, error) {
	name := text
	if end := strings.LastIndexByte(name, ':'); end > strings.LastIndexByte(name, ']') {
		for _, c := range []byte(name[end+1:]) {
			if c < '0' || c > '9' {
				return "", errHostname
			}
		}
		name = name[:end]
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > maxHostnameBytes || !isHostname(name) {
		return "", errHostname
	}
	name = strings.ToLower(name)                         // after the check: some letters beyond ASCII become 'k' or 's'
	if address, ok := strings.CutPrefix(name, "["); ok { // IPv6
		address, ok = strings.CutSuffix(address, "]")
		if !ok || address == "" || strings.ContainsAny(address, "[]") {
			return "", errHostname
		}
		return name, nil
	}
	if strings.ContainsAny(name, "[]:") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") {
		return "", errHostname
	}
	return name, nil
}

func isHostname(name string) bool {
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '[', c == ']':
		default:
			return false
		}
	}
	return true
}

// hostname normalises the field of that name, if it was there.
func (o *object) hostname(text string) string {
	if !o.has("hostname") {
		return ""
	}
	name, err := ParseHostname(text)
	if err != nil {
		o.fail("hostname", err.Error())
	}
	return name
}
