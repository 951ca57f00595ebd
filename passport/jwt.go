package passport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/pinboard-go/pinboard/internal/leak"
)

const headerCookie = "Cookie"

// jwts is the provider "jwt": tokens that an identity server has signed with
// keys it publishes (RFC 7519, 7515, 7517).
type jwts struct {
	rules tokenRules
	from  []source
	// registry lets tokens hold the powers of the registry: scopes that start
	// with "pinboard:", and the claim "pinboard". Without it both are dropped.
	registry bool
	// forward leaves a good token in the header or cookie that it came in.
	forward bool
	keys    *keySet
	id      string
	log     *logger
}

// identify returns the identity of the first good token in the order of "from".
// All places are looked at, because a good token must be hidden also where it
// is not the one that counts.
func (p *jwts) identify(ctx context.Context, r *http.Request) (*Identity, error) {
	var who *Identity
	var away error
	hide := false
	for _, from := range p.from {
		token, ok := from.token(r)
		if !ok {
			continue
		}
		found, err := p.verify(ctx, token)
		if reason, ok := errors.AsType[refused](err); ok {
			p.log.debug("token refused", zap.String("provider", p.id), zap.String("from", from.kind), zap.String("reason", string(reason)))
			continue
		}
		if err != nil {
			away = fmt.Errorf("provider %q: %w", p.id, err)
		}
		hide = hide || from.kind == fromAuthorization && !p.forward
		if who == nil && found != nil {
			who = found
			who.Ambient = from.kind == fromCookie
		}
	}
	if who == nil {
		return nil, away
	}
	if hide {
		who.HideHeaders = []string{headerAuthorization}
	}
	return who, nil
}

// verify returns the identity of a good token. The error is a refused for a
// token that is not good; any other one means that it could not be found out.
func (p *jwts) verify(ctx context.Context, token string) (*Identity, error) {
	t, err := p.rules.parse(token)
	if err != nil {
		return nil, err
	}
	keys, err := p.keys.find(ctx, t.choose)
	if err != nil {
		return nil, err
	}
	if err := t.verify(keys); err != nil {
		return nil, err
	}
	who := &Identity{Provider: p.id, Subject: t.subject, Scopes: t.scopes(), Claims: t.claims}
	if !p.registry {
		who.Scopes = slices.DeleteFunc(who.Scopes, func(scope string) bool { return strings.HasPrefix(scope, registryScopes) })
		delete(who.Claims, claimPinboard)
	}
	return who, nil
}

const (
	fromAuthorization = "authorization"
	fromCookie        = "cookie"
	fromQuery         = "query"
)

// source is where in a request a token is looked for.
type source struct{ kind, name string }

// token returns what is there. A name that is there twice is no credential:
// somebody along the way could have read the other one.
func (s source) token(r *http.Request) (string, bool) {
	switch s.kind {
	case fromCookie:
		return single(cookies(r.Header, s.name))
	case fromQuery:
		return single(parameters(r.URL, s.name))
	}
	return bearer(r.Header)
}

func single(found []string) (string, bool) {
	for _, token := range found {
		leak.Secret(token)
	}
	if len(found) != 1 || found[0] == "" {
		return "", false
	}
	return found[0], true
}

// cookies returns the values of all cookies with the name, as they are sent.
func cookies(h http.Header, name string) []string {
	var found []string
	for _, line := range h[headerCookie] {
		for part := range strings.SplitSeq(line, ";") {
			if key, value, ok := strings.Cut(part, "="); ok && strings.Trim(key, " \t") == name {
				found = append(found, strings.Trim(value, " \t"))
			}
		}
	}
	return found
}

// parameters returns the values of all query parameters with the name.
func parameters(u *url.URL, name string) []string {
	if u == nil {
		return nil
	}
	var found []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		key, value, _ := strings.Cut(part, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		value, err := url.QueryUnescape(value)
		if err != nil {
			value = "" // no token, and still one of several
		}
		found = append(found, value)
	}
	return found
}
