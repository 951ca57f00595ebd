package wire

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"

	"github.com/pinboard-go/pinboard/internal/leak"
)

// Secret is a text that is never printed: no fmt verb, logger or JSON encoder
// shows it, also when it lies in an unexported field of something printed.
// The zero Secret is the empty text. Secrets are immutable and may be shared;
// compare them with Equal, as == compares where the texts lie.
type Secret struct{ text *string }

// NewSecret wraps text.
func NewSecret(text string) Secret {
	leak.Secret(text)
	return Secret{text: &text}
}

// Reveal returns the text, for signing and for sending it where it belongs.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Empty reports whether there is no text.
func (s Secret) Empty() bool { return s.Reveal() == "" }

// Equal compares in a time that depends neither on where the texts differ nor
// on their lengths.
func (s Secret) Equal(other Secret) bool {
	a, b := s.Sum(), other.Sum()
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Sum is the text's SHA-256, for stores that only need to recognise it.
func (s Secret) Sum() [sha256.Size]byte { return sha256.Sum256([]byte(s.Reveal())) }

// Format hides the text from every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte("[secret]")) }

// MarshalText hides the text from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }
