package worker

import (
	"context"
	"strings"

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

func withCaller(ctx context.Context, claims attest.Claims) context.Context {
	var c Caller
	switch {
	case claims.Caller != "":
		at := strings.LastIndexByte(claims.Caller, '/')
		if at <= 0 || at == len(claims.Caller)-1 {
			return ctx // names no instance
		}
		c.Instance = &CallerInstance{
			Namespace: claims.Caller[:at], ID: claims.Caller[at+1:], Depth: claims.Depth,
		}
	case claims.Account != nil:
		c.Account = &CallerAccount{
			Subject: claims.Account.Subject, Scopes: claims.Account.Scopes, Claims: claims.Account.Claims,
		}
	default:
		return ctx
	}
	return context.WithValue(ctx, callerKey{}, c)
}
