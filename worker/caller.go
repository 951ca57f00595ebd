package worker

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/pinboard-go/pinboard/internal/attest"
)

// Caller is on whose behalf a request comes, as pinboard attests it: an
// instance or an account. Exactly one of them is set.
type Caller struct {
	Instance *CallerInstance
	Account  *CallerAccount
}

// CallerInstance is an instance that calls this one through pinboard.
type CallerInstance struct {
	// Namespace starts with a slash.
	Namespace, ID string
	// Depth is the number of calls between instances that led here, this one
	// included.
	Depth int
}

// CallerAccount is a client that pinboard has authenticated.
type CallerAccount struct {
	// Subject is the name of a static key, or a token's sub.
	Subject string
	Scopes  []string
	// Claims are JSON values; numbers are json.Number. They are shared by
	// nothing and may be changed.
	Claims map[string]any
}

type callerKey struct{}

// CallerFrom returns the caller of the request that ctx belongs to. It reports
// false for an anonymous client, and outside of a request.
func CallerFrom(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// callerOnce is the caller of one request, made when it is first asked for: what
// an application gets is its own, while the claims are shared by all requests that
// came with the same attestation.
type callerOnce struct {
	once   sync.Once
	caller any // a Caller, nil for an anonymous client
}

func (c *callerOnce) of(claims *attest.Claims) any {
	c.once.Do(func() {
		if caller, ok := callerOf(claims); ok {
			c.caller = caller
		}
	})
	return c.caller
}

func callerOf(claims *attest.Claims) (c Caller, ok bool) {
	switch {
	case claims.Caller != "":
		at := strings.LastIndexByte(claims.Caller, '/')
		if at <= 0 || at == len(claims.Caller)-1 {
			return Caller{}, false // names no instance
		}
		c.Instance = &CallerInstance{
			Namespace: claims.Caller[:at], ID: claims.Caller[at+1:], Depth: claims.Depth,
		}
	case claims.Account != nil:
		own, _ := copyValue(claims.Account.Claims).(map[string]any)
		c.Account = &CallerAccount{
			Subject: claims.Account.Subject, Scopes: slices.Clone(claims.Account.Scopes), Claims: own,
		}
	default:
		return Caller{}, false
	}
	return c, true
}

// copyValue copies a JSON value.
func copyValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		if value == nil {
			return value
		}
		own := make(map[string]any, len(value))
		for name, member := range value {
			own[name] = copyValue(member)
		}
		return own
	case []any:
		own := make([]any, len(value))
		for i, item := range value {
			own[i] = copyValue(item)
		}
		return own
	}
	return value
}
