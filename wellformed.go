package pinboard

import (
	"net/http"
	"strings"
)

// hostChars are the characters of RFC 3986, section 3.2.2.
var hostChars = func() (set [256]bool) {
	for _, c := range []byte("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!$%&'()*+,-.:;=[]_~") {
		set[c] = true
	}
	return set
}()

func isHost(text string) bool {
	for i := range len(text) {
		if !hostChars[text[i]] {
			return false
		}
	}
	return true
}

// wellFormed returns a refusal for a request that no HTTP/1.1 request to a
// worker can say. The server has seen to that for HTTP/1.1 clients. Of HTTP/2
// it lets through what the transport would refuse, which would look like the
// owner's fault, or mend, so that the worker would not see what was routed by.
func wellFormed(r *http.Request) error {
	switch {
	case !isToken(r.Method):
		return refuse(http.StatusBadRequest, "the method is malformed")
	case !isHost(r.Host):
		return refuse(http.StatusBadRequest, "the host is malformed")
	case r.ProtoMajor > 1 && r.ContentLength == 0 && strings.Trim(strings.Join(r.Header["Content-Length"], ""), "0") != "":
		// The body ended with the header, or its length is no number: what the
		// worker would get as a whole request without a body is none.
		return refuse(http.StatusBadRequest, "the body is not as long as it is said to be")
	}
	return nil
}
