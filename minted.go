package pinboard

import (
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/pinboard-go/pinboard/internal/attest"
)

// maxMinted is how many attestations are kept for one session. They are as many
// as it has clients within one second, and lost ones are minted anew.
const maxMinted = 1000

// minted keeps the attestations that were minted within the present second for
// one session: more of them on behalf of the same one would say the same. The
// zero minted has none.
type minted struct {
	mu     sync.Mutex
	second int64
	tokens map[onBehalf]mintedToken
}

// onBehalf tells claims apart without a look into them: two with the same
// pointers are the same.
type onBehalf struct {
	caller  string
	depth   int
	account bool
	subject string
	scopes  *string
	count   int // of scopes
	claims  unsafe.Pointer
}

type mintedToken struct {
	text string
	// These keep the pointers from being another's. The account itself is part of
	// its request, which must not live on.
	scopes []string
	claims map[string]any
}

func behalfOf(claims *attest.Claims) onBehalf {
	by := onBehalf{caller: claims.Caller, depth: claims.Depth}
	if a := claims.Account; a != nil {
		by.account, by.subject = true, a.Subject
		by.scopes, by.count = unsafe.SliceData(a.Scopes), len(a.Scopes)
		by.claims = reflect.ValueOf(a.Claims).UnsafePointer()
	}
	return by
}

// attestation returns one for the claims, with the session as their audience.
func (s *lease) attestation(claims attest.Claims, now time.Time) (string, error) {
	m, by := &s.minted, behalfOf(&claims)
	second := now.Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.second != second || len(m.tokens) >= maxMinted {
		clear(m.tokens)
		m.second = second
	}
	if token, ok := m.tokens[by]; ok {
		return token.text, nil
	}
	claims.Audience = s.ID
	text, err := attest.Mint(s.Secret, claims, now)
	if err != nil {
		return "", err
	}
	if m.tokens == nil {
		m.tokens = map[onBehalf]mintedToken{}
	}
	token := mintedToken{text: text}
	if a := claims.Account; a != nil {
		token.scopes, token.claims = a.Scopes, a.Claims
	}
	m.tokens[by] = token
	return text, nil
}
