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
		if strings.Trim(name[end+1:], "0123456789") != "" {
			return "", errHostname
		}
		name = name[:end]
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" || len(name) > maxHostnameBytes || strings.ContainsFunc(name, notInHostname) {
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

func notInHostname(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.:[]", c)
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
