// Package passport answers who is calling, and what they may reach
// (protocol §10).
//
// Passport is the interface pinboard asks; Parse returns the standard one,
// described by a JSON document. A host with its own accounts implements
// Passport itself.
package passport

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// Scopes of the registry (protocol §§2, 4).
const (
	ScopeWorker   = "pinboard:worker"
	ScopeOperator = "pinboard:operator"

	// registryScopes starts every scope that pinboard itself gives a meaning.
	registryScopes = "pinboard:"
)

var (
	// ErrUnauthenticated is returned by Passport.Admit for a client without a
	// credential that the namespace takes: pinboard answers 401.
	ErrUnauthenticated = errors.New(wire.SaidUnauthenticated)
	// ErrForbidden is returned by Passport.Admit for a client whose credential
	// is good but not enough: pinboard answers 403.
	ErrForbidden = errors.New(wire.SaidForbidden)
)

// Passport says who is calling. Implementations must be safe for concurrent
// use, must not read or change the request, and must not log credentials.
type Passport interface {
	// Identify returns the caller's identity, or nil if the request has no
	// credential or none that is known. An error means that it could not be
	// found out, and becomes a 503; a bad credential is not an error.
	Identify(ctx context.Context, r *http.Request) (*Identity, error)

	// Admit returns nil if who may reach instances of the namespace, which
	// starts with a slash, and otherwise an error that is (errors.Is)
	// ErrUnauthenticated or ErrForbidden. who is nil for an anonymous client.
	// It is called before pinboard looks whether the namespace exists.
	Admit(ctx context.Context, namespace string, who *Identity) error
}

// Origins may be implemented by a Passport: it says which pages of other origins
// a namespace trusts. A Passport without it trusts none.
type Origins interface {
	// AllowsOrigin reports whether pages of an origin, which is the text of an
	// Origin header such as "https://app.example.com", may call instances of
	// the namespace, which starts with a slash, in the name of their user.
	AllowsOrigin(namespace, origin string) bool
}

// Identity is a caller whose credential is good. It is read-only once returned.
type Identity struct {
	// Provider is the id of the provider that knows the caller.
	Provider string
	// Subject, Scopes and Claims reach the worker in the attestation.
	Subject string
	Scopes  []string
	// Claims are JSON values. "pinboard" in it holds what pinboard itself
	// obeys: see AllowsNamespace and BackendHosts. Numbers from the standard
	// passport are json.Number, so that no digit is lost on the way.
	Claims map[string]any

	// HideHeaders, HideCookies and HideQuery name the headers, cookies and
	// query parameters that carry credentials and must not reach a worker.
	// Cookies and parameters are compared with regard to case.
	HideHeaders []string
	HideCookies []string
	HideQuery   []string

	// Ambient says that the credential is one that browsers send along
	// whatever page makes them ask, as they do with cookies. Pinboard refuses
	// requests of pages of other origins then, if they change something or
	// open a WebSocket: see Origins.
	Ambient bool
}

// HasScope reports whether the identity has the scope. A nil Identity has none.
func (i *Identity) HasScope(scope string) bool {
	return i != nil && slices.Contains(i.Scopes, scope)
}
