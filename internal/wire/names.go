package wire

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on names (protocol §1).
const (
	MaxNamespaceBytes = 128
	MaxIDBytes        = 256
)

// CheckNamespace returns nil for a valid namespace, such as "/counters", and
// otherwise an error that says what is wrong with it (protocol §1).
func CheckNamespace(ns string) error {
	name, ok := strings.CutPrefix(ns, "/")
	switch {
	case !ok || name == "" || strings.Contains(name, "/"):
		return errors.New("a namespace is '/' and one path segment")
	case len(ns) > MaxNamespaceBytes:
		return errors.New("a namespace is at most 128 bytes")
	case !utf8.ValidString(ns):
		return errors.New("a namespace is UTF-8 text")
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return errors.New("a namespace has no white space or control characters")
	case reservedNamespace(name):
		return errors.New("the namespace's name is reserved")
	}
	return nil
}

func reservedNamespace(name string) bool {
	switch name {
	case ".", "..", "registry", "healthz", "metrics":
		return true
	}
	return name[0] == '_'
}

// CheckID returns nil for a valid instance id and otherwise an error that says
// what is wrong with it (protocol §1). It looks at the raw text: a
// percent-encoded id is not valid.
func CheckID(id string) error {
	switch {
	case id == "":
		return errors.New("an id is not empty")
	case len(id) > MaxIDBytes:
		return errors.New("an id is at most 256 characters")
	case id == "." || id == "..":
		return errors.New("an id is neither '.' nor '..'")
	}
	for i := range len(id) {
		if !idByte(id[i]) {
			return errors.New("an id has only the characters A-Z a-z 0-9 . _ ~ -")
		}
	}
	return nil
}

func idByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '.' || c == '_' || c == '~' || c == '-'
}
