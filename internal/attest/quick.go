package attest

import "strings"

// maxQuickClaims is how long an account's claims are at most that readQuickly
// takes: so long that nothing in them is nested deeper than anybody reads.
const maxQuickClaims = 4 << 10

// readQuickly reads a payload that is written as Mint writes it, with texts that
// need no decoding. For every other one it reports false, whatever there is to say
// of it: readAny knows. It is there because a client that sends less than a request a
// second is read each time, and most of what readAny takes is for finding out what
// sort of value comes where.
func readQuickly(payload string) (said statement, ok bool) {
	s := scanner{rest: payload}
	said.claims.Audience = s.text(`{"aud":"`)
	said.iat = s.number(`,"iat":`)
	said.exp = s.number(`,"exp":`)
	switch {
	case s.skip(`,"caller":"`):
		said.claims.Caller = s.text("")
		said.claims.Depth = int(s.number(`,"depth":`))
	case s.skip(`,"acct":{"sub":"`):
		said.claims.Account = s.account()
	}
	s.expect("}")
	return said, !s.failed && s.rest == ""
}

// scanner takes one thing after the other off a text, until one is not there.
type scanner struct {
	rest   string
	failed bool
}

func (s *scanner) skip(prefix string) (there bool) {
	s.rest, there = strings.CutPrefix(s.rest, prefix)
	return there
}

func (s *scanner) expect(prefix string) {
	if !s.skip(prefix) {
		s.failed = true
	}
}

// text takes what is behind prefix up to a quotation mark, and that.
func (s *scanner) text(prefix string) string {
	s.expect(prefix)
	for i := range len(s.rest) {
		switch c := s.rest[i]; {
		case c == '"':
			text := s.rest[:i]
			s.rest = s.rest[i+1:]
			return text
		case c < ' ' || c > '~' || c == '\\':
			s.failed = true
			return ""
		}
	}
	s.failed = true
	return ""
}

// number takes an integer that has no more digits than fit.
func (s *scanner) number(prefix string) (n int64) {
	s.expect(prefix)
	digits := 0
	for digits < len(s.rest) && '0' <= s.rest[digits] && s.rest[digits] <= '9' {
		n = n*10 + int64(s.rest[digits]-'0')
		if digits++; digits > 15 {
			break
		}
	}
	if digits == 0 || digits > 15 || digits > 1 && s.rest[0] == '0' {
		s.failed = true
	}
	s.rest = s.rest[digits:]
	return n
}

// account takes an account behind the quotation mark of its sub.
func (s *scanner) account() *Account {
	a := &Account{Subject: s.text("")}
	if s.expect(`,"scopes":[`); !s.skip("]") {
		a.Scopes = append(a.Scopes, s.text(`"`))
		for s.skip(",") && !s.failed {
			a.Scopes = append(a.Scopes, s.text(`"`))
		}
		s.expect("]")
	}
	s.expect(`,"claims":`)
	claims, ok := strings.CutSuffix(s.rest, "}}")
	if s.failed || !ok || len(claims) > maxQuickClaims {
		s.failed = true
		return a
	}
	if a.Claims, ok = readObject(claims); !ok {
		s.failed = true
	}
	s.rest = "}"
	return a
}
