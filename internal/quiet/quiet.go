// Package quiet makes errors fit for a log. The packages that make them quote
// what they can't read, and that may hold a secret: an answer can be an echo of
// the request, and some Redis servers repeat the command that they refuse.
package quiet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Transport returns, of an error of an http.RoundTripper or of reading an
// answer, what is known to hold nothing that the other side has sent: the error
// itself, or one that says as much in words of our own.
func Transport(err error) error {
	_, network := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	timed, _ := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case network, name, certificate, record, alert, errors.Is(err, http.ErrSchemeMismatch):
		return err
	case errors.Is(err, context.DeadlineExceeded), timed != nil && timed.Timeout():
		return errors.New("timed out")
	case errors.Is(err, context.Canceled):
		return errors.New("given up")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("connection closed")
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return fmt.Errorf("no HTTP answer (%T)", err)
}

// maxRedis bounds what is shown of an error of a Redis server, in bytes.
const maxRedis = 200

// Redis returns the text of an error of a Redis server, without the arguments
// that it repeats of an unknown command.
func Redis(text string) string {
	const cut = "with args"
	if at := strings.Index(strings.ToLower(text), cut); at >= 0 {
		text = text[:at] + cut + " not shown"
	}
	if len(text) > maxRedis {
		text = text[:maxRedis] + "…"
	}
	return text
}
