package attest

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/pinboard-go/pinboard/internal/leak"
	"github.com/pinboard-go/pinboard/internal/wire"
)

const (
	// maxKept is how many verified tokens are kept in each of two generations,
	// maxKeptText how long all of a generation are together, and maxKeptToken how
	// long one is at most.
	maxKept      = 2048
	maxKeptText  = 1 << 20
	maxKeptToken = 4 << 10
	// generation is how many seconds a generation takes new tokens. Pinboard
	// mints one a second for each client.
	generation = 2

	signatureSize = (sha256.Size*8 + 5) / 6 // in base64url
)

// Verifier verifies the attestations of one worker, with its secret. It remembers
// the tokens that it has found to be signed right: pinboard sends the same one
// for all requests of a client within a second. What it remembers is what a
// token's bytes are enough to decide, which is signature and form. For whom the
// token is and whether it is in time is asked each time, so that it takes what
// Verify takes and nothing else. Safe for concurrent use.
type Verifier struct {
	secret wire.Secret
	seed   maphash.Seed
	macs   sync.Pool // of *mac

	mu      sync.RWMutex
	session string // of all that are remembered
	second  int64  // of the wall clock, in which young began
	size    int    // of the texts in young
	young   map[uint64]*verified
	old     map[uint64]*verified
}

// verified is a token whose signature is right.
type verified struct {
	text string
	said statement
}

// NewVerifier returns a verifier that has seen nothing.
func NewVerifier(secret wire.Secret) *Verifier {
	v := &Verifier{secret: secret, seed: maphash.MakeSeed()}
	v.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, []byte(secret.Reveal()))} }
	return v
}

// Verify is the function Verify for the audience of one session. "" is nobody's.
// clock is asked for the time when the token is known to be signed right, at most
// once. Callers with the same token get the same claims, which none of them may
// change.
func (v *Verifier) Verify(token, session string, clock func() time.Time) (*Claims, error) {
	if session == "" {
		return nil, invalid("there is no session")
	}
	key := maphash.String(v.seed, token)
	known := v.recall(key, token)
	fresh := known == nil
	if fresh {
		var err error
		if known, err = v.check(token); err != nil {
			return nil, err
		}
	}
	now := clock()
	switch {
	case !known.said.inTime(now):
		return nil, errTime
	case known.said.claims.Audience != session:
		return nil, errAudience
	}
	if fresh {
		v.keep(key, known, now)
	}
	return &known.said.claims, nil
}

// recall returns what is known of a token, nil if nothing is. It is compared in
// constant time here as well: who could guess a remembered one byte by byte would
// have it.
func (v *Verifier) recall(key uint64, token string) *verified {
	v.mu.RLock()
	known := v.young[key]
	if known == nil {
		known = v.old[key]
	}
	v.mu.RUnlock()
	if known == nil || !same(token, known.text) {
		return nil
	}
	return known
}

// keep remembers a token. Those that nobody has sent for a while go with their
// generation, and all with their session.
func (v *Verifier) keep(key uint64, known *verified, now time.Time) {
	size := len(known.text)
	if size > maxKeptToken {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if session := known.said.claims.Audience; session != v.session {
		v.session, v.young, v.old = session, nil, nil
	}
	if second := now.Unix(); v.young == nil || second < v.second || second >= v.second+generation ||
		len(v.young) >= maxKept || v.size+size > maxKeptText {
		v.old, v.young = v.young, map[uint64]*verified{}
		v.second, v.size = second, 0
	}
	v.young[key] = known
	v.size += size
}

// check does what takes time.
func (v *Verifier) check(token string) (*verified, error) {
	m := v.macs.Get().(*mac) // it holds nothing else
	defer v.macs.Put(m)
	said, err := open(token, v.secret, m.right)
	if err != nil {
		return nil, err
	}
	return &verified{text: strings.Clone(token), said: said}, nil
}

// mac is an HMAC with the key in it, and room for what goes into it and comes
// out.
type mac struct {
	hash.Hash
	input []byte
	sum   [sha256.Size]byte
	text  [signatureSize]byte
}

// right reports whether the signature is that of input.
func (m *mac) right(input, signature string) bool {
	m.Reset()
	m.input = append(m.input[:0], input...)
	_, _ = m.Write(m.input) // never fails (hash.Hash)
	base64.RawURLEncoding.Encode(m.text[:], m.Sum(m.sum[:0]))
	leak.Secret(string(m.text[:]))
	return same(signature, string(m.text[:]))
}

// same compares in constant time for the length, without copies on the heap.
func same(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}
