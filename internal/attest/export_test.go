package attest

import (
	"hash/maphash"
	"maps"
	"time"
)

// Bounds of what is remembered.
const (
	MaxKept      = maxKept
	MaxKeptText  = maxKeptText
	MaxKeptToken = maxKeptToken
)

// Forget makes every token one that was not seen.
func (v *Verifier) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.young)
	v.old = nil
}

// Confuse has another token look like one that was seen, as if they had the same
// hash.
func (v *Verifier) Confuse(seen, with string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.young[maphash.String(v.seed, with)] = v.young[maphash.String(v.seed, seen)]
}

// Kept returns how many tokens are remembered, and how long they are together.
func (v *Verifier) Kept() (n, size int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := maps.Clone(v.old)
	if all == nil {
		all = map[uint64]*verified{}
	}
	maps.Copy(all, v.young)
	for _, known := range all {
		size += len(known.text)
	}
	return len(all), size
}

// ReadBothWays reads a payload in both ways.
func ReadBothWays(payload string) (quick, any Claims, times [2][2]int64, ok bool, err error) {
	one, ok := readQuickly(payload)
	other, err := readAny(payload)
	return one.claims, other.claims, [2][2]int64{{one.iat, one.exp}, {other.iat, other.exp}}, ok, err
}

// VerifyAt is Verify at a time.
func (v *Verifier) VerifyAt(token, session string, at time.Time) (Claims, error) {
	claims, err := v.Verify(token, session, func() time.Time { return at })
	if err != nil {
		return Claims{}, err
	}
	return *claims, nil
}
