package attest_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/wire"
)

// sameAsVerify asks a verifier, and the function that remembers nothing.
func sameAsVerify(t *testing.T, v *attest.Verifier, token, audience string, at time.Time) (taken bool) {
	t.Helper()
	got, err := v.VerifyAt(token, audience, at)
	want, wanted := attest.Verify(token, wire.NewSecret(secret), func(a string) bool { return audience != "" && a == audience }, at)
	require.Equal(t, want, got)
	require.Equal(t, wanted == nil, err == nil, "%v, %v", wanted, err)
	if err != nil {
		require.ErrorIs(t, err, attest.ErrInvalid)
	}
	return err == nil
}

// Whatever a verifier has seen before, in time and out of it, for one session
// and for others, good and forged.
func TestAVerifierTakesWhatVerifyTakes(t *testing.T) {
	t.Parallel()
	other, err := attest.Mint(wire.NewSecret(secret), attest.Claims{Audience: "session-2"}, now)
	require.NoError(t, err)
	later, err := attest.Mint(wire.NewSecret(secret), attest.Claims{Audience: session}, now.Add(40*time.Second))
	require.NoError(t, err)
	tokens := []string{
		"", ".", "..", "a.b.c", other, later,
		forge(rightHead, rightBody, "another secret", sha256.New),
		forge(rightHead, `{"aud":"","iat":1700000000,"exp":1700000030}`, secret, sha256.New), // nobody's
		forge(`{"alg":"none"}`, rightBody, secret, sha256.New),
		forge(rightHead, `{"AUD":"session-1","iat":1700000000,"exp":1700000030}`, secret, sha256.New),
		forge(rightHead, rightBody+`{}`, secret, sha256.New),
		forge(rightHead, `{"aud":"session-1","iat":1700000000,"exp":1700000030,"acct":{"sub":"a","scopes":[null]}}`, secret, sha256.New),
	}
	for _, claims := range onBehalfOf {
		good := mint(t, claims)
		tokens = append(tokens, good, good+"=", good[:len(good)-1], strings.ToLower(good), good+"."+good)
	}
	v, taken := attest.NewVerifier(wire.NewSecret(secret)), 0
	for range 3 {
		for _, since := range []time.Duration{
			0, -30 * time.Second, -30*time.Second - 1, 30 * time.Second, 60 * time.Second, 60*time.Second + 1, -time.Hour, time.Hour, 0,
		} {
			for _, audience := range []string{session, "session-2", "", "session-3", session} {
				for _, token := range tokens {
					if sameAsVerify(t, v, token, audience, now.Add(since)) {
						taken++
					}
				}
			}
		}
	}
	require.Positive(t, taken)
}

// Where what is remembered is compared, and where it is not.
func TestNoOtherBytesThanTheVerifiedOnesAreTaken(t *testing.T) {
	t.Parallel()
	v := attest.NewVerifier(wire.NewSecret(secret))
	for _, claims := range onBehalfOf {
		token := mint(t, claims)
		require.True(t, sameAsVerify(t, v, token, session, now))
		for i := range len(token) {
			for _, bit := range []byte{1, 0x20} {
				changed := []byte(token)
				changed[i] ^= bit
				_, err := v.VerifyAt(string(changed), session, now)
				require.ErrorIs(t, err, attest.ErrInvalid, "byte %d", i)
				v.Confuse(token, string(changed)) // as if their hashes were the same
				_, err = v.VerifyAt(string(changed), session, now)
				require.ErrorIs(t, err, attest.ErrInvalid, "byte %d", i)
			}
		}
		for _, changed := range []string{token + "A", token[:len(token)-1], token[1:], ""} {
			v.Confuse(token, changed)
			_, err := v.VerifyAt(changed, session, now)
			require.ErrorIs(t, err, attest.ErrInvalid)
		}
		require.True(t, sameAsVerify(t, v, token, session, now))
	}
}

// A worker that starts anew has another secret, whatever else is the same.
func TestWhatOneVerifierHasSeenIsNothingToAnother(t *testing.T) {
	t.Parallel()
	v, next := attest.NewVerifier(wire.NewSecret(secret)), attest.NewVerifier(wire.NewSecret(secret[1:]+"0"))
	token := mint(t, attest.Claims{Audience: session})
	for range 2 {
		require.True(t, sameAsVerify(t, v, token, session, now))
		_, err := next.VerifyAt(token, session, now)
		require.ErrorIs(t, err, attest.ErrInvalid)
		_, err = attest.NewVerifier(wire.Secret{}).VerifyAt(token, session, now)
		require.ErrorIs(t, err, attest.ErrInvalid)
	}
}

func TestAVerifierRemembersNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	numbered := func(n, length int) string {
		return mint(t, attest.Claims{Audience: session, Account: &attest.Account{Subject: fmt.Sprintf("%0*d", length, n)}})
	}
	v := attest.NewVerifier(wire.NewSecret(secret))
	for n := range 3*attest.MaxKept + 1 {
		require.True(t, sameAsVerify(t, v, numbered(n, 5), session, now))
		if n%64 != 0 {
			continue
		}
		kept, size := v.Kept()
		require.LessOrEqual(t, kept, 2*attest.MaxKept)
		require.LessOrEqual(t, size, 2*attest.MaxKeptText)
	}
	kept, _ := v.Kept()
	require.Equal(t, attest.MaxKept+1, kept, "one generation, and what has begun of the next one")

	v = attest.NewVerifier(wire.NewSecret(secret))
	require.True(t, sameAsVerify(t, v, numbered(1, attest.MaxKeptToken), session, now))
	kept, _ = v.Kept()
	require.Zero(t, kept, "one that is too long")
	for n := range 3 * attest.MaxKeptText / attest.MaxKeptToken {
		require.True(t, sameAsVerify(t, v, numbered(n, attest.MaxKeptToken/2), session, now))
	}
	_, size := v.Kept()
	require.LessOrEqual(t, size, 2*attest.MaxKeptText)
}

func TestAVerifierForgets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		audience string
		after    time.Duration
		kept     int
	}{
		"with the next session":               {"session-2", 0, 1},
		"not in the next second":              {session, time.Second, 2},
		"not at once":                         {session, 2 * time.Second, 2},
		"where the wall clock steps back too": {session, -10 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := attest.NewVerifier(wire.NewSecret(secret))
			require.True(t, sameAsVerify(t, v, mint(t, attest.Claims{Audience: session}), session, now))
			use := func(at time.Time) {
				token, err := attest.Mint(wire.NewSecret(secret), attest.Claims{Audience: c.audience}, at)
				require.NoError(t, err)
				require.True(t, sameAsVerify(t, v, token, c.audience, at))
			}
			use(now.Add(c.after + 500*time.Millisecond))
			kept, _ := v.Kept()
			require.Equal(t, c.kept, kept)
			use(now.Add(c.after + 10*time.Second))
			use(now.Add(c.after + 20*time.Second))
			kept, _ = v.Kept()
			require.Equal(t, 2, kept, "two generations are all")
		})
	}
}

// With the race detector: many ask at once, for the same tokens, for two
// sessions that take turns, and in times that do.
func TestAVerifierMayBeUsedByMany(t *testing.T) {
	t.Parallel()
	v := attest.NewVerifier(wire.NewSecret(secret))
	var tokens []string
	for i := range 20 {
		token, err := attest.Mint(wire.NewSecret(secret), attest.Claims{Audience: []string{session, "session-2"}[i%2], Depth: i, Caller: "/a/b"}, now)
		require.NoError(t, err)
		tokens = append(tokens, token)
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			for i := range 300 {
				n := (g + i) % len(tokens)
				audience := []string{session, "session-2"}[(i/50)%2]
				at := now.Add(time.Duration(i/100) * 31 * time.Second)
				got, err := v.VerifyAt(tokens[n], audience, at)
				right := (n%2 == 0) == (audience == session) && at.Sub(now) <= 60*time.Second
				if right != (err == nil) || right && got.Depth != n {
					t.Errorf("token %d for %s after %v: %v, %v", n, audience, at.Sub(now), got, err)
				}
			}
		})
	}
	group.Wait()
}
