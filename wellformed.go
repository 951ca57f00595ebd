package pinboard

import (
	"net/http"
	"strings"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// wellFormed returns a refusal for a request that no HTTP/1.1 request to a
// worker can say. The server has seen to that for HTTP/1.1 clients. Of HTTP/2
// it lets through what the transport would refuse, which would look like the
// owner's fault, or mend, so that the worker would not see what was routed by.
//
// host is the host name that is asked, as bindings have it, "" for none. What is no
// host name is refused (RFC 9112, section 3.2): it would be bound nowhere, and go past
// the binding of the name that somebody else reads in it.
func wellFormed(r *http.Request) (host string, err error) {
	if !isToken(r.Method) {
		return "", refuse(http.StatusBadRequest, "the method is malformed")
	}
	if r.Host != "" {
		if host, err = wire.ParseHostname(r.Host); err != nil {
			return "", refuse(http.StatusBadRequest, "the host is malformed")
		}
	}
	if r.ProtoMajor > 1 && r.ContentLength == 0 && strings.Trim(strings.Join(r.Header["Content-Length"], ""), "0") != "" {
		// The body ended with the header, or its length is no number: what the
		// worker would get as a whole request without a body is none.
		return "", refuse(http.StatusBadRequest, "the body is not as long as it is said to be")
	}
	return host, nil
}
