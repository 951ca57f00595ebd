package upstream

import (
	"fmt"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
)

// Field is one header line of a worker's answer.
type Field struct {
	Name  string // canonical
	Value string // without white space around it
}

// Header is the header lines of an answer, in order.
type Header []Field

// Get returns the first value of the field with that canonical name, else "".
func (h Header) Get(name string) string {
	for _, f := range h {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// Has reports whether there is a field with that canonical name.
func (h Header) Has(name string) bool {
	for _, f := range h {
		if f.Name == name {
			return true
		}
	}
	return false
}

// Without returns the fields but for those with that canonical name.
func (h Header) Without(name string) Header {
	return slices.DeleteFunc(h, func(f Field) bool { return f.Name == name })
}

// Names of fields that frame a message.
const (
	contentLength    = "Content-Length"
	transferEncoding = "Transfer-Encoding"
	connection       = "Connection"
	trailer          = "Trailer"
)

// malformed is an error that says no more than what is wrong: the worker's text
// may hold what must not get into a log.
func malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformedAnswer, what) }

// parseStatus reads a status line, without its end.
func parseStatus(line string) (status int, minor byte, err error) {
	const form = "HTTP/1.x 200"
	if len(line) < len(form) || line[:7] != form[:7] || line[8] != ' ' || len(line) > len(form) && line[len(form)] != ' ' {
		return 0, 0, malformed("status line")
	}
	minor = line[7]
	if minor != '0' && minor != '1' {
		return 0, 0, malformed("version")
	}
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return 0, 0, malformed("status")
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 || !isValue(line) {
		return 0, 0, malformed("status line")
	}
	return status, minor, nil
}

// parseFields appends the fields of header lines, each with its end.
func parseFields(h Header, lines string) (Header, error) {
	for lines != "" {
		line, rest, _ := strings.Cut(lines, "\r\n")
		lines = rest
		// A line that starts with white space would go on with the one
		// before it; a space before the colon is read differently by different
		// programs. Neither is a token.
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || !isValue(value) {
			return h, malformed("header line")
		}
		h = append(h, Field{Name: textproto.CanonicalMIMEHeaderKey(name), Value: textproto.TrimString(value)})
	}
	return h, nil
}

// framing says where the body of an answer ends.
type framing uint8

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
)

// frame reads from an answer's header how its body is framed (RFC 9112, section
// 6.3). length is what a Content-Length says, also of a body that is not sent;
// -1 without one. keep says that another answer can come after this one. Two
// lengths, or a length and an encoding, are how one answer is made to look like
// two: they are errors.
func frame(h Header, method string, status int, minor byte) (f framing, length int64, keep bool, err error) {
	if status < 200 { // whatever it says, it ends with its head, and another one follows
		return noBody, -1, false, nil
	}
	length, keep = -1, minor == '1'
	chunked := false
	for _, field := range h {
		switch field.Name {
		case contentLength:
			if length >= 0 {
				return 0, 0, false, malformed("second length")
			}
			if length, err = parseLength(field.Value); err != nil {
				return 0, 0, false, err
			}
		case transferEncoding:
			if chunked || minor != '1' || !strings.EqualFold(field.Value, "chunked") {
				return 0, 0, false, malformed("transfer encoding")
			}
			chunked = true
		case trailer:
			if framesByTrailer(field.Value) {
				return 0, 0, false, malformed("trailer")
			}
		case connection:
			for token := range strings.SplitSeq(field.Value, ",") {
				if strings.EqualFold(textproto.TrimString(token), "close") {
					keep = false
				}
			}
		}
	}
	if chunked && length >= 0 {
		return 0, 0, false, malformed("length and transfer encoding")
	}
	if status == 204 && (chunked || length > 0) {
		keep = false // its worker may send what it says
	}
	switch {
	case method == "HEAD" || status == 204 || status == 304:
		return noBody, length, keep, nil
	case chunked:
		return byChunks, -1, keep, nil
	case length == 0:
		return noBody, 0, keep, nil
	case length > 0:
		return byLength, length, keep, nil
	}
	return byClose, -1, false, nil
}

// framesByTrailer reports whether a Trailer line announces what only a header may
// say.
func framesByTrailer(line string) bool {
	for name := range strings.SplitSeq(line, ",") {
		switch textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)) {
		case contentLength, transferEncoding, trailer:
			return true
		}
	}
	return false
}

// parseLength reads a Content-Length, which has digits only.
func parseLength(value string) (int64, error) {
	n, err := strconv.ParseUint(value, 10, 63)
	if err != nil || value[0] == '+' {
		return 0, malformed("length")
	}
	return int64(n), nil
}

// parseChunk reads the line that starts a chunk, without its end. Extensions
// are dropped.
func parseChunk(line []byte) (int64, error) {
	n, digits := int64(0), 0
	for i, c := range line {
		var digit byte
		switch {
		case c >= '0' && c <= '9':
			digit = c - '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			digit = c | 0x20 - 'a' + 10
		case digits > 0 && endsChunkSize(line[i:]):
			return n, nil
		default:
			return 0, malformed("chunk")
		}
		if digits++; digits > 15 { // what is longer may overflow
			return 0, malformed("chunk")
		}
		n = n<<4 | int64(digit)
	}
	if digits == 0 {
		return 0, malformed("chunk")
	}
	return n, nil
}

// endsChunkSize reports whether what follows a chunk's size is white space or
// an extension.
func endsChunkSize(rest []byte) bool {
	after := strings.TrimLeft(string(rest), " \t")
	return (after == "" || after[0] == ';') && isValue(after)
}
