package pinboard

import (
	"errors"
	"net/http"

	"github.com/pinboard-go/pinboard/passport"
)

const (
	headerOrigin = "Origin"
	// maxAge is for how many seconds a browser may remember the answer to a
	// preflight: a policy that was tightened counts again after that.
	maxAge = "300"
)

// sameOrigin trusts no other origin: which ones a namespace trusts is its
// policy's to say.
var sameOrigin http.CrossOriginProtection

// foreign reports whether a page of another origin has a browser send this
// request, and it is one that changes something or opens a WebSocket. Reading
// is left to the same-origin policy of browsers, which covers no WebSockets.
func foreign(r *http.Request) bool {
	if wantsWebSocket(r) {
		open := *r
		open.Method = http.MethodPost // what is safe about GET does not hold
		r = &open
	}
	return sameOrigin.Check(r) != nil
}

// trusted reports whether the namespace trusts the origin of the page that the
// request comes from.
func (x *proxy) trusted(namespace string, r *http.Request) bool {
	origins, ok := x.p.opts.Passport.(passport.Origins)
	lines := r.Header[headerOrigin]
	return ok && len(lines) == 1 && origins.AllowsOrigin(namespace, lines[0])
}

var (
	errForeign = refuse(http.StatusForbidden, "a page of another origin may not do this with the user's cookie")
	// errPreflight is not for the client: the preflight is to be answered.
	errPreflight = errors.New("a preflight")
)

// checkOrigin refuses what somebody's page does in a user's name by the cookies
// that browsers send along (cross-site request forgery).
func (x *proxy) checkOrigin(namespace string, r *http.Request, who *passport.Identity) error {
	if who != nil && who.Ambient && foreign(r) && !x.trusted(namespace, r) {
		return errForeign
	}
	return nil
}

// isPreflight reports whether a browser asks, without a credential as it
// always does, whether a page may send a request.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && len(r.Header["Access-Control-Request-Method"]) == 1
}

// allowPreflight answers in place of the worker, whom nobody may call without a
// credential. What the page may do is decided when it does it.
func allowPreflight(w http.ResponseWriter, r *http.Request) {
	allowOrigin(w, r)
	h := w.Header()
	h["Access-Control-Allow-Methods"] = r.Header["Access-Control-Request-Method"]
	if names := r.Header["Access-Control-Request-Headers"]; len(names) > 0 {
		h["Access-Control-Allow-Headers"] = names
	}
	h.Set("Access-Control-Max-Age", maxAge)
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
}

// allowOrigin lets the page read the answer.
func allowOrigin(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Access-Control-Allow-Origin"] = r.Header[headerOrigin]
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate")
	h.Add("Vary", headerOrigin)
}
