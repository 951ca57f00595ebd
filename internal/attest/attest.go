// Package attest mints and verifies attestations: the short-lived JWS by which
// a worker knows that a request came through pinboard, and on whose behalf
// (protocol §5).
package attest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// TTL is how long an attestation is good for.
	TTL = 30 * time.Second
	// Skew is how far a verifier's clock may be off.
	Skew = 30 * time.Second
)

// header is the protected header {"alg":"HS256","typ":"pinboard+jwt"}. A
// verifier compares it as text: no token chooses its algorithm.
const header = "eyJhbGciOiJIUzI1NiIsInR5cCI6InBpbmJvYXJkK2p3dCJ9"

// ErrInvalid is what Verify returns for every token it does not accept,
// wrapped with the reason.
var ErrInvalid = errors.New("invalid attestation")

// Account is an authenticated client.
type Account struct {
	Subject string
	Scopes  []string
	// Claims are JSON values. Verify returns numbers as json.Number, so that
	// no two large ones, such as the ids of two users, become one float64.
	Claims map[string]any
}

// Claims say on whose behalf a request comes: an account, a calling instance,
// or nobody when both are unset.
type Claims struct {
	// Audience is the owner's session id.
	Audience string
	// Account is set for an authenticated client.
	Account *Account
	// Caller is "/<ns>/<id>" for a cluster call, Depth its depth.
	Caller string
	Depth  int
}

type account struct {
	Sub    string         `json:"sub"`
	Scopes []string       `json:"scopes"`
	Claims map[string]any `json:"claims"`
}

type payload struct {
	Aud    string   `json:"aud"`
	Iat    int64    `json:"iat"`
	Exp    int64    `json:"exp"`
	Acct   *account `json:"acct,omitempty"`
	Caller string   `json:"caller,omitempty"`
	Depth  *int     `json:"depth,omitempty"`
}

// Mint signs claims with the worker's secret, issued at now. It returns an
// error for an empty secret, with which anybody could sign, and for claims of
// an account that are not JSON values. With a Caller, Account does not count.
func Mint(secret wire.Secret, claims Claims, now time.Time) (string, error) {
	if secret.Empty() {
		return "", errors.New("sign an attestation: the secret is empty")
	}
	iat := now.Unix()
	p := payload{Aud: claims.Audience, Iat: iat, Exp: iat + int64(TTL/time.Second)}
	switch {
	case claims.Caller != "":
		p.Caller, p.Depth = claims.Caller, &claims.Depth
	case claims.Account != nil:
		a := *claims.Account
		if a.Scopes == nil {
			a.Scopes = []string{}
		}
		if a.Claims == nil {
			a.Claims = map[string]any{}
		}
		p.Acct = &account{Sub: a.Subject, Scopes: a.Scopes, Claims: a.Claims}
	}
	body, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("encode an attestation: %w", err)
	}
	input := header + "." + base64.RawURLEncoding.EncodeToString(body)
	return input + "." + sign(secret, input), nil
}

func sign(secret wire.Secret, input string) string {
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write([]byte(input))
	signature := base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	leak.Secret(signature)
	return signature
}

// Verify returns the claims of a token that was signed with secret for an
// audience that accept takes, and that is in time at now. Every fault is an
// ErrInvalid; the signature is compared in constant time, before anything the
// token says is looked at. A Verifier is for many tokens.
func Verify(token string, secret wire.Secret, accept func(audience string) bool, now time.Time) (Claims, error) {
	said, err := open(token, secret, func(input, signature string) bool {
		return hmac.Equal([]byte(signature), []byte(sign(secret, input)))
	})
	switch {
	case err != nil:
		return Claims{}, err
	case !said.inTime(now):
		return Claims{}, errTime
	case !accept(said.claims.Audience):
		return Claims{}, errAudience
	}
	return said.claims, nil
}

var (
	errTime     = invalid("too early or too late")
	errAudience = invalid("another audience")
)

// statement is what a token says.
type statement struct {
	iat, exp int64 // Unix seconds
	claims   Claims
}

// open returns what a token says whose signature right takes. For whom it is, and
// when, is not looked at.
func open(token string, secret wire.Secret, right func(input, signature string) bool) (statement, error) {
	if secret.Empty() {
		return statement{}, invalid("no secret to verify with")
	}
	first, last := strings.IndexByte(token, '.'), strings.LastIndexByte(token, '.')
	if first == last || strings.IndexByte(token[first+1:last], '.') >= 0 {
		return statement{}, invalid("not three parts")
	}
	// Compared as text, so that no second spelling of one signature passes.
	if !right(token[:last], token[last+1:]) {
		return statement{}, invalid("wrong signature")
	}
	if token[:first] != header {
		return statement{}, invalid("wrong header")
	}
	body, err := base64.RawURLEncoding.Strict().DecodeString(token[first+1 : last])
	if err != nil {
		return statement{}, invalid("payload is not base64url")
	}
	if said, ok := readQuickly(string(body)); ok {
		return said, nil
	}
	return readAny(string(body))
}

// readAny reads a payload however it is written.
func readAny(payload string) (said statement, err error) {
	fields, ok := readObject(payload)
	if !ok {
		return statement{}, invalid("payload is not a JSON object")
	}
	if err := said.readTimes(fields); err != nil {
		return statement{}, err
	}
	said.claims, err = readClaims(fields)
	return said, err
}

// readObject decodes a JSON object whose numbers keep all their digits. A map,
// because names must match exactly: encoding/json folds case in structs, and
// "AUD" is not "aud".
func readObject(text string) (fields map[string]any, ok bool) {
	if text == "{}" { // nearly always
		return map[string]any{}, true
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if dec.Decode(&fields) != nil || fields == nil {
		return nil, false
	}
	_, err := dec.Token()
	return fields, errors.Is(err, io.EOF) // nothing comes behind it
}

func (s *statement) readTimes(fields map[string]any) error {
	var ok, also bool
	s.iat, ok = integer(fields["iat"])
	s.exp, also = integer(fields["exp"])
	if !ok || !also {
		return invalid("iat or exp is not an integer")
	}
	const limit = 1 << 53
	if s.iat < -limit || s.iat > limit || s.exp < -limit || s.exp > limit {
		return invalid("iat or exp out of range")
	}
	return nil
}

func (s *statement) inTime(now time.Time) bool {
	return !now.Before(time.Unix(s.iat, 0).Add(-Skew)) && !now.After(time.Unix(s.exp, 0).Add(Skew))
}

func readClaims(fields map[string]any) (c Claims, err error) {
	var ok bool
	if c.Audience, ok = fields["aud"].(string); !ok {
		return Claims{}, errAudience
	}
	if caller, there := fields["caller"]; there {
		if c.Caller, ok = caller.(string); !ok {
			return Claims{}, invalid("caller is not a string")
		}
	}
	if depth, there := fields["depth"]; there {
		n, ok := integer(depth)
		if c.Depth = int(n); !ok || n < 0 || int64(c.Depth) != n {
			return Claims{}, invalid("depth is not an integer")
		}
	}
	if acct, there := fields["acct"]; there {
		if c.Account, err = readAccount(acct); err != nil {
			return Claims{}, err
		}
	}
	return c, nil
}

func readAccount(acct any) (*Account, error) {
	fields, ok := acct.(map[string]any)
	if !ok {
		return nil, invalid("acct is not an object")
	}
	a := &Account{}
	if a.Subject, ok = fields["sub"].(string); !ok {
		return nil, invalid("acct has no sub, or a wrong one")
	}
	if claims, there := fields["claims"]; there {
		if a.Claims, ok = claims.(map[string]any); !ok {
			return nil, invalid("acct has claims that are not an object")
		}
	}
	scopes, there := fields["scopes"]
	if !there {
		return a, nil
	}
	list, ok := scopes.([]any)
	if !ok {
		return nil, invalid("acct has scopes that are not a list")
	}
	for _, scope := range list {
		text, ok := scope.(string)
		if !ok {
			return nil, invalid("acct has a scope that is not a string")
		}
		a.Scopes = append(a.Scopes, text)
	}
	return a, nil
}

// integer returns a number that is written as an integer.
func integer(value any) (int64, bool) {
	number, _ := value.(json.Number)
	n, err := number.Int64()
	return n, err == nil
}

func invalid(reason string) error { return fmt.Errorf("%w: %s", ErrInvalid, reason) }
